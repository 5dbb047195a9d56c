// Paper 0, Table 2 and Figure 1: models trained from scratch with W_Q = I, against the baseline and against controls
// that lose as many parameters elsewhere; and under which conditions the difference grows or shrinks.

#include "pare/claims/trained_claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "pare/claims/judged.h"
#include "pare/claims/plan.h"

namespace pare {

namespace {

const std::string of_attention = "architecture.blocks.*.attention.", of_mlp = "architecture.blocks.*.mlp.";

const nlohmann::json& first_block(const nlohmann::json& config) {
  return config.at("architecture").at("blocks").at(0);
}

// The identity in place of one of query, key and value, and no bias there.
ConfigChanges identity_of(const nlohmann::json& config, const std::string& slot) {
  nlohmann::json bias = first_block(config).at("attention").value("bias", nlohmann::json::object());
  bias.erase(slot);
  return {{of_attention + slot, "identity"}, {of_attention + "bias", bias}};
}

int64_t width_of(const nlohmann::json& config) {
  return config.at("architecture").at("width").get<int64_t>();
}

// So many heads of the same width, and all that goes with the model's.
nlohmann::json with_heads(const nlohmann::json& config, int64_t heads, int64_t head_width) {
  const int64_t d = heads * head_width;
  return changed(config, {{"architecture.width", d},
                          {of_attention + "heads", heads},
                          {of_attention + "head_width", head_width},
                          {of_mlp + "width", 4 * d}});
}

nlohmann::json without_query(const nlohmann::json& config) {
  return changed(config, identity_of(config, "query"));
}

nlohmann::json without_query_scaled(const nlohmann::json& config, double factor) {
  const double k = first_block(config).at("attention").at("head_width").get<double>();
  return changed(without_query(config), {{of_attention + "scale", factor / std::sqrt(k)}});
}

nlohmann::json with_mlp_of(const nlohmann::json& config, double times_width) {
  return changed(config, {{of_mlp + "width", std::llround(times_width * static_cast<double>(width_of(config)))}});
}

using Json = nlohmann::json;

PlanForm made(const char* id, const char* words, Json (*make)(const Json& config)) {
  return {.id = id, .words = words, .make = [make](const Json& config, int64_t) { return make(config); }};
}

const std::vector<PlanForm>& query_forms() {
  static const std::vector<PlanForm> all = {
      {.id = "baseline", .words = "baseline"},
      made("no-query", "W_Q = I", without_query),
      made("no-query-half", "W_Q = I, half scale",
           [](const Json& config) { return without_query_scaled(config, 0.5); }),
      made("no-query-double", "W_Q = I, double scale",
           [](const Json& config) { return without_query_scaled(config, 2); }),
      made("no-query-larger-mlp", "W_Q = I, MLP 4.5 d",
           [](const Json& config) { return with_mlp_of(without_query(config), 4.5); }),
      made("no-query-half-larger-mlp", "W_Q = I, half, MLP 4.5 d",
           [](const Json& config) { return with_mlp_of(without_query_scaled(config, 0.5), 4.5); }),
      made("smaller-mlp", "MLP of 3.5 d", [](const Json& config) { return with_mlp_of(config, 3.5); }),
      made("smaller-width", "smaller d",
           [](const Json& config) {  // 62 of 64, as the paper has 744 of 768
             const Json& attention = first_block(config).at("attention");
             const int64_t k = attention.at("head_width").get<int64_t>();
             return with_heads(config, attention.at("heads").get<int64_t>(), k - (k + 31) / 32);
           }),
      made("no-key", "W_K = I", [](const Json& config) { return changed(config, identity_of(config, "key")); }),
      made("no-value", "W_V = I", [](const Json& config) { return changed(config, identity_of(config, "value")); }),
      made("nonlinear-query", "x + N(x)", [](const Json& config) {
        // Two matrices, each half as wide as the one that they stand for.
        const Json query = {{"width", width_of(config) / 2}, {"activation", "gelu"}};
        return changed(config, {{of_attention + "query", {{"nonlinear", query}}}});
      })};
  return all;
}

const PlanForm& form_called(const std::string& id) {
  return *std::find_if(query_forms().begin(), query_forms().end(), [&](const PlanForm& form) { return form.id == id; });
}

// At smoke scale so few steps that all of it takes seconds.
Json query_run(const Trial& trial) {
  const Json usual = usual_run(trial);
  return trial.scale == ClaimScale::smoke ? changed(usual, {{"steps", 6}, {"evaluate.every", 3}}) : usual;
}

// The usual one first; widths and a vocabulary in half the steps, all that is asked of many in short runs.
std::vector<PlanCondition> query_conditions(const Trial& trial) {
  const Json base = query_run(trial);
  const int64_t steps = base.at("steps").get<int64_t>();
  const int64_t head_width = first_block(base).at("attention").at("head_width").get<int64_t>();
  const int64_t heads = first_block(base).at("attention").at("heads").get<int64_t>();
  const Json half = changed(base, {{"steps", steps / 2}});
  const Json brief = trial.scale == ClaimScale::smoke ? half : short_run(trial);
  const auto width = [&](int64_t of_heads, std::vector<double> rates) {
    const int64_t d = of_heads * head_width;
    return PlanCondition{fmt::format("-d{}", d), fmt::format("half steps, width {}", d),
                         with_heads(half, of_heads, head_width), std::move(rates)};
  };
  const Json rope =
      changed(brief, {{"architecture.embedding.position", "none"}, {of_attention + "rope", Json::object()}});
  const ConfigChanges no_biases = {{of_attention + "bias", Json::object()},
                                   {of_mlp + "bias", Json::object()},
                                   {of_attention + "norm.bias", false},
                                   {of_mlp + "norm.bias", false},
                                   {"architecture.final_norm.bias", false}};
  const Json deeper =
      changed(brief, {{"architecture.blocks.*.repeat", 2 * first_block(base).at("repeat").get<int64_t>()}});
  const Json last_rate = changed(base, {{"optimiser.min_lr", 2e-5}});
  std::vector<PlanCondition> found = {
      {"", "as usual", base, {2e-3, 1e-3, 4e-3, 8e-3}},
      width(heads - 2, {2e-3, 4e-3}),
      {"-half-steps", "half steps", half, {2e-3, 4e-3}},
      width(2 * heads, {1e-3, 2e-3}),
      width(heads + 2, {2e-3, 1e-3}),
      {"-short", "short", brief, {2e-3, 4e-3}},
      {"-depth12", "short, twice as deep", deeper, {2e-3}},
      {"-rope", "short, RoPE", rope, {2e-3}},
      {"-wide-start", "short, wider start", changed(brief, {{"init.deviation", 0.04}}), {2e-3}},
      // As large as the product of two that are drawn is, at this width.
      {"-key-start", "short, smaller W_K", changed(brief, {{"init.key", 0.4}}), {2e-3}},
      {"-no-decay", "short, no weight decay", changed(brief, {{"optimiser.decay", 0.0}}), {2e-3}},
      {"-no-biases", "short, no biases", changed(brief, no_biases), {2e-3}},
      {"-no-biases-usual", "no biases", changed(base, no_biases), {2e-3}},
      {"-key-start-usual", "smaller W_K", changed(base, {{"init.key", 0.4}}), {2e-3, 4e-3}},
      {"-last-rate", "the paper's last rate", last_rate, {2e-3, 4e-3}},
      {"-long", "twice the steps", changed(base, {{"steps", 2 * steps}}), {2e-3}},
  };
  if (trial.scale != ClaimScale::smoke) {
    const Json bpe = changed(half, {{"architecture.vocab", 8192},
                                    {"data.train", Json::array()},
                                    {"data.validation", Json::array()},
                                    {"data.shards", "novels-bpe8k"}});
    found.insert(found.begin() + 5,
                 {{"-bpe8k", "half steps, BPE tokens", bpe, {2e-3}},
                  {"-bpe8k-d768", "half steps, BPE, 768", with_heads(bpe, 2 * heads, head_width), {1e-3}}});
  }
  return found;
}

// The paper's own: GPT-2 small without biases on OpenWebText, and its learning rates.
std::vector<PlannedRun> plan_in_full() {
  const Json config = Json::parse(R"({
    "architecture": {"width": 768, "vocab": 50304, "context": 1024, "embedding": {"position": "learned"},
      "blocks": [{"repeat": 12, "attention": {"heads": 12, "head_width": 64, "norm": {"kind": "layer"}},
                  "mlp": {"width": 3072, "activation": "gelu", "norm": {"kind": "layer"}}}],
      "final_norm": {"kind": "layer"}, "head": {"tied": true}},
    "data": {"shards": "openwebtext-gpt2"}, "batch": 48, "accumulate": 10, "steps": 60000, "dtype": "bfloat16",
    "optimiser": {"lr": 6e-4, "min_lr": 6e-5, "warmup": 2000, "betas": [0.9, 0.95], "decay": 0.1, "clip": 1.0},
    "evaluate": {"every": 1000, "batches": 50}, "checkpoint": {"every": 10000, "keep": 1}})");
  const Json lower = changed(config, {{"optimiser.min_lr", 2e-5}});
  std::vector<PlannedRun> plan;
  for (const int64_t seed : {0, 1, 2}) {
    for (const PlanTable& table :
         {PlanTable{query_forms(),
                    {{.ending = "", .config = config, .rates = {6e-4}}},
                    {{.forms = {"baseline", "smaller-mlp", "smaller-width", "no-query"}, .seeds = {seed}}}},
          PlanTable{query_forms(),
                    {{.ending = "", .config = lower, .rates = {1.6e-3, 2.2e-3}}},
                    {{.forms = {"no-query-half", "no-query", "baseline"}, .seeds = {seed}},
                     {.forms = {"no-query-half-larger-mlp"}, .rates = {1}, .seeds = {seed}}}}}) {
      const std::vector<PlannedRun> runs = planned_runs(table);
      plan.insert(plan.end(), runs.begin(), runs.end());
    }
  }
  return plan;
}

double millions_of_tokens(const Json& config) {
  const double context = config.at("architecture").at("context").get<double>();
  return std::round(config.at("steps").get<double>() * config.at("batch").get<double>() * context / 1e6);
}

// Of the forms that were trained at more than one rate.
ClaimTable table_of_rates(const TrainedRuns& runs) {
  std::map<std::string, std::map<double, double>> losses;  // of each form by its rate
  std::set<double> rates;
  for (const PlanForm& form : query_forms()) {
    const std::vector<Settled> all = runs.at_rates(form.id);
    for (const Settled& settled : all.size() > 1 ? all : std::vector<Settled>()) {
      losses[form.id][settled.rate] = settled.loss;
      rates.insert(settled.rate);
    }
  }
  ClaimTable table{.title = "Validation loss by learning rate, means over seeds",
                   .measured = "nats a token",
                   .rows_are = "form",
                   .decimals = 4};
  for (const double rate : rates) {
    table.columns.push_back(fmt::format("{:g}", rate));
  }
  for (const auto& [form, of_form] : losses) {
    table.names.push_back(form_called(form).words);
    table.rows.emplace_back();
    for (const double rate : rates) {
      table.rows.back().push_back(of_form.contains(rate) ? of_form.at(rate) : std::nan(""));
    }
  }
  return table;
}

// What each form costs under each condition, at rates that its baseline was trained at too: one more would be an
// advantage.
std::vector<LossRow> rows_of_conditions(const std::vector<PlanCondition>& conditions) {
  std::vector<LossRow> rows;
  for (const PlanCondition& condition : conditions) {
    for (const char* form : {"no-query", "no-key", "no-value", "nonlinear-query"}) {
      const bool first = form == std::string("no-query");
      if (!condition.ending.empty()) {
        rows.push_back({.words = (first ? "" : form_called(form).words + ", ") + condition.words,
                        .variant = form + condition.ending,
                        .reference = "baseline" + condition.ending,
                        .role = first ? ClaimRole::further : ClaimRole::shown,
                        .common_rates = true});
      }
    }
  }
  return rows;
}

// A point for each pair of one condition, seed and rate, against the tokens that both saw. Of the first form also how
// the difference goes with the width, where the steps are the same.
void compare_pairs(const std::vector<PlanCondition>& conditions, const TrainedRuns& runs, ClaimSheet& sheet) {
  Figure figure{.kind = FigureKind::scatter,
                .title = "Loss above the baseline by tokens seen: every pair of runs",
                .words = "A point for each pair with the same condition, seed and rate.",
                .x = {.words = "million tokens", .log = true},
                .y = {.words = "loss above the baseline", .unit = "nats a token"}};
  std::vector<double> widths, by_width;
  for (const char* form : {"no-query", "no-key", "no-value"}) {
    Series series{.name = form_called(form).words};
    for (const PlanCondition& condition : conditions) {
      const bool of_width = condition.words.find("half steps, width") == 0 || condition.ending == "-half-steps";
      for (const Settled& after : runs.at_rates(form + condition.ending)) {
        const std::optional<Settled> before = runs.at_rate("baseline" + condition.ending, after.rate);
        for (const TrainedRun* run : after.runs) {
          const Estimate above = before ? loss_above(Settled{.runs = {run}}, *before) : Estimate();
          if (above.count == 0) {
            continue;
          }
          series.x.push_back(millions_of_tokens(condition.config));
          series.y.push_back(above.mean);
          if (form == std::string("no-query") && of_width && after.rate == condition.rates.front()) {
            widths.push_back(std::log2(static_cast<double>(width_of(condition.config))));
            by_width.push_back(above.mean);
          }
        }
      }
    }
    if (series.y.empty()) {
      continue;
    }
    std::vector<double> sorted = series.y;
    std::ranges::sort(sorted);
    const size_t count = sorted.size();
    const int64_t higher = std::ranges::count_if(sorted, [](double one) { return one > 0; });
    sheet.rows.push_back(
        {{fmt::format("{}: pairs with a higher loss", series.name), Found::too_few,
          fmt::format("{} of {}, median {:+.4f}", higher, count, (sorted[(count - 1) / 2] + sorted[count / 2]) / 2)}});
    figure.series.push_back(std::move(series));
  }
  sheet.rows.push_back({trend("W_Q = I: slope by doubled width", widths, by_width, ClaimedTrend::falls)});
  sheet.figures.push_back(figure);
}

// A run comes first whose absence leaves more open: each form once, five seeds of the headline, other rates, then
// conditions and what makes them surer.
std::vector<PlannedRun> plan_query_elimination(const Trial& trial) {
  if (trial.scale == ClaimScale::full) {
    return plan_in_full();
  }
  PlanTable table{query_forms(), query_conditions(trial), {}};
  std::vector<std::string> all, of_width;  // conditions, without the usual one
  for (const PlanCondition& condition : table.conditions) {
    if (!condition.ending.empty()) {
      all.push_back(condition.ending);
    }
    if (condition.ending.starts_with("-d") || condition.ending == "-half-steps" || condition.ending == "-bpe8k") {
      of_width.push_back(condition.ending);
    }
  }
  std::erase_if(of_width, [](const std::string& ending) { return ending == "-depth12"; });
  const std::vector<std::string> first = {"baseline", "no-query", "no-query-half", "smaller-mlp",
                                          "no-query-larger-mlp"};
  const std::vector<std::string> two = {"baseline", "no-query"};
  if (trial.scale == ClaimScale::smoke) {  // one of everything
    table.lines = {{.forms = first},
                   {.forms = {"smaller-width", "no-key", "no-value", "nonlinear-query", "no-query-double"}},
                   {.forms = {"baseline"}, .seeds = {1}},
                   {.forms = two, .conditions = all}};
    return planned_runs(table);
  }
  constexpr size_t slow = 1, fast = 2, fastest = 3;  // places in the list of the usual rates
  table.lines = {
      {.forms = first},
      {.forms = {"baseline", "no-query", "no-value", "smaller-mlp"}, .seeds = {0, 1, 2, 3, 4}},
      {.forms = {"no-query"}, .rates = {fast}, .seeds = {0, 1, 2, 3, 4}},
      {.forms = {"baseline", "no-query", "smaller-mlp"}, .rates = {slow}},
      {.forms = {"baseline", "no-query", "no-query-half"}, .rates = {fast}},
      {.forms = {"no-key", "smaller-width"}},
      {.forms = {"baseline", "no-query", "no-key", "no-value", "nonlinear-query"}, .conditions = {"-short"}},
      {.forms = two, .conditions = all},
      {.forms = two, .conditions = {"-key-start-usual", "-last-rate"}, .rates = {1}},
      {.forms = two, .conditions = {"-key-start-usual"}, .seeds = {1}},
      {.forms = {"no-query", "no-key"}, .rates = {fastest}},
      {.forms = {"no-query-half-larger-mlp", "no-value", "no-key", "no-query-larger-mlp", "smaller-mlp"},
       .rates = {fast}},
      {.forms = {"no-value", "no-key"}, .rates = {slow}},
      {.forms = two, .conditions = of_width, .seeds = {1}},  // what a second seed says most about
      {.forms = {"smaller-width"}, .rates = {fast, slow}},
      {.forms = two, .conditions = all, .seeds = {1}},
      {.forms = {"no-value"}, .conditions = all},
      {.forms = {"nonlinear-query"}, .rates = {0, slow, fast}},
      {.forms = {"no-query-larger-mlp"}, .seeds = {1, 2}},
      {.forms = two, .conditions = all, .rates = {1}},
      {.forms = {"no-query-half", "no-query-larger-mlp"}, .rates = {slow}},
      {.forms = {"no-query-double"}},
      {.forms = {"no-key", "no-query-half", "smaller-width", "nonlinear-query"}, .seeds = {1}},
  };
  return planned_runs(table);
}

Outcome judge_query_elimination(const Trial& trial, const TrainedRuns& runs) {
  // At whichever scale of the scores ends lower.
  const std::optional<Settled> plain = runs.best("no-query"), halved = runs.best("no-query-half");
  const std::string better = !plain || (halved && halved->loss < plain->loss) ? "no-query-half" : "no-query";
  std::vector<LossRow> forms;
  for (const auto& [form, claimed] :
       std::vector<std::pair<std::string, std::string>>{{"no-query-half", "+0.000"},
                                                        {"no-query-half-larger-mlp", "-0.015"},
                                                        {"smaller-mlp", "+0.011"},
                                                        {"smaller-width", "+0.012"},
                                                        {"no-query", "not said"},
                                                        {"no-query-larger-mlp", ""},
                                                        {"no-key", ""},
                                                        {"no-value", ""},
                                                        {"nonlinear-query", ""},
                                                        {"no-query-double", ""}}) {
    forms.push_back(
        {form_called(form).words, form, "baseline", claimed, form == better ? ClaimRole::headline : ClaimRole::shown});
  }
  forms.insert(forms.begin(), {"baseline, nats a token", "baseline", "", "2.944, BPE"});
  forms.push_back({form_called(better).words + " over MLP of 3.5 d", better, "smaller-mlp", "-0.011"});
  ClaimSheet sheet{.losses = {{.title = "Validation loss of each form at its best rate, and above the baseline",
                               .rows = forms,
                               .curves = "Validation loss while training",
                               .differences = "The same, above the baseline"}}};
  if (trial.scale != ClaimScale::full) {
    const std::vector<PlanCondition> conditions = query_conditions(trial);
    sheet.losses.push_back(
        {"W_Q = I, or the form that is named, under other conditions; at rates that the baseline has too",
         rows_of_conditions(conditions)});
    sheet.tables = {table_of_rates(runs)};
    compare_pairs(conditions, runs, sheet);
  }
  return judged(trial.scale, runs, sheet);
}

}  // namespace

std::vector<PaperClaim> claims_of_trained_queries() {
  return {trained_claim(
      {.id = "query-elimination",
       .paper = Paper::query_elimination,
       .place = "Table 2, Figure 1",
       .says = "Trained with W_Q = I, a model reaches the baseline's loss with 8 % fewer parameters.",
       .recorded = ClaimVerdict::does_not_hold,
       .number = "+0.0110 ± 0.0014; an MLP of 3.5 d +0.0014 ± 0.0030",
       .cost_in_full = "its five configurations of GPT-2 124M and three more, each with three seeds of 29.5 billion "
                       "tokens: 19 hours a run on one H200 at 442 thousand tokens a second",
       .plan = plan_query_elimination,
       .judge = judge_query_elimination,
       .discussed = "LAW.md"})};
}

}  // namespace pare
