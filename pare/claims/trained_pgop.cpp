#include "pare/claims/trained_pgop.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "pare/checkpoint/model_folder.h"
#include "pare/claims/comparators.h"
#include "pare/claims/finished_run.h"
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
    if (!run->seen.contains(when)) {
      continue;
    }
    const Json& layers = run->seen[when];
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      if (!only || *only == layer) {
        found.push_back({layers[layer].at("asymmetry").get<std::vector<double>>(),
                         layers[layer].at("sensitivity").get<std::vector<double>>()});
      }
    }
  }
  return found;
}

size_t layers_in(const TrainedRuns& runs, const std::string& variant) {
  for (const TrainedRun* run : runs.ended(variant)) {
    if (run->seen.contains("end")) {
      return run->seen["end"].size();
    }
  }
  return 0;
}

Figure figure_of_gates(const TrainedRuns& runs, const std::string& variant, const std::string& name) {
  Figure figure{.kind = FigureKind::scatter,
                .title = "A head's asymmetry and how its gate follows the position, " + name,
                .words = "A point for each head. The prediction is a correlation above 0.6 in each layer.",
                .x = {.words = "directional asymmetry ‖Mₐ‖/‖M‖ of M = W_Q W_Kᵀ"},
                .y = {.words = "mean |∂g/∂i| of its gate"}};
  for (size_t layer = 0; layer < layers_in(runs, variant); ++layer) {
    Series series{.name = fmt::format("layer {}", layer), .order = static_cast<double>(layer)};
    for (const GatedHeads& heads : layers_seen(runs, variant, "end", layer)) {
      series.x.insert(series.x.end(), heads.asymmetry.begin(), heads.asymmetry.end());
      series.y.insert(series.y.end(), heads.sensitivity.begin(), heads.sensitivity.end());
    }
    figure.series.push_back(std::move(series));
  }
  figure.order_words = "layer";
  return figure;
}

std::string correlation_in_words(const CorrelationWithin& found) {
  return found.is_defined
             ? fmt::format("{:+.2f} ({:+.2f} to {:+.2f}), of {}", found.r, found.least, found.most, found.heads)
             : fmt::format("undefined, of {}", found.heads);
}

struct GatedVariant {
  std::string variant, name;
};
const std::vector<GatedVariant> gated_variants = {
    {"gate", "causal"}, {"encoder-gate", "encoder"}, {"encoder-gate-longer", "longer encoder"}};

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

