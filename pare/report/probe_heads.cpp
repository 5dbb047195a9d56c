#include <fmt/format.h>

#include <map>
#include <numbers>

#include "pare/report/probe_sections.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

constexpr double degrees = 180 / std::numbers::pi;

// A cell for each head of each layer.
template <typename Number>
Figure head_map(const ProbeResults& results, Figure figure, const Number& number) {
  figure.kind = FigureKind::heat_map;
  figure.x = {.words = "head", .names = head_names(results)};
  figure.y = {.words = "layer"};
  Panel panel;
  for (const LayerMeasures& layer : results.layers) {
    std::vector<double> row(figure.x.names.size(), not_known);
    for (size_t head = 0; head < layer.heads.size(); ++head) {
      row[head] = number(layer.heads[head]);
    }
    figure.y.names.push_back(std::to_string(layer.layer));
    panel.values.push_back(std::move(row));
  }
  figure.panels = {std::move(panel)};
  return figure;
}

// Mean over the heads of a layer; the spread is the heads'.
Series over_heads(const ProbeResults& results, const std::string& name, Spread HeadMeasures::*what) {
  return by_layer(results, name, [what](const LayerMeasures& layer) {
    return mapped(layer.heads, [&](const HeadMeasures& head) { return mean_of(head.*what); });
  });
}

// What the same queries would have if they attended to everything alike.
Series uniform_entropy(const ProbeResults& results) {
  Series entropy = over_heads(results, "uniform attention", &HeadMeasures::entropy);
  const Series distance = over_heads(results, "", &HeadMeasures::distance_to_uniform);
  for (size_t i = 0; i < entropy.y.size(); ++i) {
    entropy.y[i] += distance.y[i];
  }
  entropy.spread.clear();
  return entropy;
}

Figure gap_by_context(const ProbeResults& results) {
  Figure figure{.title = "σ₁/σ₂ of the attention matrix as the context grows",
                .words =
                    "On the first tokens of each sequence; mean over the heads of each layer. If the ratio grows with "
                    "the context, the attention matrix comes nearer to rank one.",
                .x = {.words = "tokens in the prefix", .log = true},
                .y = {.words = "σ₁/σ₂", .log = true, .least = 1},
                .order_words = "layer"};
  for (const LayerMeasures& layer : results.layers) {
    std::map<int64_t, std::vector<double>> by_length;
    for (const HeadMeasures& head : layer.heads) {
      for (const ContextGap& context : head.by_context) {
        by_length[context.tokens].push_back(mean_of(context.gap));
      }
    }
    Series series{.name = fmt::format("layer {}", layer.layer), .order = static_cast<double>(layer.layer)};
    for (const auto& [tokens, gaps] : by_length) {
      add_point(series, static_cast<double>(tokens), over(gaps).mean);
    }
    if (!series.x.empty()) {
      figure.series.push_back(std::move(series));
    }
  }
  return figure;
}

Figure asymmetry_against_dimension(const ProbeResults& results) {
  Figure figure{.kind = FigureKind::scatter,
                .title = "Asymmetry and output dimension of each head",
                .words = "One point for each head: do directional heads use fewer output directions?",
                .x = {.words = "asymmetry ‖Mₐ‖/‖M‖"},
                .y = {.words = "output dimension of a head", .least = 0},
                .series = {{.name = "heads"}}};
  Series& points = figure.series[0];
  for (const LayerMeasures& layer : results.layers) {
    for (size_t h = 0; h < layer.heads.size(); ++h) {
      const HeadMeasures& head = layer.heads[h];
      if (head.asymmetry) {
        add_point(points, *head.asymmetry, mean_of(head.output_dimension));
        points.labels.push_back(fmt::format("layer {}, head {}", layer.layer, h));
      }
    }
  }
  return figure;
}

Figure angle_matrices(const ProbeResults& results, const std::string& title, const std::string& words,
                      Spread HeadPair::*what) {
  Figure figure{.kind = FigureKind::matrix,
                .title = title,
                .words = words,
                .x = {.words = "head", .names = head_names(results)},
                .y = {.words = "head", .names = head_names(results)},
                .value = {.words = "angle", .unit = "degrees"},
                .panel_words = "layer"};
  const size_t heads = figure.x.names.size();
  for (const LayerMeasures& layer : results.layers) {
    Panel panel{std::to_string(layer.layer), std::vector(heads, std::vector(heads, not_known))};
    for (const HeadPair& pair : layer.pairs) {
      const double angle = mean_of(pair.*what) * degrees;
      panel.values[pair.first][pair.second] = angle;
      panel.values[pair.second][pair.first] = angle;
    }
    if (!layer.pairs.empty()) {
      figure.panels.push_back(std::move(panel));
    }
  }
  return figure;
}

