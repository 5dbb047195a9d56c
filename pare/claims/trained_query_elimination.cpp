// Paper 0, Table 2 and Figure 1: models trained from scratch with W_Q = I, against the baseline and against controls
// that lose as many parameters elsewhere; and under which conditions the difference grows or shrinks.

#include "pare/claims/trained_claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "pare/claims/comparators.h"
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
      made("no-query-half", "W_Q = I, scale / 2", [](const Json& config) { return without_query_scaled(config, 0.5); }),
      made("no-query-double", "W_Q = I, scale x 2", [](const Json& config) { return without_query_scaled(config, 2); }),
      made("no-query-larger-mlp", "W_Q = I, MLP of 4.5 d",
           [](const Json& config) { return with_mlp_of(without_query(config), 4.5); }),
      made("no-query-half-larger-mlp", "W_Q = I, scale / 2, MLP of 4.5 d",
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
  std::set<double> rates;
  std::vector<const PlanForm*> forms;
  for (const PlanForm& form : query_forms()) {
    const std::vector<Settled> all = runs.at_rates(form.id);
    if (all.size() > 1) {
      forms.push_back(&form);
      std::for_each(all.begin(), all.end(), [&rates](const Settled& settled) { rates.insert(settled.rate); });
    }
  }
  ClaimTable table{.title = "Validation loss by learning rate, means over seeds",
                   .measured = "nats a token",
                   .rows_are = "form",
                   .decimals = 4};
  for (const double rate : rates) {
    table.columns.push_back(fmt::format("{:g}", rate));
  }
  for (const PlanForm* form : forms) {
    std::vector<double> row;
    for (const double rate : rates) {
      const std::optional<Settled> settled = runs.at_rate(form->id, rate);
      row.push_back(settled ? settled->loss : std::nan(""));
    }
    table.names.push_back(form->words);
    table.rows.push_back(row);
  }
  return table;
}

const std::vector<std::string> compared_by_condition = {"no-query", "no-key", "no-value", "nonlinear-query"};

// What each form costs under each condition, at rates that its baseline was trained at too: one more would be an
// advantage.
ClaimTable table_of_conditions(const std::vector<PlanCondition>& conditions, const TrainedRuns& runs) {
  ClaimTable table{
      .title = "What a form costs, by condition, at rates that the baseline has too; ± and pairs of W_Q = I",
      .columns = {"W_Q = I", "±", "pairs"},
      .measured = "less the baseline, nats",
      .settings = {"pairs"},
      .rows_are = "condition",
      .decimals = 4,
      .band = interval_of_pairs};
  for (size_t i = 1; i < compared_by_condition.size(); ++i) {
    table.columns.push_back(form_called(compared_by_condition[i]).words);
  }
  for (const PlanCondition& condition : conditions) {
    std::vector<double> row;
    for (const std::string& form : compared_by_condition) {
      const Estimate above = loss_above_at_common_rates(runs, form + condition.ending, "baseline" + condition.ending);
      row.push_back(above.count > 0 ? above.mean : std::nan(""));
      if (row.size() == 1) {
        row.insert(row.end(), {above.interval ? above.half_width() : std::nan(""), static_cast<double>(above.count)});
      }
    }
    if (!std::isnan(row.front())) {
      table.names.push_back(condition.words);
      table.rows.push_back(row);
    }
  }
  return table;
}

// Pairs of one condition, seed and rate, whichever: a point for each, against the tokens that both saw.
struct PairsOfForm {
  Series by_tokens, by_width;
};

PairsOfForm pairs_of(const std::vector<PlanCondition>& conditions, const TrainedRuns& runs, const std::string& form) {
  PairsOfForm found;
  found.by_tokens.name = form_called(form).words;
  for (const PlanCondition& condition : conditions) {
    const bool of_width = condition.ending.starts_with("-d") && std::isdigit(condition.ending[2]);
    for (const Settled& after : runs.at_rates(form + condition.ending)) {
      const std::optional<Settled> before = runs.at_rate("baseline" + condition.ending, after.rate);
      for (const TrainedRun* run : after.runs) {
        const Settled one{.runs = {run}};
        const Estimate above = before ? loss_above(one, *before) : Estimate();
        if (above.count == 0) {
          continue;
        }
        found.by_tokens.x.push_back(millions_of_tokens(condition.config));
        found.by_tokens.y.push_back(above.mean);
        if ((of_width || condition.ending == "-half-steps") && after.rate == condition.rates.front()) {
          found.by_width.x.push_back(std::log2(static_cast<double>(width_of(condition.config))));
          found.by_width.y.push_back(above.mean);
        }
      }
    }
  }
  return found;
}

