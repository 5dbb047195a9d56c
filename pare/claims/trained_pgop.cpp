#include "pare/claims/trained_claims.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pare/checkpoint/model_folder.h"
#include "pare/claims/finished_run.h"
#include "pare/claims/judged.h"
#include "pare/claims/plan.h"
#include "pare/claims/probed_models.h"
#include "pare/model/executor.h"
#include "pare/model/rope.h"
#include "pare/probes/probe.h"

namespace pare {

namespace {

using Json = nlohmann::ordered_json;

// Of the first loss; how frequent bytes are is half of it. Gates of a model that knows no more say nothing.
constexpr double most_left = 1.0 / 3;
constexpr double predicted_correlation = 0.6, deviations_of_95 = 1.96;  // standard deviations, for 95 of 100
constexpr double claimed_work = 0.575;                                  // 57 %, as it is rounded
constexpr int64_t looked_at_sequences = 16, looked_at_tokens = 512, probed_tokens = 16;

const std::string block_key = "architecture.blocks.*.";

nlohmann::json gated_run(const Trial& trial) {
  const nlohmann::json config = short_run(trial);
  return trial.scale == ClaimScale::small ? changed(config, {{"optimiser.lr", 2e-3}}) : config;  // the usual run's best
}

// ---- pgop: a trained gate and its head

Json look_at_gates(const std::filesystem::path& run) {
  const at::NoGradGuard no_grad;
  const std::vector<StoredCheckpoint> stored = checkpoints_of(run);
  const Inputs inputs = held_out(run, looked_at_sequences, looked_at_tokens);
  return {{"start", gates_of(open_model(stored.front().folder).model, inputs)},
          {"end", gates_of(open_model(stored.back().folder).model, inputs)}};
}

// Layer by layer, of all runs of a variant; `when` is "start" or "end".
std::vector<GatedHeads> layers_seen(const TrainedRuns& runs, const std::string& variant, const char* when,
                                    std::optional<size_t> only = std::nullopt) {
  std::vector<GatedHeads> found;
  for (const TrainedRun* run : runs.ended(variant)) {
    const Json layers = run->seen.value(when, Json::array());
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      if (!only || *only == layer) {
        found.push_back({layers[layer].at("asymmetry").get<std::vector<double>>(),
                         layers[layer].at("sensitivity").get<std::vector<double>>()});
      }
    }
  }
  return found;
}

ClaimFinding above_prediction(const std::string& what, const Estimate& correlation) {
  return threshold(what, correlation, {Bound::at_least, predicted_correlation},
                   [](double r) { return fmt::format("{:+.2f}", r); });
}

// The heads of one model with gates: rows, a table and a figure layer by layer. A model that has learnt too little
// decides nothing.
void add_model(const TrainedRuns& runs, const std::string& variant, const std::string& name, ClaimSheet& sheet,
               std::vector<ClaimFinding>& layers) {
  const Estimate end = correlation_within(layers_seen(runs, variant, "end"));
  if (end.count == 0) {
    return;
  }
  const std::optional<Settled> best = runs.best(variant);
  const std::map<int64_t, double> losses = best ? best->runs.front()->validation : std::map<int64_t, double>();
  const double left = losses.empty() ? 0 : losses.rbegin()->second / losses.begin()->second;
  const bool decides = left < most_left && end.interval;
  const bool first =
      std::ranges::none_of(sheet.rows, [](const ClaimRow& row) { return row.role == ClaimRole::headline; });
  sheet.rows.push_back({above_prediction(fmt::format("r in the {} model, {} heads", name, end.count), end), "above 0.6",
                        !decides ? ClaimRole::shown
                        : first  ? ClaimRole::headline
                                 : ClaimRole::further});
  sheet.rows.push_back({above_prediction(fmt::format("r in the {} model, untrained", name),
                                         correlation_within(layers_seen(runs, variant, "start")))});
  if (left >= most_left) {
    sheet.rows.push_back({{fmt::format("loss left in the {} model", name), Found::too_few,
                           fmt::format("{:.0f} %: learnt too little", 100 * left)}});
  }
  ClaimTable table{.title = fmt::format("Correlation in each layer, {} model, with its 95 % interval", name),
                   .columns = {"layer", "r", "least", "most", "heads"},
                   .measured = "correlation of asymmetry and sensitivity",
                   .settings = {"heads"}};
  Figure figure{.kind = FigureKind::scatter,
                .title = fmt::format("Asymmetry of a head and how its gate follows the position, {} model", name),
                .words = "A point for each head. The prediction is a correlation above 0.6 in each layer.",
                .x = {.words = "directional asymmetry ‖Mₐ‖/‖M‖ of M = W_Q W_Kᵀ"},
                .y = {.words = "mean |∂g/∂i| of its gate"},
                .order_words = "layer"};
  for (size_t layer = 0;; ++layer) {
    const std::vector<GatedHeads> seen = layers_seen(runs, variant, "end", layer);
    if (seen.empty()) {
      break;
    }
    const Estimate one = correlation_within(seen);
    const Interval interval = one.interval.value_or(Interval{std::nan(""), std::nan("")});
    const double place = static_cast<double>(layer);
    table.rows.push_back(
        {place, one.interval ? one.mean : std::nan(""), interval.least, interval.most, static_cast<double>(one.count)});
    if (decides && one.interval) {
      layers.push_back(above_prediction(fmt::format("layer {}", layer), one));
    }
    Series series{.name = fmt::format("layer {}", layer), .order = place};
    for (const GatedHeads& run : seen) {
      series.x.insert(series.x.end(), run.asymmetry.begin(), run.asymmetry.end());
      series.y.insert(series.y.end(), run.sensitivity.begin(), run.sensitivity.end());
    }
    figure.series.push_back(std::move(series));
  }
  sheet.tables.push_back(std::move(table));
  sheet.figures.push_back(std::move(figure));
}

// ---- ffn-width: the loss by the MLP's width, with gates and without

const std::vector<double> mlp_widths = {1, 2, 3, 4, 4.5};

std::string width_variant(double width, bool gated) {
  return fmt::format("ffn{:g}{}", width, gated ? "-gate" : "");
}

// Multiplications of one layer for each token: projections, scores and sums of n tokens, MLP, gates.
double work_of_layer(double d, double heads, double n, double mlp_width, bool gated) {
  return 4 * d * d + 2 * n * d + 2 * d * mlp_width * d + (gated ? 2 * d * heads : 0);
}

// BERT-base at 128 tokens, where the MLP is the paper's 64.8 % of the work.
double share_of_work() {
  return work_of_layer(768, 12, 128, 2, true) / work_of_layer(768, 12, 128, 4, false);
}

}  // namespace

