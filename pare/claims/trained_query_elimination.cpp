// Paper 0, Table 2 and Figure 1: models trained from scratch with W_Q = I, against the baseline and against controls
// that lose as many parameters elsewhere; and under which conditions the difference grows or shrinks.

#include "pare/claims/trained_removals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "pare/support/text.h"

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

// What is compared, each made of a baseline.
struct QueryForm {
  std::string id, words;
  nlohmann::json (*made)(const nlohmann::json& baseline);
};

const QueryForm baseline{"baseline", "baseline", [](const nlohmann::json& config) { return config; }};
const QueryForm reduced{"no-query", "W_Q = I", without_query};
const QueryForm halved{"no-query-half", "W_Q = I, scale / 2",
                       [](const nlohmann::json& config) { return without_query_scaled(config, 0.5); }};
const QueryForm doubled{"no-query-double", "W_Q = I, scale x 2",
                        [](const nlohmann::json& config) { return without_query_scaled(config, 2); }};
const QueryForm larger{"no-query-larger-mlp", "W_Q = I, MLP of 4.5 d",
                       [](const nlohmann::json& config) { return with_mlp_of(without_query(config), 4.5); }};
const QueryForm larger_halved{
    "no-query-half-larger-mlp", "W_Q = I, scale / 2, MLP of 4.5 d",
    [](const nlohmann::json& config) { return with_mlp_of(without_query_scaled(config, 0.5), 4.5); }};
const QueryForm smaller_mlp{"smaller-mlp", "MLP of 3.5 d",
                            [](const nlohmann::json& config) { return with_mlp_of(config, 3.5); }};
// 62 of 64, as the paper has 744 of 768.
const QueryForm smaller_width{"smaller-width", "smaller d", [](const nlohmann::json& config) {
                                const nlohmann::json& attention = first_block(config).at("attention");
                                const int64_t k = attention.at("head_width").get<int64_t>();
                                return with_heads(config, attention.at("heads").get<int64_t>(), k - (k + 31) / 32);
                              }};
const QueryForm no_key{"no-key", "W_K = I",
                       [](const nlohmann::json& config) { return changed(config, identity_of(config, "key")); }};
const QueryForm no_value{"no-value", "W_V = I",
                         [](const nlohmann::json& config) { return changed(config, identity_of(config, "value")); }};
// Two matrices, each half as wide as the one that it stands for.
const QueryForm nonlinear{"nonlinear-query", "query x + N(x)", [](const nlohmann::json& config) {
                            const nlohmann::json query = {{"width", width_of(config) / 2}, {"activation", "gelu"}};
                            return changed(config, {{of_attention + "query", {{"nonlinear", query}}}});
                          }};

// At smoke scale so few steps that all of it takes seconds.
nlohmann::json base_run(const Trial& trial) {
  const nlohmann::json usual = usual_run(trial);
  return trial.scale == ClaimScale::smoke ? changed(usual, {{"steps", 6}, {"evaluate.every", 3}}) : usual;
}

// Under which W_Q = I is held against its baseline again.
struct Condition {
  std::string id, words;
  nlohmann::json config;                    // of its baseline
  std::vector<double> rates;                // the likeliest first
  bool of_width = false, of_steps = false;  // a row of the table by width, by steps
};

std::string variant_name(const QueryForm& form, const std::string& condition) {
  return condition.empty() ? form.id : form.id + "-" + condition;
}