ClaimTable table_of_widths(const TrainedRuns& runs) {
  const double nothing = std::nan("");
  ClaimTable table{.title = "Validation loss by the width of the MLP; by how much gates are above none",
                   .columns = {"width / d", "plain", "PG-OP", "difference", "±", "pairs"},
                   .measured = "validation loss, nats a token",
                   .settings = {"difference", "pairs"},
                   .decimals = 4,
                   .band = interval_of_pairs};
  for (const double width : mlp_widths) {
    const std::optional<Settled> plain = runs.best(width_variant(width, false));
    const std::optional<Settled> gated = runs.best(width_variant(width, true));
    if (plain || gated) {
      const Estimate above = plain && gated ? loss_above(*gated, *plain) : Estimate();
      table.rows.push_back({width, plain ? plain->loss : nothing, gated ? gated->loss : nothing,
                            above.count > 0 ? above.mean : nothing, above.interval ? above.half_width() : nothing,
                            static_cast<double>(above.count)});
    }
  }
  return table;
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

CorrelationWithin correlation_within(const std::vector<GatedHeads>& layers) {
  std::vector<double> x, y;
  int64_t compared = 0;  // heads, less one for each layer: a mean was taken off
  for (const GatedHeads& heads : layers) {
    const auto centred = [](const std::vector<double>& values) {
      double mean = 0;
      for (const double value : values) {
        mean += value / static_cast<double>(values.size());
      }
      std::vector<double> found;
      for (const double value : values) {
        found.push_back(value - mean);
      }
      return found;
    };
    const std::vector<double> asymmetry = centred(heads.asymmetry), sensitivity = centred(heads.sensitivity);
    x.insert(x.end(), asymmetry.begin(), asymmetry.end());
    y.insert(y.end(), sensitivity.begin(), sensitivity.end());
    compared += std::ssize(asymmetry) - 1;
  }
  const Correlation plain = correlation(x, y);
  CorrelationWithin found{.heads = plain.count};
  if (!plain.is_defined || compared <= 2) {
    return found;
  }
  const double z = std::atanh(std::clamp(plain.r, -1 + 1e-15, 1 - 1e-15));
  const double deviation = 1 / std::sqrt(static_cast<double>(compared - 2));
  return {plain.r, std::tanh(z - deviations_of_95 * deviation), std::tanh(z + deviations_of_95 * deviation),
          plain.count, true};
}

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
  const auto form = [](const std::string& id, const nlohmann::json& config, bool looked_at = true) {
    PlanForm found{.id = id, .make = [config](const nlohmann::json&, int64_t) { return config; }, .look_at_all = true};
    if (looked_at) {
      found.look = look_at_gates;
    }
    return found;
  };
  PlanTable table{
      .forms = {form("gate", gate), form("encoder-gate", encoder), form("plain", causal, false),
                // One that guesses a seventh of the bytes learns from a seventh of them.
                form("encoder-gate-longer", changed(encoder, {{"steps", 6 * encoder.at("steps").get<int64_t>()}}))},
      .conditions = {{.ending = "", .rates = {gate.at("optimiser").at("lr").get<double>()}}}};
  if (smoke) {
    table.lines = {{.forms = {"gate", "plain"}}};
  } else {
    table.lines = {{.forms = {"gate", "encoder-gate", "plain"}, .seeds = {0, 1, 2}},
                   {.forms = {"encoder-gate-longer"}}};
  }
  return planned_runs(table);
}

