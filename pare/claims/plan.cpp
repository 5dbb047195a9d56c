#include "pare/claims/plan.h"

#include <algorithm>
#include <set>

#include "pare/support/error.h"

namespace pare {

namespace {

template <class T>
const T& called(const std::vector<T>& all, const std::string& name, std::string T::*key) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const T& one) { return one.*key == name; });
  PARE_CHECK(found != all.end(), "a line of a plan names what is not in it: " + name);
  return *found;
}

PlannedRun planned_run(const PlanForm& form, const PlanCondition& condition, double rate, int64_t seed) {
  const auto name_of = [&](const std::string& variant) {
    return PlannedRun{variant, {{"optimiser", {{"lr", condition.rates.at(0)}}}, {"seed", seed}}}.name();
  };
  PlannedRun run{.variant = form.id + condition.ending,
                 .config = changed(form.make ? form.make(condition.config, seed) : condition.config,
                                   {{"optimiser.lr", rate}, {"seed", seed}}),
                 .passes = form.passes};
  const std::string& start = form.from.empty() && form.starts ? condition.start : form.from;
  run.from = start.empty() ? "" : name_of(start);
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

}  // namespace pare
