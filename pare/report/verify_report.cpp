#include "pare/report/verify_report.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "pare/report/html.h"
#include "pare/support/text.h"

namespace pare {

namespace {

using Json = nlohmann::ordered_json;

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

std::string short_number(double value) {
  return value == 0 ? "0" : std::isfinite(value) ? fmt::format("{:.2e}", value) : "not a number";
}

std::string short_number(const std::optional<double>& value) {
  return value ? short_number(*value) : "–";
}

std::string plain_number(const std::optional<double>& value) {
  return value ? fmt::format("{:.6f}", *value) : "–";
}

ReportVerdict sameness(const Verification& v) {
  const std::string error = fmt::format("largest relative error {}, allowed there {}",
                                        short_number(v.metrics.max_relative_logit_error), short_number(v.allowed));
  const std::string where = v.coverage.complete ? "" : " on what was exercised";
  ReportVerdict verdict{.name = "Are they the same function?", .word = word(v.verdict), .number = error};
  switch (v.verdict) {
    case Verdict::identical:
      verdict.number = "every number is the same";
      verdict.words = "The same numbers in the same architecture: so for all inputs.";
      verdict.tone = Tone::good;
      break;
    case Verdict::proved:
      verdict.number = fmt::format("rows of weights moved by {} at most; {}", short_number(v.proof.moved), error);
      verdict.words = fmt::format(
          "Every tensor is explained by a symmetry that was found and checked: for all inputs. What rows are off by is "
          "rounding; allowed is {}.",
          v.allowed_for);
      verdict.tone = Tone::good;
      break;
    case Verdict::equivalent:
      verdict.words = fmt::format("To the last digits of float64{}.", where);
      verdict.tone = Tone::good;
      break;
    case Verdict::within_noise:
      verdict.word = "within noise";
      verdict.words = fmt::format("No further off than storing in {} costs{}.", word(v.floor_dtype), where);
      verdict.tone = Tone::fair;
      break;
    case Verdict::different:
      verdict.tone = Tone::bad;
      if (!v.differences.empty()) {
        verdict.number = fmt::format("{} settings differ", v.differences.size());
        verdict.words = "Settings decide what a model does: nothing else was looked at.";
      } else if (!v.coverage.known_other.empty()) {
        verdict.words = fmt::format("Known from the weights, and not asked: {}.", v.coverage.known_other.front());
      } else if (v.first_divergence) {
        verdict.words =
            fmt::format("First at {}, by {}.", v.first_divergence->tap, short_number(v.first_divergence->difference));
      }
      break;
  }
  return verdict;
}

std::vector<ReportVerdict> verdicts_of(const Json& reference, const Json& candidate, const Verification& v) {
  std::vector<ReportVerdict> list = {sameness(v)};
  if (v.differences.empty()) {
    const size_t explained = v.proof.relations.size(), open = v.proof.unexplained.size();
    list.push_back({"Is every tensor explained?", v.proof.complete ? "yes" : "not all",
                    fmt::format("{} explained, {} not", with_commas(static_cast<int64_t>(explained)), open),
                    v.proof.gaps.empty() ? "" : v.proof.gaps.front(), v.proof.complete ? Tone::good : Tone::neutral});
    const size_t missed = v.coverage.not_exercised.size();
    list.push_back({"Was everything looked at?", v.coverage.complete ? "yes" : "not all",
                    fmt::format("{} tokens in {} sequences", with_commas(v.tokens), with_commas(v.sequences)),
                    v.coverage.complete
                        ? "Every tensor is explained by the proof or exercised by the rows."
                        : fmt::format("{} not exercised, such as {}", missed, v.coverage.not_exercised.front()),
                    v.coverage.complete ? Tone::good : Tone::fair});
  }
  const int64_t before = reference.at("parameters"), after = candidate.at("parameters");
  list.push_back({"Size",
                  before == after  ? "the same"
                  : after < before ? "smaller"
                                   : "larger",
                  fmt::format("{} → {} parameters", with_commas(before), with_commas(after)),
                  before == after ? ""
                                  : fmt::format("{} {}", share_text(std::abs(before - after), before),
                                                after < before ? "fewer" : "more"),
                  after < before ? Tone::good : Tone::neutral});
  return list;
}

// Mean and deviation over sequences.
Series over_layers(const LayerGaps& gaps, const std::string& name, std::vector<double> LayerGap::*what) {
  Series series{.name = name};
  for (size_t layer = 0; layer < gaps.layers.size(); ++layer) {
    const std::vector<double>& values = gaps.layers[layer].*what;
    const double n = static_cast<double>(values.size());
    double mean = 0, squares = 0;
    for (const double value : values) {
      mean += value / n;
    }
    for (const double value : values) {
      squares += (value - mean) * (value - mean);
    }
    series.x.push_back(static_cast<double>(layer));
    series.y.push_back(n > 0 ? mean : unknown);
    series.spread.push_back(n > 1 ? std::sqrt(squares / (n - 1)) : unknown);
  }
  return series;
}

Figure gaps_figure(const Verification& v, std::vector<double> LayerGap::*what, Figure figure) {
  figure.x = {.words = "layer"};
  figure.y.log = true;
  figure.series = {over_layers(v.layers, "candidate", what),
                   over_layers(v.noise_by_layer, fmt::format("noise of {}", word(v.floor_dtype)), what)};
  return figure;
}

Figure heads_figure(const LayerGaps& gaps) {
  Figure figure{.kind = FigureKind::heat_map,
                .title = "Where attention differs: each head of each layer",
                .words =
                    "The largest difference of an attention probability over all sequences that were looked at. "
                    "White: none at all, or not comparable.",
                .x = {.words = "head"},
                .y = {.words = "layer"},
                .value = {.words = "largest difference of a probability", .log = true},
                .panels = {{}}};
  size_t heads = 0;
  for (const LayerGap& layer : gaps.layers) {
    heads = std::max(heads, layer.heads.size());
  }
  for (size_t head = 0; head < heads; ++head) {
    figure.x.names.push_back(std::to_string(head));
  }
  for (size_t layer = 0; layer < gaps.layers.size(); ++layer) {
    std::vector<double> row = gaps.layers[layer].heads;
    row.resize(heads, unknown);
    figure.y.names.push_back(std::to_string(layer));
    figure.panels[0].values.push_back(row);
  }
  return figure;
}

ReportSection layers_section(const Verification& v) {
  ReportSection section{
      .title = "Layer by layer",
      .words = fmt::format(
          "{} sequences, the worst among them, run through both models side by side. Beside the candidate stands the "
          "reference itself with every weight moved by one rounding of {}: what lies at or below that line is storage.",
          v.layers.layers.empty() ? 0 : v.layers.layers.front().residual.size(), word(v.floor_dtype))};
  if (!v.layers.note.empty()) {
    section.words += fmt::format(" Not everything could be compared: {}.", v.layers.note);
  }
  section.figures = {
      gaps_figure(v, &LayerGap::attention,
                  {.title = "Difference of attention, by layer",
                   .words = "The largest difference of a probability in a sequence; mean and standard deviation over "
                            "sequences. The same in every basis, as long as heads keep their order.",
                   .y = {.words = "largest difference of a probability"}}),
      gaps_figure(v, &LayerGap::residual,
                  {.title = "Difference of the stream, by layer",
                   .words = "‖reference − candidate‖ / ‖reference‖ of what each layer leaves, as it is stored. A "
                            "change of basis shows here too, and is no error.",
                   .y = {.words = "relative difference"}}),
      heads_figure(v.layers)};
  return section;
}

// So many rows are no larger than this. Zeros have no place on a logarithmic axis.
Series quantiles(const at::Tensor& values, const std::string& name) {
  Series series{.name = name};
  const at::Tensor sorted = std::get<0>(values.to(at::kDouble).flatten().sort()).contiguous();
  const int64_t count = sorted.size(0), points = std::min<int64_t>(count, 200);
  for (int64_t i = 0; i < points; ++i) {
    const int64_t row = points == 1 ? 0 : i * (count - 1) / (points - 1);
    const double value = sorted[row].item<double>();
    series.x.push_back(100.0 * static_cast<double>(row + 1) / static_cast<double>(count));
    series.y.push_back(value > 0 ? value : unknown);
  }
  return series;
}

Figure rows_figure(const Verification& v, const at::Tensor& rows, const at::Tensor& noise, Figure figure) {
  figure.x = {.words = "share of rows that are no larger", .unit = "%"};
  figure.y.log = true;
  figure.series = {quantiles(rows, "candidate"), quantiles(noise, fmt::format("noise of {}", word(v.floor_dtype)))};
  return figure;
}

ReportTable metrics_table(const Verification& v) {
  const Metrics &m = v.metrics, &n = v.noise_floor;
  return {
      "In numbers",
      {"over all rows", fmt::format("candidate in {}", word(v.compute_dtype)),
       fmt::format("noise of {}", word(v.floor_dtype))},
      {{"largest relative error", short_number(m.max_relative_logit_error), short_number(n.max_relative_logit_error)},
       {"mean KL, nats per row", short_number(m.mean_kl_nats), short_number(n.mean_kl_nats)},
       {"largest KL, nats", short_number(m.max_kl_nats), short_number(n.max_kl_nats)},
       {"same first choice", plain_number(m.top1_agreement), plain_number(n.top1_agreement)},
       {"nats per token, reference", plain_number(m.reference_nll_nats), plain_number(n.reference_nll_nats)},
       {"nats per token, candidate", plain_number(m.candidate_nll_nats), plain_number(n.candidate_nll_nats)}}};
}

ReportSection rows_section(const Verification& v) {
  ReportSection section{.title = "Row by row",
                        .words = fmt::format("Every row is one answer: {} in all, and each is judged alone.",
                                             with_commas(v.rows.error.numel())),
                        .tables = {metrics_table(v)}};
  section.figures.push_back(
      rows_figure(v, v.rows.error, v.noise_rows.error,
                  {.title = "How far off rows are",
                   .words = "Each row's largest difference over its scale, rows sorted. Rows without any difference "
                            "are left of where the line begins.",
                   .y = {.words = "relative error of a row"}}));
  if (v.rows.kl.defined()) {
    section.figures.push_back(rows_figure(v, v.rows.kl, v.noise_rows.kl,
                                          {.title = "How far off what rows predict is",
                                           .words = "KL(reference, candidate) over the vocabulary, rows sorted.",
                                           .y = {.words = "KL divergence of a row", .unit = "nats"}}));
  }
  return section;
}

ReportSection proof_section(const Proof& proof) {
  std::map<std::string, double> ways;
  Series residuals{.name = "tensors"};
  for (const Relation& relation : proof.relations) {
    ++ways[word(relation.how)];
    if (relation.residual > 0) {
      residuals.x.push_back(static_cast<double>(residuals.x.size() + 1));
      residuals.y.push_back(relation.residual);
      residuals.labels.push_back(fmt::format("{}: {}", relation.tensor, word(relation.how)));
    }
  }
  ReportSection section{.title = "Tensor by tensor",
                        .words =
                            "What each tensor of the candidate is of the reference, as a symmetry that was found "
                            "and checked element by element."};
  if (!ways.empty()) {
    Figure bars{.kind = FigureKind::bars,
                .title = "How tensors are explained",
                .x = {.words = "relation"},
                .y = {.words = "tensors"},
                .series = {{.name = "tensors"}}};
    for (const auto& [how, count] : ways) {
      bars.series[0].x.push_back(static_cast<double>(bars.x.names.size()));
      bars.series[0].y.push_back(count);
      bars.x.names.push_back(how);
    }
    section.figures.push_back(bars);
  }
  if (!residuals.x.empty()) {
    section.figures.push_back({.kind = FigureKind::scatter,
                               .title = "What is left over in each relation",
                               .words =
                                   "The largest |found − expected| over one rounding of what is expected; relations "
                                   "that hold exactly are not shown.",
                               .x = {.words = "tensors in the order of their names"},
                               .y = {.words = "left over", .unit = "roundings"},
                               .series = {residuals},
                               .marks = {{"the most that a fitted basis may leave", most_roundings}}});
  }
  ReportTable gaps{"Not explained", {"what, and why"}, {}};
  for (const std::string& gap : proof.gaps) {
    gaps.rows.push_back({gap});
  }
  if (!gaps.rows.empty()) {
    section.tables.push_back(gaps);
  }
  return section;
}

ReportSection checks_section(const Verification& v) {
  ReportSection section{.title = "Whether the check can see",
                        .words =
                            "Tensors of the candidate were disturbed on purpose, doubling until rows caught it; and "
                            "what no row exercised is listed."};
  ReportTable tests{"Disturbed on purpose", {"tensor", "caught from", "missed up to"}, {}};
  for (const SelfTest& test : v.self_tests) {
    tests.rows.push_back({test.tensor,
                          test.smallest_caught > 0 ? short_number(test.smallest_caught) : "nothing was caught",
                          test.largest_missed > 0 ? short_number(test.largest_missed) : "–"});
  }
  ReportTable missed{"Not exercised", {"what, and why"}, {}};
  for (const std::string& text : v.coverage.not_exercised) {
    missed.rows.push_back({text});
  }
  for (const ReportTable& table : {tests, missed}) {
    if (!table.rows.empty()) {
      section.tables.push_back(table);
    }
  }
  return section;
}

ReportSection settings_section(const Verification& v) {
  ReportTable table{"", {"setting", "reference", "candidate"}, {}};
  for (const SettingDifference& d : v.differences) {
    table.rows.push_back({d.setting, d.reference, d.candidate});
  }
  return {.title = "Settings that differ", .tables = {table}};
}

}  // namespace

Report verify_report(const Json& reference, const Json& candidate, const std::string& input_kind, const Verification& v,
                     const ReportOrigin& origin) {
  const std::string first = reference.at("path"), second = candidate.at("path");
  Report report{.title = fmt::format("“{}” against “{}”", name_of_path(second), name_of_path(first)),
                .summary =
                    "Whether a candidate is the same function as its reference: proved where every tensor is "
                    "explained, measured row by row, and set against the noise of storage.",
                .measured = facts_of(origin),
                .verdicts = verdicts_of(reference, candidate, v)};
  report.measured.push_back({"inputs", v.tokens > 0 ? fmt::format("{}, {} sequences, {} tokens, seed {}", input_kind,
                                                                  v.sequences, with_commas(v.tokens), v.seed)
                                                    : "none"});
  for (const auto& [side, described] : {std::pair{"reference", &reference}, std::pair{"candidate", &candidate}}) {
    report.measured.push_back(
        {side, fmt::format("{}, {}, {}", described->at("path").get<std::string>(),
                           described->at("family").get<std::string>(), described->at("dtype").get<std::string>())});
  }
  report.fingerprint = hashes_of(reference, "reference: ");
  for (const Fact& fact : hashes_of(candidate, "candidate: ")) {
    report.fingerprint.push_back(fact);
  }
  if (!v.differences.empty()) {
    report.sections = {settings_section(v)};
    return report;
  }
  if (!v.layers.layers.empty()) {
    report.sections.push_back(layers_section(v));
  }
  report.sections.push_back(rows_section(v));
  for (const ReportSection& section : {proof_section(v.proof), checks_section(v)}) {
    if (!section.figures.empty() || !section.tables.empty()) {
      report.sections.push_back(section);
    }
  }
  return report;
}

}  // namespace pare