std::vector<Condition> conditions_of(const Trial& trial) {
  const nlohmann::json base = base_run(trial);
  const int64_t steps = base.at("steps").get<int64_t>();
  const int64_t head_width = first_block(base).at("attention").at("head_width").get<int64_t>();
  const int64_t heads = first_block(base).at("attention").at("heads").get<int64_t>();
  const nlohmann::json half = changed(base, {{"steps", steps / 2}});
  const auto width = [&](int64_t of_heads, std::vector<double> rates) {
    const int64_t d = of_heads * head_width;
    return Condition{fmt::format("d{}", d), fmt::format("width {}, half the steps", d),
                     with_heads(half, of_heads, head_width), std::move(rates), true};
  };
  const nlohmann::json rope =
      changed(half, {{"architecture.embedding.position", "none"}, {of_attention + "rope", nlohmann::json::object()}});
  const nlohmann::json no_biases = changed(half, {{of_attention + "bias", nlohmann::json::object()},
                                                  {of_mlp + "bias", nlohmann::json::object()},
                                                  {of_attention + "norm.bias", false},
                                                  {of_mlp + "norm.bias", false},
                                                  {"architecture.final_norm.bias", false}});
  std::vector<Condition> found = {
      width(heads - 2, {2e-3, 4e-3}),
      {"half-steps", "half the steps", half, {2e-3, 4e-3}, true, true},
      width(2 * heads, {1e-3, 2e-3}),
      width(heads + 2, {2e-3, 1e-3}),
      {"depth12",
       "twice the layers, half the steps",
       changed(half, {{"architecture.blocks.*.repeat", 2 * first_block(base).at("repeat").get<int64_t>()}}),
       {2e-3}},
      {"rope", "RoPE, half the steps", rope, {2e-3}},
      {"no-decay", "no weight decay, half the steps", changed(half, {{"optimiser.decay", 0.0}}), {2e-3}},
      {"wide-start", "start twice as wide, half the steps", changed(half, {{"init.deviation", 0.04}}), {2e-3}},
      {"no-biases", "no biases, half the steps", no_biases, {2e-3}},
      {"long", "2.5 times the steps", changed(base, {{"steps", 5 * steps / 2}}), {2e-3}, false, true},
  };
  if (trial.scale != ClaimScale::smoke) {
    const nlohmann::json bpe = changed(half, {{"architecture.vocab", 8192},
                                              {"data.train", nlohmann::json::array()},
                                              {"data.validation", nlohmann::json::array()},
                                              {"data.shards", "novels-bpe8k"}});
    found.insert(found.begin() + 3, {"bpe8k", "8,192 tokens of BPE, half the steps", bpe, {2e-3}});
  }
  return found;
}

PlannedRun planned(const nlohmann::json& config, const QueryForm& form, const std::string& condition, double rate,
                   int64_t seed) {
  return {variant_name(form, condition), changed(form.made(config), {{"optimiser.lr", rate}, {"seed", seed}})};
}

// The paper's own: GPT-2 small without biases on OpenWebText, and its learning rates.
std::vector<PlannedRun> plan_in_full() {
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
    plan.push_back(planned(lower, reduced, "", 1.6e-3, seed));
    plan.push_back(planned(config, reduced, "", 6e-4, seed));
    plan.push_back(planned(lower, baseline, "", 1.6e-3, seed));
  }
  return plan;
}

}  // namespace

