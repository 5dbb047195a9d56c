#include "pare/claims/plan.h"

#include <algorithm>
#include <set>

#include "pare/support/error.h"

namespace pare {

namespace {

template <class T>
const T& called(const std::vector<T>& all, const std::string& name, std::string T::*key) {
  const auto found = std::ranges::find_if(all, [&](const T& one) { return one.*key == name; });
  PARE_CHECK(found != all.end(), "a line of a plan names what is not in it: " + name);
  return *found;
}

PlannedRun planned_run(const PlanForm& form, const PlanCondition& condition, double rate, int64_t seed) {
  const auto name_of = [&](const std::string& variant, const std::optional<double>& own = {}) {
    return PlannedRun{
        variant,
        {{"optimiser", {{"lr", own.value_or(condition.rates.at(0))}}}, {"seed", form.start_seed.value_or(seed)}}}
        .name();
  };
  PlannedRun run{.variant = form.id + condition.ending,
                 .config = changed(form.make ? form.make(condition.config, seed) : condition.config,
                                   {{"optimiser.lr", rate}, {"seed", seed}}),
                 .passes = form.passes};
  const std::string& start = form.from.empty() && form.starts ? condition.start : form.from;
  run.from = start.empty() ? "" : name_of(start, form.start_rate);
  run.teacher = form.teacher.empty() ? "" : name_of(form.teacher);
  if (form.look_at_all || seed == 0) {
    run.look = form.look;
  }
  return run;
}

}  // namespace

PlanForm form_of(std::string id, std::string words, ConfigChanges changes) {
  return {.id = std::move(id),
          .words = std::move(words),
          .make = [changes = std::move(changes)](const auto& config, int64_t) { return changed(config, changes); }};
}

PlanForm fixed_form(std::string id, nlohmann::json config) {
  return {.id = std::move(id), .make = [config = std::move(config)](const auto&, int64_t) { return config; }};
}

std::vector<PlannedRun> planned_runs(const PlanTable& table) {
  std::vector<PlannedRun> plan;
  std::set<std::string> names;
  for (const PlanLine& line : table.lines) {
    for (const int64_t seed : line.seeds) {
      for (const size_t rate : line.rates) {
        for (const std::string& ending : line.conditions) {
          const PlanCondition& condition = called(table.conditions, ending, &PlanCondition::ending);
          for (const std::string& id : line.forms) {
            const PlanForm& form = called(table.forms, id, &PlanForm::id);
            const std::vector<double>& rates = form.rates.empty() ? condition.rates : form.rates;
            if (rate >= rates.size()) {
              continue;
            }
            PlannedRun run = planned_run(form, condition, rates[rate], seed);
            if (names.insert(run.name()).second) {
              plan.push_back(std::move(run));
            }
          }
        }
      }
    }
  }
  return plan;
}

nlohmann::json usual_run(const Trial& trial) {
  const nlohmann::json usual =
      nlohmann::json::parse(R"({"data": {"train": ["novels-train.txt"], "validation": ["novels-val.txt"]},
    "architecture": {"width": 384, "vocab": 256, "context": 512, "embedding": {"position": "learned"},
      "blocks": [{"repeat": 6,
        "attention": {"heads": 6, "head_width": 64, "norm": {"kind": "layer", "epsilon": 1e-05, "bias": true},
                      "bias": {"query": true, "key": true, "value": true, "output": true}},
        "mlp": {"width": 1536, "activation": "gelu_tanh", "norm": {"kind": "layer", "epsilon": 1e-05, "bias": true},
                "bias": {"up": true, "down": true}}}],
      "final_norm": {"kind": "layer", "epsilon": 1e-05, "bias": true}, "head": {"tied": true}},
    "batch": 256, "steps": 1600, "seed": 0, "dtype": "bfloat16",
    "optimiser": {"lr": 0.001, "min_lr": 0.0001, "warmup": 100, "betas": [0.9, 0.95], "decay": 0.1, "clip": 1.0},
    "evaluate": {"every": 400, "batches": 20}, "checkpoint": {"every": 100000, "keep": 1}})");
  if (trial.scale != ClaimScale::smoke) {
    return usual;
  }
  return changed(usual, {{"task", "sorting"},
                         {"data", {{"length", 4}, {"symbols", 8}}},
                         {"dtype", "float32"},
                         {"architecture.width", 32},
                         {"architecture.vocab", 19},
                         {"architecture.context", 16},
                         {"architecture.blocks.0.repeat", 2},
                         {"architecture.blocks.*.attention.heads", 4},
                         {"architecture.blocks.*.attention.head_width", 8},
                         {"architecture.blocks.*.mlp.width", 128},
                         {"batch", 16},
                         {"steps", 20},
                         {"optimiser.warmup", 5},
                         {"evaluate", {{"every", 10}, {"batches", 2}}}});
}

nlohmann::json short_run(const Trial& trial) {
  const nlohmann::json usual = usual_run(trial);
  return trial.scale == ClaimScale::small ? changed(usual, {{"batch", 64}, {"steps", 1000}, {"evaluate.every", 200}})
                                          : usual;
}

}  // namespace pare
