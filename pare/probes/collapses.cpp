#include "pare/probes/collapses.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/support/error.h"

namespace pare {

namespace {

// Paper 4's collapse in depth ends in a matrix of rank one: one direction for all tokens, or even one vector, where
// attention averages them. docs/probes.md says why these numbers.
constexpr double rank_one = 1.5;      // of a rank or an effective rank: nearer to one direction than to two
constexpr double one_vector = 0.1;    // distance to rank one: 99 % of all squares are what the tokens have in common
constexpr double much_is_left = 0.5;  // of what the embedding had
constexpr double concentrated = 0.1;  // relative entropy, or σ2/σ1, of a head that has collapsed
constexpr double most_heads = 0.5, some_heads = 0.1;

// Tokens that are one direction when they go in say nothing of what a model does to several.
std::string nothing_to_lose(const ProbeResults& results) {
  if (results.sequences > 0 && results.longest < 2) {
    return "a single token has one direction, and sees itself alone";
  }
  const std::optional<double> embedded =
      results.points.empty() ? std::nullopt : results.points.front().ranks.rank.average();
  if (!embedded) {
    return "no sequence gives finite numbers";
  }
  return *embedded == 0         ? "the tokens are zero before the first layer"
         : *embedded < rank_one ? "the tokens have one direction before the first layer: identical ones, for example"
                                : "";
}

// What data alone decides is left open where there is none.
CollapseFinding left_open(CollapseFinding finding, const ProbeResults& results) {
  if (const std::string why = nothing_to_lose(results); !why.empty()) {
    finding.verdict = CollapseVerdict::undetermined;
    finding.undecided = why;
  } else if (finding.verdict == CollapseVerdict::undetermined && finding.undecided.empty()) {
    finding.undecided = "no sequence defines it";
  }
  return finding;
}

// How near a stream is to rank one, by two numbers: one direction, which the effective rank sees, and one vector, which
// the distance does.
struct Nearness {
  std::string place;
  double effective = 0, distance = 0;            // means
  double effective_left = 0, distance_left = 0;  // relative to the embedding's
  CollapseVerdict verdict = CollapseVerdict::none;
  bool by_distance = false;  // decided by it and not by the effective rank