// A run comes first whose absence leaves more open: each form once, both sides of the question with another seed, other
// rates, then conditions and what makes them surer.
std::vector<PlannedRun> plan_query_elimination(const Trial& trial) {
  if (trial.scale == ClaimScale::full) {
    return plan_in_full();
  }
  const nlohmann::json base = base_run(trial);
  constexpr double usual = 2e-3;
  std::vector<PlannedRun> plan;
  const auto add = [&](const std::vector<QueryForm>& forms, double rate, int64_t seed) {
    for (const QueryForm& form : forms) {
      plan.push_back(planned(base, form, "", rate, seed));
    }
  };
  add({baseline, reduced, halved, smaller_mlp, larger}, usual, 0);
  const std::vector<Condition> conditions = conditions_of(trial);
  const auto add_conditions = [&](const std::vector<QueryForm>& compared, size_t rate) {
    for (const Condition& condition : conditions) {
      for (const QueryForm& form : compared) {
        if (rate < condition.rates.size()) {
          plan.push_back(planned(condition.config, form, condition.id, condition.rates[rate], 0));
        }
      }
    }
  };
  if (trial.scale == ClaimScale::smoke) {  // one of everything
    add({smaller_width, no_key, no_value, nonlinear, doubled}, usual, 0);
    add({baseline}, usual, 1);
    add_conditions({baseline, reduced}, 0);
    return plan;
  }
  add({baseline, reduced, smaller_mlp}, 1e-3, 0);
  add({baseline, reduced}, usual, 1);
  add({baseline, reduced, halved}, 4e-3, 0);
  add({no_key, no_value}, usual, 0);
  add({no_value}, usual, 1);
  add_conditions({baseline, reduced}, 0);
  add_conditions({no_value}, 0);
  add({smaller_width, nonlinear}, usual, 0);
  add({smaller_mlp, larger}, usual, 1);
  add({baseline, reduced, smaller_mlp, larger}, usual, 2);
  add_conditions({baseline, reduced}, 1);
  add({smaller_mlp, larger}, 4e-3, 0);
  add({no_key, no_value, smaller_width, nonlinear}, 1e-3, 0);
  add({no_key, no_value, smaller_width, nonlinear}, 4e-3, 0);
  add({halved, larger}, 1e-3, 0);
  add({doubled}, usual, 0);
  add_conditions({smaller_mlp}, 0);
  add({no_key, halved, smaller_width, nonlinear}, usual, 1);
  add({no_key, no_value, halved, smaller_width, nonlinear}, usual, 2);
  return plan;
}

namespace {

std::string signed_number(double number) {
  return fmt::format("{:+.4f}", number);
}

}  // namespace

std::string difference_shown(const Settled& settled, const Settled& reference) {
  const std::string difference = signed_number(difference_of(settled, reference));
  if (!have_several_seeds(settled, reference)) {
    return difference + " (one seed)";
  }
  return difference + (equal_within_spread(settled, reference).value_or(false) ? " (equal)" : "");
}

