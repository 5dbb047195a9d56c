#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/report/html.h"
#include "pare/report/probe_sections.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

// Layers are whole numbers; between attention and MLP is half a layer further.
double place_of(const PointMeasures& point) {
  return static_cast<double>(point.layer) + (point.name.ends_with(".mid") ? 0.5 : 0);
}

Series along_stream(const ProbeResults& results, const std::string& name, Spread RankMeasures::*what) {
  Series series{.name = name};
  for (const PointMeasures& point : results.points) {
    if (point.kind == PointKind::stream) {
      add_point(series, place_of(point), point.ranks.*what);
    }
  }
  return series;
}

Series at_sublayers(const ProbeResults& results, const std::string& name, PointKind kind, Sublayer sublayer) {
  Series series{.name = name};
  for (const PointMeasures& point : results.points) {
    if (point.kind == kind && point.sublayer == sublayer) {
      add_point(series, static_cast<double>(point.layer), point.ranks.effective_rank);
    }
  }
  return series;
}

const std::string layers_and_halves = "layers passed (half: between attention and MLP)";

std::string held(const Hypothesis& hypothesis) {
  if (!hypothesis.inapplicable.empty()) {
    return "does not apply: " + hypothesis.inapplicable;
  }
  if (hypothesis.checked == 0) {
    return "not checked";
  }
  return fmt::format("{} of {} ({})", hypothesis.holds, hypothesis.checked, number_text(mean_of(hypothesis.number)));
}

Series by_norm(const ProbeResults& results, const std::string& name, Spread NormMeasures::*what) {
  Series series{.name = name};
  for (size_t i = 0; i < results.norms.size(); ++i) {
    add_point(series, static_cast<double>(i), results.norms[i].*what);
  }
  return series;
}

std::string whole_number(const std::optional<int64_t>& value) {
  return value ? with_commas(*value) : "–";
}

// Layers that follow each other with the same numbers are one row: "0 to 4".
void add_layer(ReportTable& table, int64_t layer, std::vector<std::string> numbers) {
  if (!table.rows.empty() && std::equal(numbers.begin(), numbers.end(), table.rows.back().begin() + 1)) {
    std::string& layers = table.rows.back().front();
    layers = fmt::format("{} to {}", layers.substr(0, layers.find(' ')), layer);
    return;
  }
  numbers.insert(numbers.begin(), std::to_string(layer));
  table.rows.push_back(std::move(numbers));
}

}  // namespace

void add_point(Series& series, double x, double value) {
  series.x.push_back(x);
  series.y.push_back(value);
}

void add_point(Series& series, double x, const MeanAndDeviation& value) {
  add_point(series, x, value.mean);
  series.spread.push_back(value.deviation);
}

void add_point(Series& series, double x, const Spread& value) {
  add_point(series, x, MeanAndDeviation{mean_of(value), value.deviation().value_or(not_known)});
}

Series by_layer(const ProbeResults& results, const std::string& name, const LayerNumbers& numbers) {
  Series series{.name = name};
  for (const LayerMeasures& layer : results.layers) {
    add_point(series, static_cast<double>(layer.layer), over(numbers(layer)));
  }
  return series;
}

std::vector<std::string> head_names(const ProbeResults& results) {
  size_t heads = 0;
  for (const LayerMeasures& layer : results.layers) {
    heads = std::max(heads, layer.heads.size());
  }
  std::vector<std::string> names;
  for (size_t head = 0; head < heads; ++head) {
    names.push_back(std::to_string(head));
  }
  return names;
}

double mean_of(const Spread& value) {
  return value.average().value_or(not_known);
}

MeanAndDeviation over(const std::vector<double>& values) {
  double sum = 0, squares = 0, count = 0;
  for (const double value : values) {
    sum += std::isfinite(value) ? value : 0;
    count += std::isfinite(value) ? 1 : 0;
  }
  if (count == 0) {
    return {not_known, not_known};
  }
  for (const double value : values) {
    squares += std::isfinite(value) ? (value - sum / count) * (value - sum / count) : 0;
  }
  return {sum / count, count > 1 ? std::sqrt(squares / (count - 1)) : not_known};
}

ReportSection rank_section(const ProbeResults& results) {
  const double most = static_cast<double>(std::min(results.longest, results.width));
  Figure ranks{
      .title = "Rank of the residual stream, by layer",
      .words = fmt::format("How many directions the tokens of a sequence span. Numerical rank: singular values above "
                           "{:g} of the largest. Affine rank: the same after the mean token is subtracted. Effective "
                           "rank: exp of the entropy of the singular values. Stable rank: Σσ²/σ₁². Mean and standard "
                           "deviation over sequences.",
                           results.threshold),
      .x = {.words = layers_and_halves},
      .y = {.words = "rank", .least = 0, .most = most},
      .series = {along_stream(results, "numerical rank", &RankMeasures::rank),
                 along_stream(results, "affine rank", &RankMeasures::affine_rank),
                 along_stream(results, "effective rank", &RankMeasures::effective_rank),
                 along_stream(results, "stable rank", &RankMeasures::stable_rank)},
      .marks = {{fmt::format("largest possible: {}", most), most}}};
  Figure distance{.title = "Distance of the residual stream to rank one, by layer",
                  .words =
                      "‖X − 1x̄ᵀ‖ / ‖X‖, with x̄ the mean token: 0 where all tokens are the same vector, at most 1. "
                      "Mean and standard deviation over sequences.",
                  .x = {.words = layers_and_halves},
                  .y = {.words = "distance to rank one", .least = 0, .most = 1},
                  .series = {along_stream(results, "residual stream", &RankMeasures::distance_to_rank_one)}};
  Figure sublayers{.title = "Effective rank at the input and output of sublayers",
                   .words =
                       "Input: after the norm, if one comes first. Output: what the sublayer adds to the residual "
                       "stream. Mean and standard deviation over sequences.",
                   .x = {.words = "layer"},
                   .y = {.words = "effective rank", .least = 0, .most = most}};
  for (const auto& [name, kind, sublayer] : {std::tuple{"attention input", PointKind::read, Sublayer::attention},
                                             std::tuple{"attention output", PointKind::written, Sublayer::attention},
                                             std::tuple{"MLP input", PointKind::read, Sublayer::mlp},
                                             std::tuple{"MLP output", PointKind::written, Sublayer::mlp}}) {
    Series series = at_sublayers(results, name, kind, sublayer);
    if (!series.x.empty()) {
      sublayers.series.push_back(std::move(series));
    }
  }
  ReportSection section{.title = "Rank",
                        .words = "Do the tokens of a sequence stay different as they pass through the layers?"};
  section.figures = {std::move(ranks), std::move(distance)};
  if (!sublayers.series.empty()) {
    section.figures.push_back(std::move(sublayers));
  }
  return section;
}

