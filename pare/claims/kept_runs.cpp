#include "pare/claims/kept_runs.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t largest_kept_file = 100'000'000;

Json to_json(const std::map<int64_t, double>& by_step) {
  Json json = Json::object();
  for (const auto& [step, value] : by_step) {
    json[std::to_string(step)] = value;
  }
  return json;
}

std::map<int64_t, double> by_step_from(const nlohmann::json& json) {
  std::map<int64_t, double> values;
  for (const auto& [step, value] : json.items()) {
    int64_t number = 0;
    const auto [end, failed] = std::from_chars(step.data(), step.data() + step.size(), number);
    refuse_if(failed != std::errc() || end != step.data() + step.size(), "{} is no step", quote(step));
    values[number] = value.get<double>();
  }
  return values;
}

Json to_json(const PlannedRun& planned) {
  Json json = {{"config", planned.config}};
  for (const auto& [key, text] :
       {std::pair("from", planned.from), std::pair("teacher", planned.teacher), std::pair("passes", planned.passes)}) {
    if (!text.empty()) {
      json[key] = text;
    }
  }
  return json;
}

// What an edited file would say otherwise in one place than in another.
void refuse_contradictions(const TrainedRun& run, const PlannedRun& planned) {
  const int64_t steps = planned.config.at("steps").get<int64_t>();
  refuse_if(run.stopped.empty() ? run.steps != steps : run.steps < 0 || run.steps > steps,
            "it has {} steps, its configuration {}", run.steps, steps);
  refuse_if(run.parameters <= 0, "it has {} parameters", run.parameters);
  if (run.validation.empty() ? run.stopped.empty() : run.validation.rbegin()->second != run.loss) {
    throw InputError(fmt::format("its loss is {}, its last validation {}", run.loss,
                                 run.validation.empty() ? "missing" : fmt::to_string(run.validation.rbegin()->second)));
  }
  if (!run.validation.empty()) {
    const int64_t first = run.validation.begin()->first, last = run.validation.rbegin()->first;
    refuse_if(first < 0 || (run.stopped.empty() ? last != run.steps : last > run.steps),
              "it was measured from step {} to {}, and has {} steps", first, last, run.steps);
  }
  refuse_if(!(run.loss >= 0 && std::isfinite(run.loss) && run.accuracy >= 0 && run.accuracy <= 1 && run.seconds >= 0),
            "its loss is {}, its accuracy {}, its time {} s", run.loss, run.accuracy, run.seconds);
  refuse_if(run.device != "cpu" && run.device != "cuda", "it ran on {}", quote(run.device));
  for (const TrainedRun::Again& again : run.repeated) {
    refuse_if(!(again.loss >= 0 && std::isfinite(again.loss) && again.seconds >= 0),
              "it was repeated in {} s to a loss of {}", again.seconds, again.loss);
  }
}

}  // namespace

Json to_json(const TrainedRun& run, const PlannedRun& planned) {
  Json json = {{"name", run.name},
               {"parameters", run.parameters},
               {"steps", run.steps},
               {"seconds", run.seconds},
               {"device", run.device},
               {"data", run.data},
               {"loss", run.loss},
               {"accuracy", run.accuracy},
               {"validation", to_json(run.validation)},
               {"accuracies", to_json(run.accuracies)}};
  if (!run.stopped.empty()) {
    json["stopped"] = run.stopped;
  }
  if (!run.seen.is_null()) {
    json["seen"] = run.seen;
  }
  json.update(to_json(planned));
  return json;
}

TrainedRun run_from_json(const PlannedRun& planned, const nlohmann::ordered_json& json) {
  TrainedRun run = run_of(planned);
  run.parameters = json.at("parameters").get<int64_t>();
  run.steps = json.at("steps").get<int64_t>();
  run.seconds = json.at("seconds").get<double>();
  run.device = json.at("device").get<std::string>();
  run.data = json.at("data").get<std::string>();
  run.validation = by_step_from(json.at("validation"));
  run.accuracies = by_step_from(json.at("accuracies"));
  run.loss = json.at("loss").get<double>();
  run.accuracy = json.at("accuracy").get<double>();
  run.stopped = json.value("stopped", "");
  run.seen = json.value("seen", Json());
  for (const Json& again : json.value("repeated", Json::array_t())) {
    run.repeated.push_back({again.at("loss").get<double>(), again.value("seconds", 0.0)});
  }
  refuse_contradictions(run, planned);
  return run;
}