namespace {

// A variant at its best rate. Where one seed was trained there, and several at another rate, these stand for its
// spread.
std::optional<Settled> settled_at_best(const TrainedRuns& runs, const std::string& variant) {
  std::optional<Settled> best = runs.best(variant);
  for (const Settled& other : best ? runs.at_rates(variant) : std::vector<Settled>()) {
    if (!best->spread) {
      best->spread = other.spread;
    }
  }
  return best;
}

// W_Q = I under one condition, and W_V = I where it was trained too.
struct Gap {
  std::string words;
  Settled baseline, reduced;
  std::optional<Settled> without_value;
  double difference() const { return difference_of(reduced, baseline); }
  bool holds() const {  // as far as seeds can say it
    const std::optional<bool> equal = equal_within_spread(reduced, baseline);
    return equal && (*equal || difference() < 0);
  }
};

std::optional<Gap> gap_of(const TrainedRuns& runs, const std::string& condition, const std::string& words) {
  const std::optional<Settled> before = settled_at_best(runs, variant_name(baseline, condition));
  const std::optional<Settled> after = settled_at_best(runs, variant_name(reduced, condition));
  return before && after
             ? std::optional(Gap{words, *before, *after, settled_at_best(runs, variant_name(no_value, condition))})
             : std::nullopt;
}

// A form and the baseline, each at its best rate; or, where the form has not been trained at the baseline's, both at
// the best rate that they have in common: a rate that is missing is no fault of the form.
struct Pair {
  Settled form, reference;
};

std::optional<Pair> fair_pair(const TrainedRuns& runs, const QueryForm& form) {
  const std::optional<Settled> best = settled_at_best(runs, form.id), reference = settled_at_best(runs, baseline.id);
  if (!best || !reference) {
    return std::nullopt;
  }
  std::optional<Pair> found;
  for (const Settled& of_form : runs.at_rates(form.id)) {
    if (of_form.rate == reference->rate) {
      return Pair{*best, *reference};
    }
    for (const Settled& of_baseline : runs.at_rates(baseline.id)) {
      if (of_form.rate == of_baseline.rate && (!found || of_form.loss < found->form.loss)) {
        found = {of_form, of_baseline};
      }
    }
  }
  return found ? found : Pair{*best, *reference};
}

void compare_forms(const TrainedRuns& runs, const Settled& reference, Outcome& found) {
  found.compared.push_back({"baseline, nats a token", "2.944", fmt::format("{:.4f}", reference.loss)});
  const std::vector<std::pair<QueryForm, std::string>> rows = {
      {halved, "+0.000"},      {larger_halved, "-0.015"}, {smaller_mlp, "+0.011"}, {smaller_width, "+0.012"},
      {reduced, "not said"},   {larger, "not said"},      {no_key, "not said"},    {no_value, "not said"},
      {nonlinear, "not said"}, {doubled, "not said"}};
  std::vector<std::string> variants = {baseline.id};
  for (const auto& [form, claimed] : rows) {
    if (const std::optional<Pair> pair = fair_pair(runs, form)) {
      found.compared.push_back({form.words, claimed, difference_shown(pair->form, pair->reference)});
      variants.push_back(form.id);
    }
  }
  found.tables.push_back(
      table_of_variants("Validation loss, each at the best rate that it was trained at", runs, variants));
  found.figures.push_back(curves_of_variants("Validation loss while training", runs, variants));
}

// What W_Q = I costs as it depends on one number.
using Dependence = std::map<double, Gap>;

// Whether it changes by more than seeds do; on either side stand two single runs.
void compare_ends(const std::string& number, const Dependence& gaps, const std::optional<double>& spread,
                  Outcome& found) {
  if (gaps.size() < 2) {
    return;
  }
  ClaimTable table{fmt::format("What W_Q = I costs, by {}", number),
                   {number, "difference", "baseline"},
                   {},
                   "W_Q = I less the baseline, nats",
                   {"baseline"}};
  table.decimals = 4;
  for (const auto& [at, gap] : gaps) {
    table.rows.push_back({at, gap.difference(), gap.baseline.loss});
  }
  const auto& [first, least] = *gaps.begin();
  const auto& [last, most] = *gaps.rbegin();
  const double change = most.difference() - least.difference();
  const bool several =
      have_several_seeds(least.baseline, least.reduced) && have_several_seeds(most.baseline, most.reduced);
  const bool seen = spread && std::abs(change) > 2 * 2 * *spread;
  found.tables.push_back(table);
  found.compared.push_back(
      {fmt::format("W_Q = I, {} {:g} and {:g}", number, first, last), "not said",
       fmt::format("{} and {}{}", signed_number(least.difference()), signed_number(most.difference()),
                   !several     ? " (one seed)"
                   : !spread    ? ""
                   : !seen      ? " (equal)"
                   : change < 0 ? ": shrinks"
                                : ": grows")});
}

// Every condition that was trained, the usual one first.
std::vector<Gap> compare_conditions(const Trial& trial, const TrainedRuns& runs, const std::optional<double>& spread,
                                    Outcome& found) {
  std::vector<Gap> gaps;
  Dependence by_width, by_steps;
  const std::optional<Gap> usual = gap_of(runs, "", "as usual");
  if (usual) {
    gaps.push_back(*usual);
  }
  if (trial.scale == ClaimScale::full) {
    return gaps;
  }
  if (usual) {
    by_steps.emplace(base_run(trial).at("steps").get<double>(), *usual);
  }
  for (const Condition& condition : conditions_of(trial)) {
    const std::optional<Gap> gap = gap_of(runs, condition.id, condition.words);
    if (!gap) {
      continue;
    }
    gaps.push_back(*gap);
    if (condition.of_width) {
      by_width.emplace(static_cast<double>(width_of(condition.config)), *gap);
    }
    if (condition.of_steps) {
      by_steps.emplace(condition.config.at("steps").get<double>(), *gap);
    }
  }
  ClaimTable table{"What the identity costs, by condition",
                   {"W_Q = I", "W_V = I", "baseline", "seeds"},
                   {},
                   "less the baseline, nats",
                   {"baseline", "seeds"},
                   "condition",
                   {}};
  table.decimals = 4;
  for (const Gap& gap : gaps) {
    table.names.push_back(gap.words);
    const double of_value = gap.without_value ? difference_of(*gap.without_value, gap.baseline) : std::nan("");
    table.rows.push_back({gap.difference(), of_value, gap.baseline.loss,
                          static_cast<double>(std::min(gap.baseline.runs.size(), gap.reduced.runs.size()))});
  }
  if (gaps.size() > 1) {
    found.tables.push_back(table);
  }
  compare_ends("width", by_width, spread, found);
  compare_ends("steps", by_steps, spread, found);
  return gaps;
}

}  // namespace

