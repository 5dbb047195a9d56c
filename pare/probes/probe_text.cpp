#include "pare/probes/probe_results.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <numbers>

#include "pare/probes/collapses.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

namespace {

constexpr const char* dash = "-";

std::string number_text(double value, int digits = 3) {
  const double size = std::abs(value);
  if (size > 0 && size < 1e-4) {
    return fmt::format("{:.0e}", value);
  }
  return size >= 1000 && size < 1e6 ? fmt::format("{:.0f}", value) : fmt::format("{:.{}g}", value, digits);
}

// "63.7±0.5"
std::string spread_text(const Spread& spread) {
  if (spread.count == 0) {
    return dash;
  }
  const std::optional<double> deviation = spread.deviation();
  if (!deviation) {
    return number_text(spread.mean);
  }
  const bool visible = *deviation >= 1e-4 * std::abs(spread.mean);  // less is beyond the digits that are shown
  return fmt::format("{}±{}", number_text(spread.mean), visible ? number_text(*deviation, 2) : "0");
}

std::string short_text(double value) {
  return value < 10 ? fmt::format("{:.2f}", value) : value < 1000 ? number_text(value) : fmt::format("{:.0e}", value);
}

// Means of heads: their mean, least and most. "1.20 (0.10-2.30)"
std::string range_text(const Spread& means) {
  if (means.count == 0) {
    return dash;
  }
  return means.count == 1
             ? short_text(means.mean)
             : fmt::format("{} ({}-{})", short_text(means.mean), short_text(means.least), short_text(means.most));
}

std::string point_label(const PointMeasures& point) {
  const char* part = point.sublayer == Sublayer::mlp ? "MLP" : "attn";
  switch (point.kind) {
    case PointKind::stream:
      return point.sublayer == Sublayer::end   ? "end stream"
             : point.sublayer == Sublayer::mlp ? fmt::format("{} middle", point.layer)
                                               : fmt::format("{} stream", point.layer);
    case PointKind::read:
      return fmt::format("{} {} reads", point.layer, part);
    case PointKind::written:
      return fmt::format("{} {} writes", point.layer, part);
    case PointKind::before_norm:
      return fmt::format("{} {} unnormed", point.layer, part);
    case PointKind::final:
      return "end normed";
  }
  return point.name;
}

std::string ranks_text(const ProbeResults& results) {
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right, Align::right},
              {"place", "rank", "effective", "stable", "to rank one", "affine"});
  for (const PointMeasures& point : results.points) {
    const RankMeasures& r = point.ranks;
    table.row({point_label(point), spread_text(r.rank), spread_text(r.effective_rank), spread_text(r.stable_rank),
               spread_text(r.distance_to_rank_one), spread_text(r.affine_rank)});
  }
  return table.text();
}

std::string hypothesis_text(const Hypothesis& hypothesis) {
  return hypothesis.checked == 0 ? dash : fmt::format("{}/{}", hypothesis.holds, hypothesis.checked);
}

std::string norms_text(const ProbeResults& results) {
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right, Align::right, Align::right},
              {"norm", "|Δrank|", "|Δaffine|", "H1", "H2", "H3", "H4"});
  for (const NormMeasures& norm : results.norms) {
    const std::string name = norm.name.starts_with("blocks.") ? norm.name.substr(7) : norm.name;
    table.row({name, spread_text(norm.rank_change), spread_text(norm.affine_rank_change),
               hypothesis_text(norm.no_constant_row), hypothesis_text(norm.ones_outside),
               norm.gains_nonzero.holds > 0 ? "yes" : "no", hypothesis_text(norm.scales_outside)});
  }
  return table.text();
}

void add_mean(Spread& to, const Spread& of) {
  if (of.count > 0) {
    to.add(of.mean);
  }
}

std::string heads_by_layer(const ProbeResults& results) {
  Table table({Align::right, Align::right, Align::right, Align::right, Align::right},
              {"layer", "entropy/uniform", "σ1/σ2", "asymmetry", "dimension"});
  for (const LayerMeasures& layer : results.layers) {
    Spread relative, gap, asymmetry, dimension;
    for (const HeadMeasures& head : layer.heads) {
      add_mean(relative, head.relative_entropy);
      add_mean(gap, head.gap);
      add_mean(dimension, head.output_dimension);
      if (head.asymmetry) {
        asymmetry.add(*head.asymmetry);
      }
    }
    table.row({std::to_string(layer.layer), range_text(relative), range_text(gap), range_text(asymmetry),
               range_text(dimension)});
  }
  return table.text();
}

std::string heads_one_by_one(const ProbeResults& results) {
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right, Align::right},
              {"head", "entropy", "to uniform", "σ1/σ2", "asymmetry", "dimension"});
  for (const LayerMeasures& layer : results.layers) {
    for (size_t h = 0; h < layer.heads.size(); ++h) {
      const HeadMeasures& head = layer.heads[h];
      table.row({fmt::format("{}.{}", layer.layer, h), spread_text(head.entropy), spread_text(head.distance_to_uniform),
                 spread_text(head.gap), head.asymmetry ? number_text(*head.asymmetry) : dash,
                 spread_text(head.output_dimension)});
    }
  }
  return table.text();
}