at::Tensor sinusoidal_slopes(int64_t tokens, int64_t width) {
  const at::Tensor frequencies = at::tensor(sinusoidal_frequencies(width), at::kDouble);
  const at::Tensor angles = at::arange(tokens, at::kDouble).unsqueeze(1) * frequencies;
  return at::stack({angles.cos() * frequencies, -angles.sin() * frequencies}, 2).flatten(1, 2).narrow(1, 0, width);
}

Json gates_of(const Model& model, const Inputs& inputs) {
  const Executor executor(model, at::kFloat);
  Taps taps;
  taps.record("blocks.*.attention.gate");
  executor.forward(inputs, nullptr, &taps, Logits::none);
  Probe probe(model, {.arithmetic = {.dtype = at::kFloat}});
  probe.measure(each_of(inputs, [](const at::Tensor& x) {
    return x.narrow(0, 0, 1).narrow(1, 0, std::min(probed_tokens, x.size(1))).contiguous();
  }));
  Json layers = Json::array();
  const ProbeResults measured = probe.results();
  for (const LayerMeasures& layer : measured.layers) {
    const at::Tensor gate =
        taps.recorded().at(fmt::format("blocks.{}.attention.gate", layer.layer)).to(at::kDouble);  // [rows, n, heads]
    const TensorId weight = {in_attention(layer.block, Slot::gate), TensorKind::position};
    const at::Tensor by_position = model.weights.at(name_of(weight)).load().to(at::kDouble);
    const at::Tensor slopes = at::matmul(sinusoidal_slopes(gate.size(1), by_position.size(1)), by_position.t());
    const at::Tensor sensitivity = (gate * (1 - gate) * slopes).abs().flatten(0, 1).mean(0);
    const at::Tensor opened = gate.flatten(0, 1).mean(0);
    Json heads = {{"asymmetry", Json::array()}, {"sensitivity", Json::array()}, {"gate", Json::array()}};
    for (size_t h = 0; h < layer.heads.size(); ++h) {
      const int64_t i = static_cast<int64_t>(h);
      heads["asymmetry"].push_back(layer.heads[h].asymmetry.value_or(0));
      heads["sensitivity"].push_back(sensitivity[i].item<double>());
      heads["gate"].push_back(opened[i].item<double>());
    }
    layers.push_back(std::move(heads));
  }
  return layers;
}