Outcome judge_query_elimination(const Trial& trial, const TrainedRuns& runs) {
  Outcome found;
  const std::optional<Settled> reference = settled_at_best(runs, baseline.id);
  const std::optional<Settled> with_half = settled_at_best(runs, halved.id), plain = settled_at_best(runs, reduced.id);
  if (!reference || (!with_half && !plain)) {
    found.compared = {{"W_Q = I", "+0.000", "not trained yet"}};
    found.because = "the baseline and W_Q = I have not both been trained";
    return found;
  }
  compare_forms(runs, *reference, found);
  const bool half_is_best = !plain || (with_half && with_half->loss < plain->loss);
  const Settled& best = half_is_best ? *with_half : *plain;
  found.compared.push_back(
      {"best rate over the baseline's", "2.7", fmt::format("{:.3g}", best.rate / reference->rate)});
  const std::optional<double> spread = reference->spread ? reference->spread : best.spread;
  const std::vector<Gap> gaps = compare_conditions(trial, runs, spread, found);

  std::string numbers = fmt::format("W_Q = I ends at {:.4f}, the baseline at {:.4f}",
                                    of_shared_seeds(best, *reference).loss, of_shared_seeds(*reference, best).loss);
  if (const std::optional<Pair> control = fair_pair(runs, smaller_mlp)) {
    numbers +=
        fmt::format(" ({}; an MLP smaller by as many parameters: {})", signed_number(difference_of(best, *reference)),
                    signed_number(difference_of(control->form, control->reference)));
  }
  const std::optional<bool> equal = equal_within_spread(best, *reference);
  if (trial.scale == ClaimScale::smoke || !equal) {
    found.because = numbers + (equal ? ": nothing follows from numbers sorted by a small model"
                                     : ": one seed each decides nothing");
    return found;
  }
  if (*equal || best.loss < reference->loss) {
    const bool as_claimed = half_is_best || (with_half && equal_within_spread(*with_half, *reference).value_or(false));
    found.verdict = as_claimed ? ClaimVerdict::holds : ClaimVerdict::holds_corrected;
    found.because =
        numbers + (as_claimed ? ", no more than seeds differ" : ", but with the usual scale, not half of it");
    return found;
  }
  const auto holding = std::find_if(gaps.begin(), gaps.end(), [](const Gap& gap) { return gap.holds(); });
  if (holding != gaps.end()) {
    found.verdict = ClaimVerdict::holds_corrected;
    found.because = fmt::format("only with {}, where the difference is {}; else {}", holding->words,
                                signed_number(holding->difference()), numbers);
    return found;
  }
  found.verdict = ClaimVerdict::does_not_hold;
  found.because = numbers + ": at this scale more than seeds differ by";
  return found;
}

PaperClaim claim_of_query_elimination() {
  return trained_claim(
      {.id = "query-elimination",
       .paper = Paper::query_elimination,
       .place = "Table 2, Figure 1",
       .says = "Trained with W_Q = I, a model reaches the baseline's loss with 8 % fewer parameters.",
       .recorded = ClaimVerdict::does_not_hold,
       .cost_in_full = "eight configurations of GPT-2 124M with three seeds, 29.5 billion tokens each: 19 "
                       "hours a run on one H200 at 442 thousand tokens a second; the paper's five: 93"},
      plan_query_elimination, judge_query_elimination);
}

}  // namespace pare
