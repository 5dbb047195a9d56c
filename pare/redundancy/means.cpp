// Means: what LayerNorm hides of what is written before it, and of what reads it.

#include <algorithm>
#include <numeric>

#include "pare/redundancy/tally.h"

namespace pare {

namespace {

// Whether a constant that leaves a block's attention is taken back further on: by the bias of a parallel MLP, say.
bool settles_downstream(const Places& places, int64_t block) {
  const size_t output = places.blocks[block].attention_output;
  std::vector<size_t> sums;
  for (size_t i = 0; i < places.sums.size(); ++i) {
    if (places.sums[i].target == output) {
      sums.push_back(i);
    }
  }
  return free_constants(places, Zone::stream, Direction::generic, {.sums = sums}) >
         free_constants(places, Zone::stream, Direction::generic, {});
}

void count_layer_norm(Tally& tally, const Architecture& a, const Places& places) {
  std::map<ModuleId, int64_t> hidden_twice;  // a matrix that is hidden from both sides: one direction is the same
  for (const Place& place : places.all) {
    for (const PlaceWriter& writer : place.writers) {
      if (!place.mean_unseen) {
        continue;
      }
      const bool tied = a.head.tied && writer.module == token_table;
      const std::optional<Norm> last = tied ? places.layer_norm_of(places.head_input) : std::nullopt;
      const bool seen_by_head = tied && (!last || last->gain || (last->bias && !a.head.bias));
      tally.add(Symmetry::layer_norm_means, seen_by_head ? 0 : writer.vectors, writer.vectors);
      hidden_twice[writer.module] = 1;
    }
  }
  std::map<ModuleId, bool> norm_biases;  // the mean of a norm's own bias, where nobody sees what it writes
  for (const Sum& sum : places.sums) {
    if (sum.norm && sum.norm->norm.bias) {
      norm_biases.emplace(sum.norm->module, true).first->second &= places.all[sum.target].mean_unseen;
    }
  }
  for (const auto& [module, unseen] : norm_biases) {
    tally.add(Symmetry::layer_norm_means, unseen ? 1 : 0);
  }
  for (size_t p = 0; p < places.all.size(); ++p) {
    const std::optional<Norm> norm = places.layer_norm_of(p);
    if (!norm) {
      continue;
    }
    for (const PlaceReader& reader : places.all[p].readers) {
      // What absorbs a constant without settling it sends it on.
      const bool settles = reader.settles || !norm->bias ||
                           (reader.absorbs && reader.module.block && settles_downstream(places, *reader.module.block));
      int64_t hidden = settles ? reader.unseen : reader.unless;
      if (!settles && reader.absorbs && reader.module.slot == Slot::value) {
        // What it sends on must come out as nothing, or as a mean that nobody sees.
        const size_t output = places.blocks[*reader.module.block].attention_output;
        const int64_t seen = places.all[output].width - (places.all[output].mean_unseen ? 1 : 0);
        hidden = std::max<int64_t>(reader.rows - seen, 0);
      }
      tally.add(Symmetry::layer_norm_ones, hidden, 1);
      const bool collapsed = reader.module.slot == Slot::value_output;
      ModuleId written = reader.module;
      written.slot = collapsed ? Slot::output : written.slot;
      if (hidden > 0 && hidden_twice.contains(written)) {
        const bool is_output = reader.module.slot == Slot::value_output || reader.module.slot == Slot::projection ||
                               reader.module.slot == Slot::transform;
        const int64_t matrices = collapsed ? a.blocks[*reader.module.block].attention.heads : 1;
        tally.add(Symmetry::layer_norm_ones, is_output ? -matrices : 0, 0);
      }
    }
  }
}

// Places that matrices read and that then only LayerNorms see: x may become x + (u x) 1 for any u, the matrices take it
// back, and the mean is hidden. Places that are added to one another have one u. What a LayerNorm writes there has only
// a gain and a bias to follow with: u is then the one direction that the norm never gives.
class MeanMaps {
 public:
  MeanMaps(const Architecture& a, const Places& places) : a_(a), places_(places), parents_(places.all.size()) {
    std::iota(parents_.begin(), parents_.end(), size_t{0});
    for (const Sum& sum : places.sums) {
      for (size_t from : sum.added) {
        if (!sum.norm && is_seen(from) && is_seen(sum.target)) {
          parents_[root(from)] = root(sum.target);
        }
      }
    }
  }

  void count(Tally& tally) const {
    for (size_t p = 0; p < places_.all.size(); ++p) {
      if (root(p) == p && is_seen(p) && is_free(p)) {
        tally.add(Symmetry::layer_norm_means, directions(p), 1);
      }
    }
  }

 private:
  size_t root(size_t place) const {
    while (parents_[place] != place) {
      place = parents_[place];
    }
    return place;
  }
  bool is_seen(size_t p) const { return !places_.all[p].mean_unseen; }
  // What only a LayerNorm writes, without a bias, has nothing of the one direction that is left.
  bool is_beside(size_t p) const {
    const std::optional<Norm> norm = places_.layer_norm_of(p);
    return norm && !norm->bias;
  }

  bool is_free(size_t component) const {
    bool hidden = false;
    for (size_t p = 0; p < places_.all.size(); ++p) {
      const Place& place = places_.all[p];
      if (root(p) != component || is_beside(p)) {
        continue;
      }
      if (place.pinned || place.identity || place.zone != Zone::stream) {
        return false;
      }
      for (const PlaceNorm& norm : place.norms) {
        hidden = true;
        if (norm.norm.kind != NormKind::layer) {
          return false;
        }
      }
      for (const PlaceWriter& writer : place.writers) {
        if (a_.head.tied && writer.module == token_table) {
          return false;
        }
      }
      const bool read_by_head = p == places_.head_input && a_.head.tied;
      if (read_by_head) {
        return false;
      }
    }
    for (const Sum& sum : places_.sums) {
      for (size_t from : sum.added) {
        hidden = hidden || (root(from) == component && !is_seen(sum.target));
      }
    }
    return hidden;
  }

  int64_t directions(size_t component) const {
    std::set<ModuleId> norms;
    bool others = false, only_layer = true;
    for (const Sum& sum : places_.sums) {
      if (root(sum.target) != component) {
        continue;
      }
      if (sum.norm) {
        norms.insert(sum.norm->module);
        only_layer = only_layer && sum.norm->norm.kind == NormKind::layer;
      } else {
        others = true;
      }
    }
    if (norms.empty()) {
      return places_.all[component].width;
    }
    return others && only_layer && norms.size() == 1 ? 1 : 0;
  }

  const Architecture& a_;
  const Places& places_;
  std::vector<size_t> parents_;
};

}  // namespace

void count_means(Tally& tally, const Architecture& a, const Places& places) {
  count_layer_norm(tally, a, places);
  MeanMaps(a, places).count(tally);
}

}  // namespace pare
