#pragma once
// What a claim trains, as a table: forms, conditions under which they are trained, rates and seeds.

#include "pare/claims/trained.h"

namespace pare {

using ConfigChanges = std::vector<std::pair<std::string, nlohmann::json>>;

// What is compared: the configuration of a condition, changed.
struct PlanForm {
  std::string id;  // begins the names of its variants
  std::string words = {};
  std::function<nlohmann::json(const nlohmann::json& config, int64_t seed)> make = {};  // none: as it is
  std::vector<double> rates = {};  // the likeliest first; none: those of the condition
  bool starts = false;             // from the last checkpoint of the condition's `start`, of its seed
  std::string from = {};           // or of this variant
  std::string teacher = {};
  std::optional<int64_t> start_seed = {};  // of both; none: that of the run
  std::optional<double> start_rate = {};   // of `from`; none: the first of the condition
  std::string passes = {};
  std::function<nlohmann::ordered_json(const std::filesystem::path& run)> look = {};
  bool look_at_all = false;  // else at the first seed
};
PlanForm form_of(std::string id, std::string words, ConfigChanges changes);
PlanForm fixed_form(std::string id, nlohmann::json config);  // this configuration, whatever the condition has

struct PlanCondition {
  std::string ending;  // of the names of variants; empty: the usual one
  std::string words = {};
  nlohmann::json config = {};
  std::vector<double> rates = {};
  std::string start = {};  // the variant that forms start from, at the first of the rates
};

// Every form under every condition, of each of these seeds, at the rate of that place in the list of its rates; forms
// or conditions that have fewer rates are left out.
struct PlanLine {
  std::vector<std::string> forms, conditions = {""};
  std::vector<size_t> rates = {0};
  std::vector<int64_t> seeds = {0};
};

struct PlanTable {
  std::vector<PlanForm> forms;
  std::vector<PlanCondition> conditions;
  std::vector<PlanLine> lines;  // what comes first is trained first; what two lines have is trained once
};
std::vector<PlannedRun> planned_runs(const PlanTable& table);

}  // namespace pare