std::string layers_text(const ProbeResults& results) {
  Table table({Align::right, Align::right, Align::right, Align::right, Align::right, Align::right, Align::right},
              {"layer", "rank", "of all", "2d - r", "MLP", "(H-1)k", "angles between heads"});
  for (const LayerMeasures& layer : results.layers) {
    Spread angles;  // degrees
    for (const HeadPair& pair : layer.pairs) {
      if (pair.smallest.count > 0) {
        angles.add(pair.smallest.mean * 180 / std::numbers::pi);
      }
    }
    table.row({std::to_string(layer.layer), spread_text(layer.multi_head_rank),
               layer.corpus_rank ? std::to_string(*layer.corpus_rank) : dash,
               layer.width_bound ? number_text(*layer.width_bound) : dash,
               layer.mlp_width ? std::to_string(*layer.mlp_width) : dash, std::to_string(layer.ambiguity_of_a_token),
               range_text(angles)});
  }
  return table.text();
}

// The mean over all heads, for each length of prefix.
std::string contexts_text(const ProbeResults& results) {
  std::map<int64_t, Spread> by_length;
  for (const LayerMeasures& layer : results.layers) {
    for (const HeadMeasures& head : layer.heads) {
      for (const ContextGap& context : head.by_context) {
        add_mean(by_length[context.tokens], context.gap);
      }
    }
  }
  if (by_length.empty()) {
    return "";
  }
  Table table({Align::right, Align::right, Align::right},
              {"tokens", "σ1/σ2, mean of heads", "least .. most of a head"});
  for (const auto& [tokens, gap] : by_length) {
    table.row({std::to_string(tokens), gap.count > 0 ? number_text(gap.mean) : dash,
               gap.count > 0 ? fmt::format("{} .. {}", number_text(gap.least), number_text(gap.most)) : dash});
  }
  return "\n" + wrapped("Gap of attention as the context grows", 0) + table.text();
}

const char* title_of(Collapse collapse) {
  switch (collapse) {
    case Collapse::rank_in_depth:
      return "rank in depth";
    case Collapse::rank_in_width:
      return "rank in width";
    case Collapse::head_channel:
      return "head channels";
    case Collapse::entropy:
      return "entropy";
  }
  return "";
}

std::string findings_text(const ProbeResults& results) {
  std::string text;
  for (const CollapseFinding& finding : results.findings) {
    const std::string number = finding.number ? number_text(*finding.number) : dash;
    const std::string where = finding.place.empty() ? "" : fmt::format("; worst at {}", finding.place);
    const std::string open = finding.undecided.empty() ? "" : finding.undecided + "; ";
    text += wrapped(fmt::format("{}{} = {} ({}{})", open, finding.measure, number, finding.rule, where), 30,
                    fmt::format("  {:<14} {:<12} ", title_of(finding.collapse), word(finding.verdict)));
  }
  return text;
}

}  // namespace

std::string text_of(const ProbeResults& results, HeadRows rows) {
  const auto title = [](const std::string& line) { return "\n" + wrapped(line, 0); };
  std::string text;
  if (results.partial) {
    text += wrapped(
        fmt::format("PARTIAL, interrupted: {} sequences were asked for, these come first", results.asked_sequences), 0);
  }
  const std::string tokens = results.shortest == results.longest
                                 ? std::to_string(results.longest)
                                 : fmt::format("{} to {}", results.shortest, results.longest);
  text += wrapped(fmt::format("{} {} of {} {}, computed in {}; rank: above {:g} of the largest singular value; "
                              "mean±standard deviation over the sequences",
                              results.sequences, results.sequences == 1 ? "sequence" : "sequences", tokens,
                              results.longest == 1 ? "token" : "tokens", results.dtype, results.threshold),
                  0);
  for (const std::string& intervention : results.interventions) {
    text += wrapped("changed: " + intervention, 2, "");
  }
  if (!results.interventions.empty()) {
    text += wrapped(
        fmt::format("which changes the output of the last layer by {} of its size", spread_text(results.effect)), 2,
        "");
  }
  text += title("Collapses") + findings_text(results);
  text += title("Tokens × width, from layer to layer") + ranks_text(results);
  if (!results.norms.empty()) {
    text += title("Norms: what they do to ranks, and in how many sequences H1 to H4 hold") + norms_text(results);
  }
  text += rows == HeadRows::heads ? title("Heads") + heads_one_by_one(results)
                                  : title("Heads of a layer: mean (least-most)") + heads_by_layer(results);
  text += contexts_text(results);
  text += title(
              "What the heads write together: rank r in a sequence and of all tokens; the smallest angle of two heads "
              "in degrees") +
          layers_text(results);
  text += title("Gauge dimension of the model: " + (results.gauge.dimension
                                                        ? with_commas(*results.gauge.dimension)
                                                        : "not determined, " + results.gauge.undetermined));
  return text;
}

}  // namespace pare