// Mean over the pairs of heads of a layer; the spread is the pairs'.
Series over_pairs(const ProbeResults& results, const std::string& name, Spread HeadPair::*what) {
  return by_layer(results, name, [what](const LayerMeasures& layer) {
    return mapped(layer.pairs, [&](const HeadPair& pair) { return mean_of(pair.*what) * degrees; });
  });
}

}  // namespace

ReportSection entropy_section(const ProbeResults& results) {
  ReportSection section{.title = "Attention entropy",
                        .words =
                            "How many tokens does a query attend to? The entropy is 0 for a single token, and the "
                            "logarithm of the number of visible tokens if all get the same attention."};
  if (results.layers.empty()) {
    return section;
  }
  section.figures = {
      {.title = "Attention entropy, by layer",
       .words = "Mean over queries and sequences. The band is one standard deviation over the heads of a layer.",
       .x = {.words = "layer"},
       .y = {.words = "attention entropy", .unit = "nats", .least = 0},
       .series = {over_heads(results, "mean over heads", &HeadMeasures::entropy), uniform_entropy(results)}},
      head_map(results,
               {.title = "Attention entropy of each head",
                .words = "Relative to the entropy of uniform attention: 0 is one token, 1 is all tokens alike.",
                .value = {.words = "relative entropy"}},
               [](const HeadMeasures& head) { return mean_of(head.relative_entropy); })};
  return section;
}

ReportSection heads_section(const ProbeResults& results) {
  ReportSection section{.title = "Heads",
                        .words = "What each head of each layer attends to, and how many directions its output has."};
  if (results.layers.empty()) {
    return section;
  }
  section.figures = {
      head_map(
          results,
          {.title = "Directional asymmetry of each head",
           .words = "‖Mₐ‖/‖M‖, with Mₐ the antisymmetric part of M = W_Q W_Kᵀ. 0: two tokens have the same score in "
                    "both directions. 1: the score changes its sign. A random M has 0.71.",
           .value = {.words = "asymmetry"}},
          [](const HeadMeasures& head) { return head.asymmetry.value_or(not_known); }),
      head_map(
          results,
          {.title = "σ₁/σ₂ of each head's attention matrix",
           .words = "The ratio of the two largest singular values. Large: near rank one, all queries attend to the "
                    "same tokens.",
           .value = {.words = "σ₁/σ₂", .log = true}},
          [](const HeadMeasures& head) { return mean_of(head.gap); }),
      head_map(results,
               {.title = "Output dimension of each head",
                .words = "Rank of what a head adds to the residual stream in a sequence, mean over sequences.",
                .value = {.words = "output dimension"}},
               [](const HeadMeasures& head) { return mean_of(head.output_dimension); })};
  Figure gaps = gap_by_context(results), scatter = asymmetry_against_dimension(results);
  if (!gaps.series.empty()) {
    section.figures.push_back(std::move(gaps));
  }
  if (!scatter.series[0].x.empty()) {
    section.figures.push_back(std::move(scatter));
  }
  return section;
}

ReportSection angles_section(const ProbeResults& results) {
  ReportSection section{.title = "Principal angles between heads",
                        .words =
                            "Do heads write into the same directions? At 0° two heads share a direction; at 90° they "
                            "share none. Random subspaces of few dimensions in a wide space are near 90°."};
  Figure smallest = angle_matrices(results, "Smallest principal angle between two heads' outputs",
                                   "Mean over sequences. The slider chooses the layer.", &HeadPair::smallest);
  if (smallest.panels.empty()) {
    return section;
  }
  section.figures = {
      std::move(smallest),
      angle_matrices(results, "Mean principal angle between two heads' outputs",
                     "Mean over sequences. The slider chooses the layer.", &HeadPair::mean),
      {.title = "Principal angles between heads, by layer",
       .words = "Mean over all pairs of heads. The band is one standard deviation over pairs.",
       .x = {.words = "layer"},
       .y = {.words = "angle", .unit = "degrees", .least = 0, .most = 90},
       .series = {over_pairs(results, "smallest", &HeadPair::smallest), over_pairs(results, "mean", &HeadPair::mean)},
       .marks = {{"no shared direction", 90}}}};
  return section;
}

}  // namespace pare