Outcome judge_pgop(const Trial& trial, const TrainedRuns& runs) {
  Outcome found;
  const auto shown_r = [](double r) { return fmt::format("{:+.2f}", r); };
  std::vector<ClaimFinding> models, layers;
  for (const auto& [variant, name] : gated_variants) {
    const CorrelationWithin end = correlation_within(layers_seen(runs, variant, "end"));
    if (end.heads == 0) {
      continue;
    }
    const std::optional<Settled> trained = runs.best(variant);
    const std::map<int64_t, double> losses = trained ? trained->runs.front()->validation : std::map<int64_t, double>();
    const double left = losses.empty() ? 0 : losses.rbegin()->second / losses.begin()->second;
    const bool has_learnt = left < most_left;
    const CorrelationWithin start = correlation_within(layers_seen(runs, variant, "start"));
    found.compared.push_back({name + " model: r", "above 0.6", correlation_in_words(end)});
    found.compared.push_back({name + " model, before training", "not said", correlation_in_words(start)});
    if (!has_learnt) {
      found.compared.push_back(
          {name + " model: loss that is left", "not said", fmt::format("{:.0f} %: learnt too little", 100 * left)});
    }
    ClaimTable table{.title = fmt::format("Correlation in each layer, {}", name),
                     .columns = {"layer", "r", "least", "most", "heads"},
                     .measured = "correlation of asymmetry and sensitivity",
                     .settings = {"heads"}};
    for (size_t layer = 0; layer < layers_in(runs, variant); ++layer) {
      const CorrelationWithin one = correlation_within(layers_seen(runs, variant, "end", layer));
      if (has_learnt && one.is_defined) {
        layers.push_back(threshold(fmt::format("layer {}", layer), Interval{one.least, one.most}, one.r,
                                   {Bound::at_least, predicted_correlation}, shown_r));
      }
      const double nothing = std::nan("");
      table.rows.push_back({static_cast<double>(layer), one.is_defined ? one.r : nothing,
                            one.is_defined ? one.least : nothing, one.is_defined ? one.most : nothing,
                            static_cast<double>(one.heads)});
    }
    found.tables.push_back(std::move(table));
    found.figures.push_back(figure_of_gates(runs, variant, name));
    if (has_learnt && end.is_defined) {
      models.push_back(threshold(fmt::format("r in the {} model of bytes, trained from the start", name),
                                 Interval{end.least, end.most}, end.r, {Bound::at_least, predicted_correlation},
                                 shown_r));
    }
  }
  if (const Estimate above = loss_above(runs, "gate", "plain"); above.count > 0) {
    found.compared.push_back({"loss with gates", "lower", in_short(above)});
  }
  if (found.compared.empty()) {
    found.compared.push_back({"models with gates", "some", "0"});
  }
  ClaimFindings findings{{"gates that follow positions"}};
  if (!models.empty()) {
    findings = {models.front(), {models.begin() + 1, models.end()}};
    findings.further.push_back(all_of("every layer", layers));
  }
  decide(trial.scale, findings, found);
  return found;
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
  Outcome found;
  const auto compare = [&](const std::string& what, const char* claimed, const char* variant, const char* reference) {
    const Estimate above = loss_above(runs, variant, reference);
    if (above.count > 0) {
      found.compared.push_back({what, claimed, in_short(above)});
    }
    return equal_within(what, above, least_cost);
  };
  ClaimFindings findings{compare("loss, 2d with gates against 4d", "equal", "ffn2-gate", "ffn4")};
  compare("loss, 2d against 4d", "not said", "ffn2", "ffn4");
  compare("loss, 2d: gates against none", "not said", "ffn2-gate", "ffn2");
  compare("loss, 4d: gates against none", "not said", "ffn4-gate", "ffn4");
  found.compared.push_back({"the MLP's part of the work, BERT-base", "64.8 %",
                            fmt::format("{:.1f} %", 100 * (1 - work_of_layer(768, 12, 128, 0, false) /
                                                                   work_of_layer(768, 12, 128, 4, false)))});
  found.compared.push_back(
      {"work of 2d with gates, BERT-base, 128 tokens", "57 %", fmt::format("{:.1f} %", 100 * share_of_work())});
  if (ClaimTable table = table_of_widths(runs); !table.rows.empty()) {
    found.tables.push_back(std::move(table));
    std::vector<std::string> variants;
    for (const double width : mlp_widths) {
      variants.push_back(width_variant(width, false));
      variants.push_back(width_variant(width, true));
    }
    found.figures.push_back(curves_of_variants("Validation loss while it is trained", runs, variants));
  }
  findings.further = {exact_limit("its work, of that of 4d", share_of_work(), {Bound::at_most, claimed_work},
                                  [](double share) { return fmt::format("{:.0f} %", 100 * share); })};
  decide(trial.scale, findings, found);
  return found;
}

std::vector<PaperClaim> claims_of_trained_gates() {
  return {trained_claim({.id = "pgop",
                         .paper = Paper::rank_and_symmetry,
                         .place = "Proposition 8.2",
                         .says = "In each layer a gate follows the position the more, the more directional its head "
                                 "is: their correlation is above 0.6, of BERT-base on GLUE.",
                         .recorded = ClaimVerdict::does_not_hold,
                         .cost_in_full = "9 models of BERT-base's size, 13 G bytes each: 75 hours of one H200"},
                        plan_pgop, judge_pgop),
          trained_claim({.id = "ffn-width",
                         .paper = Paper::rank_and_symmetry,
                         .place = "Appendix A",
                         .says = "An MLP of width 2d with position gates does what one of 4d does on GLUE, at 57 % of "
                                 "the work.",
                         .recorded = ClaimVerdict::does_not_hold,
                         .cost_in_full = "18 models of BERT-base's size, 13 G bytes each: 150 hours of one H200"},
                        plan_ffn_width, judge_ffn_width)};
}

}  // namespace pare