KeptRuns::KeptRuns(const fs::path& folder, std::string claim, ClaimScale scale)
    : path_(folder / kept_runs_file), claim_(std::move(claim)), scale_(to_words(scale)) {
  if (!path_exists(path_)) {
    return;
  }
  const nlohmann::json json = parse_json(read_text_file(path_, largest_kept_file), path_.string());
  try {
    if (json.at("claim") != claim_ || json.at("scale") != scale_) {
      throw InputError(fmt::format("{} has runs of {} at scale {}, not of {} at scale {}: name another folder",
                                   quote(shown(path_)), json.at("claim").dump(), json.at("scale").dump(), claim_,
                                   scale_));
    }
    for (const nlohmann::json& run : json.at("runs").get_ref<const nlohmann::json::array_t&>()) {
      const std::string name = run.at("name").get<std::string>();
      refuse_if(!runs_.emplace(name, run).second, "{} has two runs called {}", quote(shown(path_)), quote(name));
    }
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{}: not what a claim keeps of its runs ({})", quote(shown(path_)), error.what()));
  }
}

std::optional<TrainedRun> KeptRuns::find(const PlannedRun& planned) const {
  const auto found = runs_.find(planned.name());
  if (found == runs_.end()) {
    return std::nullopt;
  }
  const Json asked = to_json(planned);
  for (const char* key : {"config", "from", "teacher", "passes"}) {
    if (nlohmann::json(found->second.value(key, Json())) != nlohmann::json(asked.value(key, Json()))) {
      return std::nullopt;
    }
  }
  try {
    return run_from_json(planned, found->second);
  } catch (const std::exception& error) {
    throw InputError(fmt::format("{}: the run {} is not as it was kept ({})", quote(shown(path_)),
                                 quote(planned.name()), error.what()));
  }
}

void KeptRuns::keep(const TrainedRun& run, const PlannedRun& planned) {
  const std::optional<TrainedRun> first = find(planned);
  if (!first) {
    runs_[run.name] = to_json(run, planned);
  } else if (first->device == run.device && planned.from.empty() && planned.teacher.empty()) {
    runs_[run.name]["repeated"].push_back({{"loss", run.loss}, {"seconds", run.seconds}});
  }
  store();
}

void KeptRuns::begin() const {
  if (!path_exists(path_)) {
    store();
  }
}

void KeptRuns::store() const {
  Json list = Json::array();
  for (const auto& [name, kept] : runs_) {
    list.push_back(kept);
  }
  AtomicFile file(path_, [](const fs::path&) {});  // which this one continues
  write_text_file(file.temporary(), Json{{"claim", claim_}, {"scale", scale_}, {"runs", list}}.dump(1) + "\n");
  file.commit();
}

void SeenData::add(const PlannedRun& planned, const TrainedRun& run) {
  nlohmann::json asked = nlohmann::json::array({run.seed});
  for (const char* key : {"data", "batch", "accumulate", "context", "steps", "task"}) {
    asked.push_back(planned.config.value(key, nlohmann::json()));
  }
  const nlohmann::json architecture = planned.config.value("architecture", nlohmann::json::object());
  asked.push_back(architecture.is_object() ? architecture.value("context", nlohmann::json()) : architecture);
  const First& first = firsts_.emplace(asked.dump(), First{run.name, run.data}).first->second;
  refuse_if(first.data != run.data,
            "the runs {} and {} were to see the same data in the same order, and did not ({} and {}): they cannot be "
            "compared; train both on one folder of --data, in another folder",
            quote(first.run), quote(run.name), first.data, run.data);
}

}  // namespace pare