ReportSection spectra_section(const ProbeResults& results) {
  Figure figure{.title = "Singular values of the residual stream after each layer",
                .words =
                    "Relative to the largest, mean over sequences. The faster a line falls, the fewer directions the "
                    "tokens use. The dashed line is the threshold of the numerical rank.",
                .x = {.words = "index of the singular value"},
                .y = {.words = "singular value relative to the largest", .log = true},
                .order_words = "layers passed",
                .marks = {{"threshold", results.threshold}}};
  for (const PointMeasures& point : results.points) {
    if (point.kind != PointKind::stream || point.name.ends_with(".mid") || point.ranks.spectrum.empty()) {
      continue;
    }
    Series series{.name = fmt::format("after {} layers", point.layer), .order = static_cast<double>(point.layer)};
    for (size_t i = 0; i < point.ranks.spectrum.size(); ++i) {
      add_point(series, static_cast<double>(i + 1), mean_of(point.ranks.spectrum[i]));
    }
    figure.series.push_back(std::move(series));
  }
  ReportSection section{.title = "Spectra", .words = "The ranks above are computed from these singular values."};
  if (!figure.series.empty()) {
    section.figures.push_back(std::move(figure));
  }
  return section;
}

ReportSection norms_section(const ProbeResults& results) {
  ReportSection section{.title = "Norms",
                        .words =
                            "Does a norm change the rank? A theorem says that it does not, if four hypotheses (H1 to "
                            "H4) hold. Each is checked in every sequence. They are sufficient, not necessary."};
  if (results.norms.empty()) {
    return section;
  }
  Figure changes{.kind = FigureKind::bars,
                 .title = "Change of rank by each norm",
                 .words = "|rank after − rank before|, mean and standard deviation over sequences.",
                 .x = {.words = "norm"},
                 .y = {.words = "change of rank", .least = 0},
                 .series = {by_norm(results, "numerical rank", &NormMeasures::rank_change),
                            by_norm(results, "affine rank", &NormMeasures::affine_rank_change)}};
  ReportTable table{"Hypotheses: in how many sequences each holds, and the mean of the number that decides it",
                    {"norm", "H1: no token is constant", "H2: the all-ones vector is not in the row space",
                     "H3: no gain is zero", "H4: the vector of scales is not in the column space"},
                    {}};
  for (const NormMeasures& norm : results.norms) {
    changes.x.names.push_back(norm.name);
    table.rows.push_back({norm.name, held(norm.no_constant_row), held(norm.ones_outside), held(norm.gains_nonzero),
                          held(norm.scales_outside)});
  }
  section.figures = {std::move(changes)};
  section.tables = {std::move(table)};
  return section;
}

ReportSection width_section(const ProbeResults& results) {
  Series bound{.name = "bound 2d − r"}, width{.name = "MLP width"}, rank{.name = "r, rank of the attention output"};
  ReportTable table{"What the attention output does not determine",
                    {"layers", "unknowns when one head is read from the sum of all, in a sequence", "per token",
                     "dimension of the value-output symmetry"},
                    {}};
  for (const LayerMeasures& layer : results.layers) {
    const double x = static_cast<double>(layer.layer);
    add_point(bound, x, layer.width_bound.value_or(not_known));
    add_point(width, x, layer.mlp_width ? static_cast<double>(*layer.mlp_width) : not_known);
    add_point(rank, x, layer.corpus_rank ? static_cast<double>(*layer.corpus_rank) : not_known);
    add_layer(table, layer.layer,
              {number_text(mean_of(layer.recovery_ambiguity)), std::to_string(layer.ambiguity_of_a_token),
               std::to_string(layer.value_output_gauge)});
  }
  ReportSection section{
      .title = "Width",
      .words =
          fmt::format("Is the MLP wide enough for what attention hands to it? The bound asks for a width of 2d − r, "
                      "where d is the width of the model and r the rank of the attention output. All exact "
                      "symmetries of the model together: {}.",
                      results.gauge.dimension ? whole_number(results.gauge.dimension) + " dimensions"
                                              : results.gauge.undetermined)};
  if (results.layers.empty()) {
    return section;
  }
  section.figures = {{.title = "MLP width and its bound, by layer",
                      .words = "r is the rank of the sum of all heads, over all tokens of all sequences.",
                      .x = {.words = "layer"},
                      .y = {.words = "dimensions"},
                      .series = {std::move(bound), std::move(width), std::move(rank)},
                      .marks = {{"d, the model width", static_cast<double>(results.width)}}}};
  section.tables = {std::move(table)};
  return section;
}

}  // namespace pare