Estimate correlation_within(const std::vector<GatedHeads>& layers) {
  std::vector<double> x, y;
  int64_t compared = 0;  // heads, less one for each layer: a mean was taken off
  for (const GatedHeads& heads : layers) {
    const auto add_centred = [](const std::vector<double>& values, std::vector<double>& all) {
      const double mean = std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
      std::ranges::transform(values, std::back_inserter(all), [mean](double one) { return one - mean; });
    };
    add_centred(heads.asymmetry, x);
    add_centred(heads.sensitivity, y);
    compared += std::ssize(heads.asymmetry) - 1;
  }
  const Correlation plain = correlation(x, y);
  Estimate found{.count = plain.count, .mean = plain.r};
  if (plain.is_defined && compared > 2) {
    const double z = std::atanh(std::clamp(plain.r, -1 + 1e-15, 1 - 1e-15));
    const double half = deviations_of_95 / std::sqrt(static_cast<double>(compared - 2));
    found.interval = Interval{std::tanh(z - half), std::tanh(z + half)};
  }
  return found;
}

namespace {

std::vector<PlannedRun> plan_pgop(const Trial& trial) {
  const bool smoke = trial.scale == ClaimScale::smoke;
  nlohmann::json causal = changed(gated_run(trial), {{"checkpoint.keep", 0}});
  if (!smoke) {
    // As many heads in a layer as BERT-base has: a correlation of six says little.
    causal = changed(causal, {{block_key + "attention.heads", 12}, {block_key + "attention.head_width", 32}});
  }
  if (trial.scale == ClaimScale::full) {
    causal = changed(causal, {{"architecture.width", 768},
                              {"architecture.blocks.*.repeat", 12},
                              {block_key + "attention.head_width", 64},
                              {block_key + "mlp.width", 3072},
                              {"steps", 100'000}});
  }
  const nlohmann::json gate = changed(causal, {{block_key + "attention.gate", "position"}});
  const nlohmann::json encoder = smoke ? gate
                                       : changed(gate, {{"task", "masked_lm"},
                                                        {"architecture.task", "masked_lm"},
                                                        {"data.mask_token", 256},
                                                        {"architecture.vocab", 257},
                                                        {block_key + "attention.mask", "full"}});
  PlanTable table{.forms = {fixed_form("gate", gate), fixed_form("encoder-gate", encoder), fixed_form("plain", causal),
                            // One that guesses a seventh of the bytes learns from a seventh of them.
                            fixed_form("encoder-gate-longer",
                                       changed(encoder, {{"steps", 6 * encoder.at("steps").get<int64_t>()}}))},
                  .conditions = {{.ending = "", .rates = {gate.at("optimiser").at("lr").get<double>()}}}};
  for (const size_t gated : {0, 1, 3}) {
    table.forms[gated].look = look_at_gates;
    table.forms[gated].look_at_all = true;
  }
  if (smoke) {
    table.lines = {{.forms = {"gate", "plain"}}};
  } else {
    table.lines = {{.forms = {"gate", "encoder-gate", "plain"}, .seeds = {0, 1, 2}},
                   {.forms = {"encoder-gate-longer"}}};
  }
  return planned_runs(table);
}

Outcome judge_pgop(const Trial& trial, const TrainedRuns& runs) {
  ClaimSheet sheet{.losses = {{"Validation loss with position gates and without",
                               {{"no gates", "plain"}, {"position gates", "gate", "plain", "lower"}}}}};
  std::vector<ClaimFinding> layers;
  for (const auto& [variant, name] : {std::pair("gate", "causal"), std::pair("encoder-gate", "encoder"),
                                      std::pair("encoder-gate-longer", "longer encoder")}) {
    add_model(runs, variant, name, sheet, layers);
  }
  sheet.rows.push_back({all_of("every layer", layers), "", ClaimRole::further});
  if (layers.empty()) {
    sheet.rows.push_back({{"gates that follow positions"}, "above 0.6", ClaimRole::headline});
  }
  return judged(trial.scale, runs, sheet);
}

std::vector<PlannedRun> plan_ffn_width(const Trial& trial) {
  nlohmann::json base = gated_run(trial);
  if (trial.scale == ClaimScale::full) {
    base = changed(base, {{"architecture.width", 768},
                          {block_key + "repeat", 12},
                          {block_key + "attention.heads", 12},
                          {"steps", 100'000}});
  }
  const double d = base["architecture"]["width"].get<double>();
  PlanTable table{
      .conditions = {{.ending = "", .config = base, .rates = {base.at("optimiser").at("lr").get<double>()}}}};
  for (const double width : mlp_widths) {
    for (const bool gated : {false, true}) {
      ConfigChanges changes = {{block_key + "mlp.width", static_cast<int64_t>(width * d)}};
      if (gated) {
        changes.emplace_back(block_key + "attention.gate", "position");
      }
      table.forms.push_back(form_of(width_variant(width, gated), "", changes));
    }
  }
  const std::vector<std::string> compared = {"ffn4", "ffn2-gate", "ffn2", "ffn4-gate"};
  table.lines = {{.forms = compared}};
  if (trial.scale != ClaimScale::smoke) {
    table.lines.insert(table.lines.end(), {{.forms = compared, .seeds = {1, 2}},
                                           {.forms = {"ffn1", "ffn1-gate", "ffn3", "ffn3-gate"}},
                                           {.forms = {"ffn4.5", "ffn4.5-gate"}}});
  }
  if (trial.scale == ClaimScale::small) {
    table.lines.insert(table.lines.begin() + 1, {.forms = compared, .seeds = {1, 2, 3, 4}});
  }
  return planned_runs(table);
}

Outcome judge_ffn_width(const Trial& trial, const TrainedRuns& runs) {
  std::vector<LossRow> rows = {{"2d with gates against 4d", "ffn2-gate", "ffn4", "equal", ClaimRole::headline},
                               {"2d against 4d", "ffn2", "ffn4"}};
  for (const double width : mlp_widths) {
    const std::string plain = width_variant(width, false);
    rows.push_back({fmt::format("{:g}d", width), plain});
    rows.push_back({fmt::format("{:g}d: gates against none", width), width_variant(width, true), plain});
  }
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  const double of_attention = work_of_layer(768, 12, 128, 0, false) / work_of_layer(768, 12, 128, 4, false);
  return judged(
      trial.scale, runs,
      {.losses = {{.title = "Validation loss by the width of the MLP, with position gates and without",
                   .rows = rows,
                   .curves = "Validation loss while training"}},
       .rows = {{{"the MLP's part of the work, BERT-base", Found::too_few, percent(1 - of_attention)}, "64.8 %"},
                {exact_limit("work of 2d with gates, of that of 4d, BERT-base", share_of_work(),
                             {Bound::at_most, claimed_work}, percent),
                 "57 %", ClaimRole::further}}});
}

}  // namespace

std::vector<PaperClaim> claims_of_trained_gates() {
  return {
      trained_claim({.id = "pgop",
                     .paper = Paper::rank_and_symmetry,
                     .place = "Proposition 8.2",
                     .says = "In each layer of BERT-base on GLUE, the asymmetry of a head and the position sensitivity "
                             "of its gate have a correlation above 0.6.",
                     .recorded = ClaimVerdict::does_not_hold,
                     .number = "r = 0.29 (0.15 to 0.41) in a byte model",
                     .cost_in_full = "9 models of BERT-base's size, 13 billion bytes each: 75 hours of one H200",
                     .plan = plan_pgop,
                     .judge = judge_pgop}),
      trained_claim({.id = "ffn-width",
                     .paper = Paper::rank_and_symmetry,
                     .place = "Appendix A",
                     .says = "An MLP of width 2d with position gates matches one of 4d on GLUE, at 57 % of the work.",
                     .recorded = ClaimVerdict::does_not_hold,
                     .number = "+0.0405 ± 0.0025 nats a byte (5 pairs)",
                     .cost_in_full = "18 models of BERT-base's size, 13 billion bytes each: 150 hours of one H200",
                     .plan = plan_ffn_width,
                     .judge = judge_ffn_width})};
}

}  // namespace pare
