#include "pare/probes/merging.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace pare {

namespace {

// Numbers in one order, written or read.
class Archive {
 public:
  Archive() = default;
  explicit Archive(const std::string& bytes) : list_(nlohmann::json::from_cbor(bytes)), reads_(true) {}

  template <class T>
  void operator()(T& value) {
    if (reads_) {
      value = list_.at(place_++).get<T>();
    } else {
      list_.push_back(value);
    }
  }
  void operator()(Spread& spread) {
    (*this)(spread.count);
    (*this)(spread.undefined);
    if (spread.count > 0) {
      for (double* number : {&spread.mean, &spread.squares, &spread.least, &spread.most}) {
        (*this)(*number);
      }
    }
    if (spread.undefined > 0) {
      (*this)(spread.reason);
    }
  }
  template <class T>
  void size_of(std::vector<T>& values) {
    size_t size = values.size();
    (*this)(size);
    values.resize(size);
  }
  std::string bytes() const {
    std::string found;
    nlohmann::json::to_cbor(list_, found);
    return found;
  }

 private:
  nlohmann::json list_ = nlohmann::json::array();
  bool reads_ = false;
  size_t place_ = 0;
};

constexpr Spread RankMeasures::*of_points[] = {&RankMeasures::rank, &RankMeasures::effective_rank,
                                               &RankMeasures::stable_rank, &RankMeasures::distance_to_rank_one,
                                               &RankMeasures::affine_rank};
constexpr Spread NormMeasures::*of_norms[] = {&NormMeasures::rank_change, &NormMeasures::affine_rank_change};
// Not that of the gains, which are the same for all sequences.
constexpr Hypothesis NormMeasures::*hypotheses[] = {&NormMeasures::no_constant_row, &NormMeasures::ones_outside,
                                                    &NormMeasures::scales_outside};
constexpr Spread HeadMeasures::*of_heads[] = {&HeadMeasures::entropy,          &HeadMeasures::distance_to_uniform,
                                              &HeadMeasures::relative_entropy, &HeadMeasures::gap,
                                              &HeadMeasures::inverse_gap,      &HeadMeasures::output_dimension};
constexpr Spread HeadPair::*of_pairs[] = {&HeadPair::smallest, &HeadPair::mean, &HeadPair::alignment};
constexpr Spread LayerMeasures::*of_layers[] = {&LayerMeasures::multi_head_rank, &LayerMeasures::recovery_ambiguity};

void archive(Archive& with, ProbeResults& part) {
  for (int64_t ProbeResults::*number : {&ProbeResults::sequences, &ProbeResults::tokens, &ProbeResults::shortest,
                                        &ProbeResults::longest, &ProbeResults::broken, &ProbeResults::overflowing}) {
    with(part.*number);
  }
  with(part.first_broken);
  with(part.first_overflowing);
  with(part.effect);
  for (PointMeasures& point : part.points) {
    for (Spread RankMeasures::*spread : of_points) {
      with(point.ranks.*spread);
    }
    with.size_of(point.ranks.spectrum);
    for (Spread& value : point.ranks.spectrum) {
      with(value);
    }
  }
  for (NormMeasures& norm : part.norms) {
    for (Spread NormMeasures::*spread : of_norms) {
      with(norm.*spread);
    }
    for (Hypothesis NormMeasures::*hypothesis : hypotheses) {
      with((norm.*hypothesis).holds);
      with((norm.*hypothesis).checked);
      with((norm.*hypothesis).number);
    }
  }
  for (LayerMeasures& layer : part.layers) {
    for (Spread LayerMeasures::*spread : of_layers) {
      with(layer.*spread);
    }
    for (HeadMeasures& head : layer.heads) {
      for (Spread HeadMeasures::*spread : of_heads) {
        with(head.*spread);
      }
      with.size_of(head.by_context);
      for (ContextGap& context : head.by_context) {
        with(context.tokens);
        with(context.gap);
      }
    }
    for (HeadPair& pair : layer.pairs) {
      for (Spread HeadPair::*spread : of_pairs) {
        with(pair.*spread);
      }
    }
  }
}

// The same members of one and the other.
template <class Members, class T>
void merge_each(const Members& members, T& all, const T& part) {
  for (const auto member : members) {
    (all.*member).add(part.*member);
  }
}

void merge(RankMeasures& all, const RankMeasures& part) {
  merge_each(of_points, all, part);
  all.spectrum.resize(std::max(all.spectrum.size(), part.spectrum.size()));
  for (size_t i = 0; i < part.spectrum.size(); ++i) {
    all.spectrum[i].add(part.spectrum[i]);
  }
}

void merge(NormMeasures& all, const NormMeasures& part) {
  merge_each(of_norms, all, part);
  for (Hypothesis NormMeasures::*hypothesis : hypotheses) {
    (all.*hypothesis).holds += (part.*hypothesis).holds;
    (all.*hypothesis).checked += (part.*hypothesis).checked;
    (all.*hypothesis).number.add((part.*hypothesis).number);
  }
}

void merge(LayerMeasures& all, const LayerMeasures& part) {
  merge_each(of_layers, all, part);
  for (size_t h = 0; h < part.heads.size(); ++h) {
    merge_each(of_heads, all.heads[h], part.heads[h]);
    for (const ContextGap& context : part.heads[h].by_context) {
      gap_at(all.heads[h], context.tokens).add(context.gap);
    }
  }
  for (size_t p = 0; p < part.pairs.size(); ++p) {
    merge_each(of_pairs, all.pairs[p], part.pairs[p]);
  }
}

}  // namespace

Spread& gap_at(HeadMeasures& head, int64_t tokens) {
  auto place = std::ranges::find_if(head.by_context, [&](const ContextGap& known) { return known.tokens >= tokens; });
  if (place == head.by_context.end() || place->tokens != tokens) {
    place = head.by_context.insert(place, ContextGap{.tokens = tokens});
  }
  return place->gap;
}

void merge(ProbeResults& all, const ProbeResults& part) {
  all.shortest = all.sequences == 0 ? part.shortest : std::min(all.shortest, part.shortest);
  all.longest = std::max(all.longest, part.longest);
  all.sequences += part.sequences;
  all.tokens += part.tokens;
  all.broken += part.broken;
  all.overflowing += part.overflowing;
  all.first_broken = all.first_broken.empty() ? part.first_broken : all.first_broken;
  all.first_overflowing = all.first_overflowing.empty() ? part.first_overflowing : all.first_overflowing;
  all.effect.add(part.effect);
  for (size_t p = 0; p < part.points.size(); ++p) {
    merge(all.points[p].ranks, part.points[p].ranks);
  }
  for (size_t n = 0; n < part.norms.size(); ++n) {
    merge(all.norms[n], part.norms[n]);
  }
  for (size_t layer = 0; layer < part.layers.size(); ++layer) {
    merge(all.layers[layer], part.layers[layer]);
  }
}

std::string packed(const ProbeResults& part) {
  Archive archive_out;
  ProbeResults copy = part;
  archive(archive_out, copy);
  return archive_out.bytes();
}

ProbeResults unpacked(const std::string& bytes, const ProbeResults& blank) {
  Archive archive_in(bytes);
  ProbeResults part = blank;
  archive(archive_in, part);
  return part;
}

}  // namespace pare
