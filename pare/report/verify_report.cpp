#include "pare/report/pages.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "pare/support/numbers.h"
#include "pare/support/table.h"
#include "pare/verify/verify.h"

namespace pare {

namespace {

using Json = nlohmann::ordered_json;

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

// "1.08·10⁻⁷": no line ends within it, as after the hyphen of 1.08e-07.
std::string short_number(double value) {
  if (value == 0 || !std::isfinite(value)) {
    return value == 0 ? "0" : "not a number";
  }
  const std::string text = fmt::format("{:.2e}", value);
  const size_t e = text.find('e');
  const int power = std::stoi(text.substr(e + 1));
  if (std::abs(power) <= 2) {
    return fmt::format("{:.3g}", value);
  }
  constexpr std::array<const char*, 10> raised = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string exponent = power < 0 ? "⁻" : "";
  for (const char digit : std::to_string(std::abs(power))) {
    exponent += raised.at(digit - '0');
  }
  return fmt::format("{}·10{}", text.substr(0, e), exponent);
}

std::string short_number(const std::optional<double>& value) {
  return value ? short_number(*value) : "–";
}

std::string plain_number(const std::optional<double>& value) {
  return value ? fmt::format("{:.6f}", *value) : "–";
}

ReportVerdict sameness(const Verification& v) {
  const std::string error = fmt::format("largest relative error {} (allowed: {})",
                                        short_number(v.metrics.max_relative_logit_error), short_number(v.allowed));
  const std::string where = v.coverage.complete ? "" : ", on the inputs that were tried";
  ReportVerdict verdict{.name = "Are they the same function?", .word = word(v.verdict), .number = error};
  switch (v.verdict) {
    case Verdict::identical:
      verdict.number = "every weight is the same";
      verdict.words = "The same weights in the same architecture: the same function for all inputs.";
      verdict.tone = Tone::good;
      break;
    case Verdict::proved:
      verdict.words =
          "For all inputs: every tensor follows from the reference by a symmetry that was found and checked. What "
          "remains is rounding.";
      verdict.tone = Tone::good;
      break;
    case Verdict::equivalent:
      verdict.words = fmt::format("The outputs agree to the last digits of float64{}.", where);
      verdict.tone = Tone::good;
      break;
    case Verdict::within_noise:
      verdict.word = "within noise";
      verdict.words =
          fmt::format("The outputs differ no more than by rounding the weights to {}{}.", word(v.floor_dtype), where);
      verdict.tone = Tone::fair;
      break;
    case Verdict::quantised:
      verdict.words = fmt::format(
          "Every tensor can be the reference's: in blocks ({}), rounded, or as it is. All settings are the same.",
          v.quantisation->types);
      verdict.tone = Tone::fair;
      break;
    case Verdict::different:
      verdict.tone = Tone::bad;
      if (!v.differences.empty()) {
        verdict.number = fmt::format("{} settings differ", v.differences.size());
        verdict.words = "Such settings change the function, so nothing else was compared.";
      } else if (!v.coverage.known_other.empty()) {
        verdict.words =
            fmt::format("Seen in the weights, without an input that shows it: {}.", v.coverage.known_other.front());
      } else if (v.first_divergence) {
        verdict.words = fmt::format("The first difference is in {}, of size {}.", v.first_divergence->tap,
                                    short_number(v.first_divergence->difference));
      }
      break;
  }
  return verdict;
}

ReportVerdict stored_verdict(const Quantisation& q) {
  const std::vector<const ComparedTensor*> others = q.others();
  const size_t wrong = others.size() + q.settings.size();
  return {"Can every tensor be the reference's?", wrong == 0 ? "yes" : "no",
          fmt::format("{} tensors, {} of them not", q.tensors.size(), others.size()),
          !q.settings.empty() ? q.settings.front() + "."
          : !others.empty()   ? fmt::format("{}: {}.", others.front()->tensor, others.front()->reason)
                              : "Levels keep the order of weights, and no weight is too far from what is stored.",
          wrong == 0 ? Tone::good : Tone::bad};
}

std::vector<ReportVerdict> verdicts_of(const Json& reference, const Json& candidate, const Verification& v) {
  std::vector<ReportVerdict> list = {sameness(v)};
  if (v.quantisation) {
    list.push_back(stored_verdict(*v.quantisation));
  } else if (v.differences.empty()) {
    const size_t explained = v.proof.relations.size(), open = v.proof.unexplained.size();
    list.push_back({"Does every tensor follow from the reference?", v.proof.complete ? "yes" : "no",
                    fmt::format("{} tensors do, {} do not", with_commas(static_cast<int64_t>(explained)), open),
                    v.proof.gaps.empty() ? "Each by an exact relation, up to rounding." : v.proof.gaps.front() + ".",
                    v.proof.complete ? Tone::good : Tone::neutral});
    const size_t missed = v.coverage.not_exercised.size();
    list.push_back({"Was everything checked?", v.coverage.complete ? "yes" : "no",
                    fmt::format("{} tokens in {} sequences", with_commas(v.tokens), with_commas(v.sequences)),
                    v.coverage.complete ? "Every tensor is covered, by the proof or by these inputs."
                                        : fmt::format("Not covered by these inputs, {} in all: {}.", missed,
                                                      v.coverage.not_exercised.front()),
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
                  after < before && v.verdict != Verdict::different ? Tone::good : Tone::neutral});
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
  figure.series = {over_layers(v.layers, "candidate", what)};
  if (!v.noise_by_layer.layers.empty()) {
    figure.series.push_back(over_layers(v.noise_by_layer, fmt::format("noise of {}", word(v.floor_dtype)), what));
  }
  return figure;
}

Figure heads_figure(const LayerGaps& gaps) {
  Figure figure{.kind = FigureKind::heat_map,
                .title = "Difference of attention, by head",
                .words =
                    "The largest difference of an attention probability over these sequences. Empty cells: no "
                    "difference at all, or not comparable.",
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
      .words = fmt::format("{} sequences, the worst one among them, were run through both models. For comparison, the "
                           "second line is the reference against itself with every weight moved by one rounding of {}: "
                           "what is at or below it can be explained by rounding.",
                           v.layers.layers.empty() ? 0 : v.layers.layers.front().residual.size(), word(v.floor_dtype))};
  if (!v.layers.note.empty()) {
    section.words += fmt::format(" Not all of it could be compared: {}.", v.layers.note);
  }
  section.figures = {
      gaps_figure(v, &LayerGap::attention,
                  {.title = "Difference of attention, by layer",
                   .words = "The largest difference of an attention probability in a sequence; mean and standard "
                            "deviation over sequences. It does not depend on the basis of the residual stream.",
                   .y = {.words = "largest difference of a probability", .least = 0, .most = 1}}),
      gaps_figure(v, &LayerGap::residual,
                  {.title = "Difference of the residual stream, by layer",
                   .words = "‖reference − candidate‖ / ‖reference‖ after each layer; mean and standard deviation over "
                            "sequences. A change of basis shows here too, and is not an error.",
                   .y = {.words = "relative difference", .least = 0}}),
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
  figure.x = {.words = "share of rows with this error or less", .unit = "%"};
  figure.y.log = true;
  figure.series = {quantiles(rows, "candidate")};
  if (noise.defined()) {
    figure.series.push_back(quantiles(noise, fmt::format("noise of {}", word(v.floor_dtype))));
  }
  return figure;
}

ReportTable metrics_table(const Verification& v) {
  const Metrics &m = v.metrics, &n = v.noise_floor;
  if (v.quantisation) {
    return {"Over all rows",
            {"measure", fmt::format("candidate in {}", word(v.compute_dtype))},
            {{"largest relative error", short_number(m.max_relative_logit_error)},
             {"mean KL, nats per row", short_number(m.mean_kl_nats)},
             {"largest KL, nats", short_number(m.max_kl_nats)},
             {"share of rows with the same top prediction", plain_number(m.top1_agreement)},
             {"loss of the reference, nats per token", plain_number(m.reference_nll_nats)},
             {"loss of the candidate, nats per token", plain_number(m.candidate_nll_nats)}}};
  }
  return {
      "Over all rows",
      {"measure", fmt::format("candidate in {}", word(v.compute_dtype)),
       fmt::format("noise of {}", word(v.floor_dtype))},
      {{"largest relative error", short_number(m.max_relative_logit_error), short_number(n.max_relative_logit_error)},
       {"mean KL, nats per row", short_number(m.mean_kl_nats), short_number(n.mean_kl_nats)},
       {"largest KL, nats", short_number(m.max_kl_nats), short_number(n.max_kl_nats)},
       {"share of rows with the same top prediction", plain_number(m.top1_agreement), plain_number(n.top1_agreement)},
       {"loss of the reference, nats per token", plain_number(m.reference_nll_nats),
        plain_number(n.reference_nll_nats)},
       {"loss of the candidate, nats per token", plain_number(m.candidate_nll_nats),
        plain_number(n.candidate_nll_nats)}}};
}

ReportSection rows_section(const Verification& v) {
  ReportSection section{.title = "Row by row",
                        .words = fmt::format("A row is one output of the model, such as the logits of one token. There "
                                             "are {}, and each is judged on its own.{}",
                                             with_commas(v.rows.error.numel()),
                                             v.allowed_for.empty() ? "" : fmt::format(" Allowed: {}.", v.allowed_for)),
                        .tables = {metrics_table(v)}};
  section.figures.push_back(rows_figure(
      v, v.rows.error, v.noise_rows.error,
      {.title = "Relative error of the rows",
       .words = "The largest difference in a row, relative to the size of the row; rows sorted. Rows without "
                "any difference are left of where the line begins.",
       .y = {.words = "relative error"}}));
  if (v.rows.kl.defined()) {
    section.figures.push_back(rows_figure(v, v.rows.kl, v.noise_rows.kl,
                                          {.title = "KL divergence of the predictions",
                                           .words = "KL(reference ‖ candidate) over the vocabulary; rows sorted.",
                                           .y = {.words = "KL divergence", .unit = "nats"}}));
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
                            "How each tensor of the candidate follows from the reference. Every relation was found "
                            "from the weights and checked element by element."};
  if (proof.complete) {
    section.words += fmt::format(" Rounding moved rows of weights by at most {}.", short_number(proof.moved));
  }
  if (!ways.empty()) {
    Figure bars{.kind = FigureKind::bars,
                .title = "Relations between the tensors",
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
                               .title = "Residual of each relation",
                               .words =
                                   "The largest |found − expected|, in units of one rounding of the expected value. "
                                   "Relations that hold exactly are not shown.",
                               .x = {.words = "tensors, in the order of their names"},
                               .y = {.words = "residual", .unit = "roundings"},
                               .series = {residuals},
                               .marks = {{"limit for a fitted basis", most_roundings}}});
  }
  ReportTable gaps{"Tensors that do not follow", {"tensor and reason"}, {}};
  for (const std::string& gap : proof.gaps) {
    gaps.rows.push_back({gap});
  }
  if (!gaps.rows.empty()) {
    section.tables.push_back(gaps);
  }
  return section;
}

ReportSection quantisation_section(const Quantisation& q) {
  ReportSection section{.title = "Tensor by tensor",
                        .words = fmt::format("Stored in blocks: {}. What quantising did to each tensor: the length of "
                                             "the difference over the length of the reference's tensor.",
                                             q.types)};
  std::map<StoredAs, Series> ways;
  double place = 0;
  for (const ComparedTensor& tensor : q.tensors) {
    ++place;
    if (tensor.relative_error > 0) {
      Series& series = ways[tensor.how];
      series.name = word(tensor.how);
      series.x.push_back(place);
      series.y.push_back(tensor.relative_error);
      series.labels.push_back(tensor.tensor);
    }
  }
  Figure figure{.kind = FigureKind::scatter,
                .title = "Relative difference of each tensor",
                .words = "Tensors with the same numbers are not shown.",
                .x = {.words = "tensors, in the order of the model"},
                .y = {.words = "relative difference", .log = true}};
  for (auto& [how, series] : ways) {
    figure.series.push_back(std::move(series));
  }
  section.figures.push_back(std::move(figure));
  ReportTable others{"Tensors that are not the reference's", {"tensor", "why"}, {}};
  for (const ComparedTensor* tensor : q.others()) {
    others.rows.push_back({tensor->tensor, tensor->reason});
  }
  if (!others.rows.empty()) {
    section.tables.push_back(others);
  }
  return section;
}

std::string with_error(const WithError& value) {
  return fmt::format("{} ± {}", short_number(value.value), short_number(value.error));
}

ReportSection text_section(const Verification& v) {
  const TextStatistics& s = *v.statistics;
  ReportSection section{.title = "On what was given",
                        .words = fmt::format("{} rows, {} of them with a next token. ± is one standard error, with "
                                             "rows counted as independent.",
                                             with_commas(s.rows), with_commas(s.predicted)),
                        .tables = {{"",
                                    {"measure", "value"},
                                    {{"mean KL, nats", with_error(s.mean_kl)},
                                     {"KL of the median row", short_number(s.median_kl)},
                                     {"KL that 99 of 100 rows are below", short_number(s.high_kl)},
                                     {"perplexity of the reference", with_error(s.reference_perplexity)},
                                     {"perplexity of the candidate", with_error(s.candidate_perplexity)},
                                     {"RMS change of the right token's probability", with_error(s.rms_probability)},
                                     {"share of rows with the same first choice", with_error(s.same_top)}}}}};
  if (!v.costs.empty()) {
    Series bars{.name = "mean KL"};
    Figure figure{.kind = FigureKind::bars,
                  .title = "What quantising one tensor alone costs",
                  .words = "The mean KL if this tensor takes the place of the reference's and all others stay.",
                  .x = {.words = "tensor"},
                  .y = {.words = "mean KL", .unit = "nats"}};
    for (const TensorCost& cost : v.costs) {
      bars.x.push_back(static_cast<double>(figure.x.names.size()));
      bars.y.push_back(cost.mean_kl.value);
      figure.x.names.push_back(cost.tensor);
    }
    figure.series = {std::move(bars)};
    section.figures.push_back(std::move(figure));
  }
  return section;
}

ReportSection checks_section(const Verification& v) {
  ReportSection section{.title = "How sensitive the check is",
                        .words =
                            "Some tensors of the candidate were changed on purpose, by more and more, until the rows "
                            "showed it."};
  ReportTable tests{"Relative change of a tensor", {"tensor", "detected from", "not detected up to"}, {}};
  for (const SelfTest& test : v.self_tests) {
    tests.rows.push_back({test.tensor,
                          test.smallest_caught > 0 ? short_number(test.smallest_caught) : "not even at 100 %",
                          test.largest_missed > 0 ? short_number(test.largest_missed) : "–"});
  }
  ReportTable missed{"Not covered by these inputs", {"what, and why"}, {}};
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
  Report report{.title = fmt::format("“{}” against “{}”", title_of_path(second, 2), title_of_path(first, 2)),
                .summary =
                    "Does the candidate compute the same function as the reference? Checked tensor by tensor, and on "
                    "inputs, against the effect of rounding.",
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
  if (v.statistics && (v.quantisation || input_kind == "text")) {
    report.sections.push_back(text_section(v));
  }
  if (v.quantisation) {
    report.sections.push_back(quantisation_section(*v.quantisation));
  }
  if (!v.layers.layers.empty()) {
    report.sections.push_back(layers_section(v));
  }
  if (v.rows.error.defined()) {
    report.sections.push_back(rows_section(v));
  }
  for (const ReportSection& section : {proof_section(v.proof), checks_section(v)}) {
    if (!section.figures.empty() || !section.tables.empty()) {
      report.sections.push_back(section);
    }
  }
  return report;
}

}  // namespace pare