  double left() const { return std::min(effective_left, distance_left); }
  bool operator<(const Nearness& other) const {  // the nearer
    return verdict != other.verdict ? verdict > other.verdict : left() < other.left();
  }
};

Nearness nearness_of(const PointMeasures& point, const RankMeasures& embedded) {
  const RankMeasures& r = point.ranks;
  Nearness near{.place = point.name};
  // Zeros have neither number, and nothing left of either.
  near.effective = r.effective_rank.average().value_or(0);
  near.distance = r.distance_to_rank_one.average().value_or(0);
  near.effective_left = near.effective / embedded.effective_rank.mean;
  near.distance_left = near.distance / embedded.distance_to_rank_one.mean;
  const bool one_direction = near.effective < rank_one || r.rank.mean < rank_one;
  if (one_direction || near.distance < one_vector) {
    near.verdict = CollapseVerdict::collapsed;
    near.by_distance = !one_direction;
  } else if (near.left() < much_is_left) {
    near.verdict = CollapseVerdict::partial;
    near.by_distance = near.effective_left >= much_is_left;
  }
  return near;
}

CollapseFinding rank_in_depth(const ProbeResults& results) {
  CollapseFinding finding{.collapse = Collapse::rank_in_depth,
                          .measure = "effective rank where it is worst",
                          .rule =
                              "collapsed: rank or effective rank below 1.5, or distance to rank one below 0.1; "
                              "partial: effective rank or distance below half of the embedding's"};
  if (results.points.empty() || results.longest < 2) {
    return finding;
  }
  const RankMeasures& embedded = results.points.front().ranks;
  if (nearness_of(results.points.front(), embedded).verdict == CollapseVerdict::collapsed) {
    finding.undecided = "the tokens are near rank one before the first layer, by the same rule";
    return finding;
  }
  std::optional<Nearness> worst;
  for (const PointMeasures& point : results.points) {
    const bool counts = point.kind == PointKind::stream && point.name != "residual.0" && point.ranks.rank.count > 0;
    if (!counts) {
      continue;
    }
    if (const Nearness near = nearness_of(point, embedded); !worst || near < *worst) {
      worst = near;
    }
  }
  if (!worst) {
    return finding;
  }
  finding.verdict = worst->verdict;
  finding.number = worst->by_distance ? worst->distance : worst->effective;
  if (worst->by_distance) {
    finding.measure = "distance to rank one where it is worst";
  }
  finding.place = fmt::format(
      "{}: effective rank {:.3g}, distance to rank one {:.3g}, where the embedding has {:.3g} and {:.3g}", worst->place,
      worst->effective, worst->distance, embedded.effective_rank.mean, embedded.distance_to_rank_one.mean);
  return finding;
}

// The share of all heads for which a number, between 0 and 1, has become small.
void judge_heads(CollapseFinding& finding, const ProbeResults& results, Spread HeadMeasures::*number,
                 const char* in_words) {
  int64_t heads = 0, small = 0;
  double least = 2;
  for (const LayerMeasures& layer : results.layers) {
    for (size_t h = 0; h < layer.heads.size(); ++h) {
      const std::optional<double> mean = (layer.heads[h].*number).average();
      if (!mean) {
        continue;
      }
      ++heads;
      small += *mean < concentrated ? 1 : 0;
      if (*mean < least) {
        least = *mean;
        finding.place = fmt::format("layer {}, head {}, {} {:.3g}", layer.layer, h, in_words, *mean);
      }
    }
  }
  if (heads == 0) {
    return;
  }
  finding.number = static_cast<double>(small) / static_cast<double>(heads);
  finding.verdict = *finding.number > most_heads    ? CollapseVerdict::collapsed
                    : *finding.number >= some_heads ? CollapseVerdict::partial
                                                    : CollapseVerdict::none;
}

CollapseFinding rank_in_width(const ProbeResults& results) {
  CollapseFinding finding{.collapse = Collapse::rank_in_width,
                          .measure = "share of heads with a mean σ2/σ1 below 0.1",
                          .rule = "collapsed: more than half of the heads; partial: at least a tenth"};
  judge_heads(finding, results, &HeadMeasures::inverse_gap, "with a σ2/σ1 of");
  return finding;
}

CollapseFinding entropy(const ProbeResults& results) {
  CollapseFinding finding{.collapse = Collapse::entropy,
                          .measure = "share of heads with a mean relative entropy below 0.1",
                          .rule = "collapsed: more than half of the heads; partial: at least a tenth"};
  judge_heads(finding, results, &HeadMeasures::relative_entropy, "with a relative entropy of");
  return finding;
}

CollapseFinding head_channel(const ProbeResults& results, const Architecture& a) {
  CollapseFinding finding{
      .collapse = Collapse::head_channel,
      .measure = "unknowns per token, (H−1)k, when one head is read from the sum of all",
      .rule =
          "none: one head; partial: every layer has gates; structural: all others, whatever their weights; an "
          "invertible W_O that is known separates the heads"};
  const LayerMeasures* most = nullptr;
  for (const LayerMeasures& layer : results.layers) {
    if (!most || layer.ambiguity_of_a_token > most->ambiguity_of_a_token) {
      most = &layer;
    }
  }
  if (!most) {
    return finding;
  }
  finding.number = static_cast<double>(most->ambiguity_of_a_token);
  const bool gated = std::ranges::all_of(a.blocks, [](const Block& b) { return b.attention.gate.has_value(); });
  finding.verdict = *finding.number == 0 ? CollapseVerdict::none
                    : gated              ? CollapseVerdict::partial
                                         : CollapseVerdict::structural;
  return finding;
}

}  // namespace

std::vector<CollapseFinding> find_collapses(const ProbeResults& results, const Architecture& architecture) {
  return {left_open(rank_in_depth(results), results), left_open(rank_in_width(results), results),
          head_channel(results, architecture), left_open(entropy(results), results)};
}

const char* word(Collapse collapse) {
  switch (collapse) {
    case Collapse::rank_in_depth:
      return "rank_in_depth";
    case Collapse::rank_in_width:
      return "rank_in_width";
    case Collapse::head_channel:
      return "head_channel";
    case Collapse::entropy:
      return "entropy";
  }
  PARE_UNREACHABLE("every collapse has a word");
}

const char* word(CollapseVerdict verdict) {
  switch (verdict) {
    case CollapseVerdict::none:
      return "none";
    case CollapseVerdict::partial:
      return "partial";
    case CollapseVerdict::collapsed:
      return "collapsed";
    case CollapseVerdict::structural:
      return "structural";
    case CollapseVerdict::undetermined:
      return "undetermined";
  }
  PARE_UNREACHABLE("every verdict has a word");
}

const char* word(PointKind kind) {
  switch (kind) {
    case PointKind::stream:
      return "stream";
    case PointKind::read:
      return "read";
    case PointKind::written:
      return "written";
    case PointKind::before_norm:
      return "before_norm";
    case PointKind::final:
      return "final";
  }
  PARE_UNREACHABLE("every kind has a word");
}

}  // namespace pare