void compare_pairs(const std::vector<PlanCondition>& conditions, const TrainedRuns& runs, Outcome& found) {
  Figure figure{.kind = FigureKind::scatter,
                .title = "What a form costs: every pair of runs, by tokens",
                .words = "A point for each pair of one condition, seed and rate.",
                .x = {.words = "million tokens", .log = true},
                .y = {.words = "loss above the baseline", .unit = "nats a token"}};
  for (const char* form : {"no-query", "no-key", "no-value"}) {
    const PairsOfForm pairs = pairs_of(conditions, runs, form);
    std::vector<double> differences = pairs.by_tokens.y;
    if (differences.empty()) {
      continue;
    }
    figure.series.push_back(pairs.by_tokens);
    const int64_t lost = std::count_if(differences.begin(), differences.end(), [](double d) { return d > 0; });
    std::sort(differences.begin(), differences.end());
    const size_t count = differences.size();
    found.compared.push_back({fmt::format("{}, pairs that lose", pairs.by_tokens.name), "not said",
                              fmt::format("{} of {}, median {:+.4f}", lost, count,
                                          (differences[(count - 1) / 2] + differences[count / 2]) / 2)});
    if (form == std::string("no-query") && pairs.by_width.x.size() > 1) {
      found.compared.push_back({"W_Q = I, slope by doubled width", "not said",
                                trend("", pairs.by_width.x, pairs.by_width.y, ClaimedTrend::falls).words});
    }
  }
  if (!figure.series.empty()) {
    found.figures.push_back(figure);
  }
}

}  // namespace

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
  Outcome found;
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"no-query-half", "+0.000"},     {"no-query-half-larger-mlp", "-0.015"},
      {"smaller-mlp", "+0.011"},       {"smaller-width", "+0.012"},
      {"no-query", "not said"},        {"no-query-larger-mlp", "not said"},
      {"no-key", "not said"},          {"no-value", "not said"},
      {"nonlinear-query", "not said"}, {"no-query-double", "not said"}};
  const std::optional<Settled> baseline = runs.best("baseline");
  found.compared = {{"baseline, nats a token", "2.944, BPE", baseline ? fmt::format("{:.4f}", baseline->loss) : "-"}};
  std::vector<std::string> variants = {"baseline"};
  for (const auto& [form, claimed] : rows) {
    if (const Estimate above = loss_above(runs, form, "baseline"); above.count > 0) {
      const bool one_rate = runs.at_rates(form).size() == 1;  // with others it could come lower, not higher
      found.compared.push_back({form_called(form).words, claimed, in_short(above) + (one_rate ? ", one rate" : "")});
      variants.push_back(form);
    }
  }
  // At whichever scale of the scores ends lower.
  const std::optional<Settled> plain = runs.best("no-query"), halved = runs.best("no-query-half");
  const std::string better = !plain || (halved && halved->loss < plain->loss) ? "no-query-half" : "no-query";
  if (const Estimate above = loss_above(runs, better, "smaller-mlp"); above.count > 0) {
    found.compared.push_back({"W_Q = I against an MLP of 3.5 d", "-0.011", in_short(above)});
  }
  ClaimFindings findings{equal_within(form_called(better).words + " against the baseline",
                                      loss_above(runs, better, "baseline"), least_cost)};
  if (trial.scale != ClaimScale::full) {
    const std::vector<PlanCondition> conditions = query_conditions(trial);
    for (const PlanCondition& condition : conditions) {
      const Estimate above =
          loss_above_at_common_rates(runs, "no-query" + condition.ending, "baseline" + condition.ending);
      if (!condition.ending.empty() && above.count > 0) {
        findings.further.push_back(equal_within(condition.words, above, least_cost));
      }
    }
    compare_pairs(conditions, runs, found);
    found.tables = {table_of_rates(runs), table_of_conditions(conditions, runs)};
  }
  found.tables.insert(found.tables.begin(),
                      table_of_variants("Validation loss, each at its best rate", runs, variants));
  found.figures.insert(found.figures.begin(),
                       {curves_of_variants("Validation loss while training", runs, variants),
                        differences_of_variants("The same, above the baseline", runs, variants)});
  decide(trial.scale, findings, found);
  return found;
}

PaperClaim claim_of_query_elimination() {
  return trained_claim(
      {.id = "query-elimination",
       .paper = Paper::query_elimination,
       .place = "Table 2, Figure 1",
       .says = "Trained with W_Q = I, a model reaches the baseline's loss with 8 % fewer parameters.",
       .recorded = ClaimVerdict::does_not_hold,
       .cost_in_full = "its five configurations of GPT-2 124M and three more, each with three seeds of 29.5 billion "
                       "tokens: 19 hours a run on one H200 at 442 thousand tokens a second",
       .discussed = "LAW.md"},
      plan_query_elimination, judge_query_elimination);
}

}  // namespace pare
