#include "pare/probes/collapses.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/support/error.h"

namespace pare {

namespace {

constexpr double rank_one = 1.5;  // below: most sequences have a stream of rank one
constexpr double half_of_the_rank = 0.5;
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
  finding.undecided = nothing_to_lose(results);
  if (!finding.undecided.empty()) {
    finding.verdict = CollapseVerdict::undetermined;
  } else if (finding.verdict == CollapseVerdict::undetermined) {
    finding.undecided = "no sequence defines it";
  }
  return finding;
}

CollapseFinding rank_in_depth(const ProbeResults& results) {
  CollapseFinding finding{.collapse = Collapse::rank_in_depth,
                          .measure = "least mean rank of the stream behind a sublayer",
                          .rule = "collapsed below 1.5; partial below half of the embedding's"};
  const PointMeasures* least = nullptr;
  for (const PointMeasures& point : results.points) {
    const bool counts = point.kind == PointKind::stream && point.name != "residual.0" && point.ranks.rank.count > 0;
    if (counts && (!least || point.ranks.rank.mean < least->ranks.rank.mean)) {
      least = &point;
    }
  }
  const std::optional<double> embedded =
      results.points.empty() ? std::nullopt : results.points.front().ranks.rank.average();
  if (!least || !embedded || results.longest < 2) {
    return finding;
  }
  finding.number = least->ranks.rank.mean;
  finding.place = least->name;
  finding.verdict = *finding.number < rank_one                       ? CollapseVerdict::collapsed
                    : *finding.number < half_of_the_rank * *embedded ? CollapseVerdict::partial
                                                                     : CollapseVerdict::none;
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
                          .measure = "share of heads whose attention matrix has a mean σ2/σ1 below 0.1",
                          .rule = "collapsed above a half; partial from a tenth"};
  judge_heads(finding, results, &HeadMeasures::inverse_gap, "with a σ2/σ1 of");
  return finding;
}

CollapseFinding entropy(const ProbeResults& results) {
  CollapseFinding finding{.collapse = Collapse::entropy,
                          .measure = "share of heads with a mean entropy below a tenth of uniform attention's",
                          .rule = "collapsed above a half; partial from a tenth"};
  judge_heads(finding, results, &HeadMeasures::relative_entropy, "with an entropy over uniform's of");
  return finding;
}

CollapseFinding head_channel(const ProbeResults& results, const Architecture& a) {
  CollapseFinding finding{
      .collapse = Collapse::head_channel,
      .measure = "numbers of a token that other heads add to one head's, at most: (H-1)k; who knows W_O can undo it",
      .rule = "none for one head; partial behind gates; else structural"};
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
  const bool gated =
      std::all_of(a.blocks.begin(), a.blocks.end(), [](const Block& b) { return b.attention.gate.has_value(); });
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
