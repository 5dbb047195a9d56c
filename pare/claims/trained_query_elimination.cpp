// Paper 0, Table 2 and Figure 1: models trained from scratch with W_Q = I, against the baseline and against controls
// that lose as many parameters elsewhere; and under which conditions the difference grows or shrinks.

#include "pare/claims/trained_query_elimination.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "pare/claims/trained_removals.h"

namespace pare {

namespace {

using Changes = std::vector<std::pair<std::string, nlohmann::json>>;

const std::string of_attention = "architecture.blocks.*.attention.", of_mlp = "architecture.blocks.*.mlp.";

const nlohmann::json& first_block(const nlohmann::json& config) {
  return config.at("architecture").at("blocks").at(0);
}

// The identity in place of one of query, key and value, and no bias there.
Changes identity_of(const nlohmann::json& config, const std::string& slot) {
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

using Maker = nlohmann::json (*)(const nlohmann::json& baseline);

const std::map<std::string_view, Maker>& makers() {
  static const std::map<std::string_view, Maker> all = {
      {query_form::baseline.id, [](const nlohmann::json& config) { return config; }},
      {query_form::no_query.id, without_query},
      {query_form::halved.id, [](const nlohmann::json& config) { return without_query_scaled(config, 0.5); }},
      {query_form::doubled.id, [](const nlohmann::json& config) { return without_query_scaled(config, 2); }},
      {query_form::larger.id, [](const nlohmann::json& config) { return with_mlp_of(without_query(config), 4.5); }},
      {query_form::larger_halved.id,
       [](const nlohmann::json& config) { return with_mlp_of(without_query_scaled(config, 0.5), 4.5); }},
      {query_form::smaller_mlp.id, [](const nlohmann::json& config) { return with_mlp_of(config, 3.5); }},
      {query_form::smaller_width.id,
       [](const nlohmann::json& config) {  // 62 of 64, as the paper has 744 of 768
         const nlohmann::json& attention = first_block(config).at("attention");
         const int64_t k = attention.at("head_width").get<int64_t>();
         return with_heads(config, attention.at("heads").get<int64_t>(), k - (k + 31) / 32);
       }},
      {query_form::no_key.id, [](const nlohmann::json& config) { return changed(config, identity_of(config, "key")); }},
      {query_form::no_value.id,
       [](const nlohmann::json& config) { return changed(config, identity_of(config, "value")); }},
      {query_form::nonlinear.id,
       [](const nlohmann::json& config) {  // two matrices, each half as wide as the one that they stand for
         const nlohmann::json query = {{"width", width_of(config) / 2}, {"activation", "gelu"}};
         return changed(config, {{of_attention + "query", {{"nonlinear", query}}}});
       }}};
  return all;
}

}  // namespace

// At smoke scale so few steps that all of it takes seconds.
nlohmann::json query_run(const Trial& trial) {
  const nlohmann::json usual = usual_run(trial);
  return trial.scale == ClaimScale::smoke ? changed(usual, {{"steps", 6}, {"evaluate.every", 3}}) : usual;
}

std::vector<QueryCondition> query_conditions(const Trial& trial) {
  const nlohmann::json base = query_run(trial);
  const int64_t steps = base.at("steps").get<int64_t>();
  const int64_t head_width = first_block(base).at("attention").at("head_width").get<int64_t>();
  const int64_t heads = first_block(base).at("attention").at("heads").get<int64_t>();
  const nlohmann::json half = changed(base, {{"steps", steps / 2}});
  const nlohmann::json brief = trial.scale == ClaimScale::smoke ? half : short_run(trial);
  const auto width = [&](int64_t of_heads, std::vector<double> rates) {
    const int64_t d = of_heads * head_width;
    return QueryCondition{fmt::format("d{}", d), fmt::format("half steps, width {}", d),
                          with_heads(half, of_heads, head_width), std::move(rates), true};
  };
  const nlohmann::json rope =
      changed(brief, {{"architecture.embedding.position", "none"}, {of_attention + "rope", nlohmann::json::object()}});
  const Changes no_biases = {{of_attention + "bias", nlohmann::json::object()},
                             {of_mlp + "bias", nlohmann::json::object()},
                             {of_attention + "norm.bias", false},
                             {of_mlp + "norm.bias", false},
                             {"architecture.final_norm.bias", false}};
  const nlohmann::json deeper =
      changed(brief, {{"architecture.blocks.*.repeat", 2 * first_block(base).at("repeat").get<int64_t>()}});
  const nlohmann::json last_rate = changed(base, {{"optimiser.min_lr", 2e-5}});
  std::vector<QueryCondition> found = {
      width(heads - 2, {2e-3, 4e-3}),
      {"half-steps", "half steps", half, {2e-3, 4e-3}, true, true},
      width(2 * heads, {1e-3, 2e-3}),
      width(heads + 2, {2e-3, 1e-3}),
      {"short", "short", brief, {2e-3, 4e-3}, false, true},
      {"depth12", "short, twice as deep", deeper, {2e-3}},
      {"rope", "short, RoPE", rope, {2e-3}},
      {"wide-start", "short, wider start", changed(brief, {{"init.deviation", 0.04}}), {2e-3}},
      // As large as the product of two that are drawn is, at this width.
      {"key-start", "short, smaller W_K", changed(brief, {{"init.key", 0.4}}), {2e-3}},
      {"no-decay", "short, no weight decay", changed(brief, {{"optimiser.decay", 0.0}}), {2e-3}},
      {"no-biases", "short, no biases", changed(brief, no_biases), {2e-3}},
      {"no-biases-usual", "no biases", changed(base, no_biases), {2e-3}},
      {"key-start-usual", "smaller W_K", changed(base, {{"init.key", 0.4}}), {2e-3, 4e-3}},
      {"last-rate", "the paper's last rate", last_rate, {2e-3, 4e-3}},
      {"long", "twice the steps", changed(base, {{"steps", 2 * steps}}), {2e-3}, false, true},
  };
  if (trial.scale != ClaimScale::smoke) {
    const nlohmann::json bpe = changed(half, {{"architecture.vocab", 8192},
                                              {"data.train", nlohmann::json::array()},
                                              {"data.validation", nlohmann::json::array()},
                                              {"data.shards", "novels-bpe8k"}});
    found.insert(found.begin() + 4,
                 {{"bpe8k", "half steps, BPE tokens", bpe, {2e-3}},
                  {"bpe8k-d768", "half steps, BPE, 768", with_heads(bpe, 2 * heads, head_width), {1e-3}}});
  }
  return found;
}

std::string query_variant(const QueryForm& form, const std::string& condition) {
  return condition.empty() ? form.id : fmt::format("{}-{}", form.id, condition);
}

namespace {

PlannedRun planned(const nlohmann::json& config, const QueryForm& form, const std::string& condition, double rate,
                   int64_t seed) {
  return {query_variant(form, condition),
          changed(makers().at(form.id)(config), {{"optimiser.lr", rate}, {"seed", seed}})};
}

// The paper's own: GPT-2 small without biases on OpenWebText, and its learning rates.
std::vector<PlannedRun> plan_in_full() {
  using namespace query_form;
  const nlohmann::json config = nlohmann::json::parse(R"({
    "architecture": {"width": 768, "vocab": 50304, "context": 1024, "embedding": {"position": "learned"},
      "blocks": [{"repeat": 12, "attention": {"heads": 12, "head_width": 64, "norm": {"kind": "layer"}},
                  "mlp": {"width": 3072, "activation": "gelu", "norm": {"kind": "layer"}}}],
      "final_norm": {"kind": "layer"}, "head": {"tied": true}},
    "data": {"shards": "openwebtext-gpt2"}, "batch": 48, "accumulate": 10, "steps": 60000, "dtype": "bfloat16",
    "optimiser": {"lr": 6e-4, "min_lr": 6e-5, "warmup": 2000, "betas": [0.9, 0.95], "decay": 0.1, "clip": 1.0},
    "evaluate": {"every": 1000, "batches": 50}, "checkpoint": {"every": 10000, "keep": 1}})");
  const nlohmann::json lower = changed(config, {{"optimiser.min_lr", 2e-5}});
  std::vector<PlannedRun> plan;
  for (const int64_t seed : {0, 1, 2}) {
    plan.push_back(planned(config, baseline, "", 6e-4, seed));
    plan.push_back(planned(lower, halved, "", 1.6e-3, seed));
    plan.push_back(planned(lower, larger_halved, "", 2.2e-3, seed));
    plan.push_back(planned(config, smaller_mlp, "", 6e-4, seed));
    plan.push_back(planned(config, smaller_width, "", 6e-4, seed));
    plan.push_back(planned(lower, no_query, "", 1.6e-3, seed));
    plan.push_back(planned(config, no_query, "", 6e-4, seed));
    plan.push_back(planned(lower, baseline, "", 1.6e-3, seed));
  }
  return plan;
}

}  // namespace

// A run comes first whose absence leaves more open: each form once, both sides of the question with another seed, other
// rates, then conditions and what makes them surer.
std::vector<PlannedRun> plan_query_elimination(const Trial& trial) {
  using namespace query_form;
  if (trial.scale == ClaimScale::full) {
    return plan_in_full();
  }
  const nlohmann::json base = query_run(trial);
  constexpr double usual = 2e-3;
  std::vector<PlannedRun> plan;
  const auto add = [&](const std::vector<QueryForm>& forms, double rate, int64_t seed) {
    for (const QueryForm& form : forms) {
      plan.push_back(planned(base, form, "", rate, seed));
    }
  };
  const auto add_under = [&](const QueryCondition& condition, const std::vector<QueryForm>& forms, size_t rate,
                             int64_t seed = 0) {
    for (const QueryForm& form : forms) {
      if (rate >= condition.rates.size()) {
        continue;
      }
      const PlannedRun run = planned(condition.config, form, condition.id, condition.rates[rate], seed);
      const bool is_there = std::any_of(plan.begin(), plan.end(),
                                        [&](const PlannedRun& earlier) { return earlier.name() == run.name(); });
      if (!is_there) {
        plan.push_back(run);
      }
    }
  };
  add({baseline, no_query, halved, smaller_mlp, larger}, usual, 0);
  const std::vector<QueryCondition> conditions = query_conditions(trial);
  const auto add_conditions = [&](const std::vector<QueryForm>& forms, size_t rate, int64_t seed = 0) {
    for (const QueryCondition& condition : conditions) {
      add_under(condition, forms, rate, seed);
    }
  };
  if (trial.scale == ClaimScale::smoke) {  // one of everything
    add({smaller_width, no_key, no_value, nonlinear, doubled}, usual, 0);
    add({baseline}, usual, 1);
    add_conditions({baseline, no_query}, 0);
    return plan;
  }
  add({baseline, no_query, smaller_mlp}, 1e-3, 0);
  add({baseline, no_query}, usual, 1);
  add({baseline, no_query, halved}, 4e-3, 0);
  add({no_key, no_value}, usual, 0);
  add({no_value}, usual, 1);
  add({smaller_width}, usual, 0);
  const auto called = [&](std::string_view id) {
    return *std::find_if(conditions.begin(), conditions.end(),
                         [id](const QueryCondition& condition) { return condition.id == id; });
  };
  add_under(called("short"), {baseline, no_query, no_key, no_value, nonlinear}, 0);
  add_conditions({baseline, no_query}, 0);
  for (const char* condition : {"key-start-usual", "last-rate"}) {
    add_under(called(condition), {baseline, no_query}, 1);
  }
  add_under(called("key-start-usual"), {baseline, no_query}, 0, 1);
  add({no_query, no_key}, 8e-3, 0);
  add({larger_halved, no_value, no_key, larger, smaller_mlp}, 4e-3, 0);
  add({no_value, no_key}, 1e-3, 0);
  for (const QueryCondition& condition : conditions) {  // what a second seed says most about
    if (condition.of_width || condition.id == "bpe8k") {
      add_under(condition, {baseline, no_query}, 0, 1);
    }
  }
  add({smaller_width}, 4e-3, 0);
  add({smaller_width}, 1e-3, 0);
  add_conditions({baseline, no_query}, 0, 1);
  add_conditions({no_value}, 0);
  add({nonlinear}, usual, 0);
  add({smaller_mlp, larger}, usual, 1);
  add({baseline, no_query, smaller_mlp, larger}, usual, 2);
  add_conditions({baseline, no_query}, 1);
  add({nonlinear}, 1e-3, 0);
  add({nonlinear}, 4e-3, 0);
  add({halved, larger}, 1e-3, 0);
  add({doubled}, usual, 0);
  add({no_key, halved, smaller_width, nonlinear}, usual, 1);
  return plan;
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
