#include "pare/claims/trained.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "pare/arch/count.h"
#include "pare/arch/presets.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/claims/corpora.h"
#include "pare/claims/finished_run.h"
#include "pare/claims/kept_runs.h"
#include "pare/claims/round.h"
#include "pare/model/device.h"
#include "pare/rewrite/rewrite.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"
#include "pare/train/run_folder.h"
#include "pare/train/token_shards.h"
#include "pare/train/train.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* work_folder = "runs";  // run folders, while they are needed

Architecture preset_or_refuse(const std::string& word) {
  if (std::optional<Architecture> preset = find_preset(word)) {
    return *std::move(preset);
  }
  throw InputError(fmt::format("no preset is called {}", quote(word)));
}

// What two runs must have in common to be compared: contents and order, wherever the files lay.
std::string data_seen(const fs::path& run) {
  nlohmann::json manifest = read_run_json(run, "data.json");
  for (const char* place : {"train", "validation", "tokenizer"}) {
    manifest["data"].erase(place);
  }
  return sha256_of(manifest.dump()).substr(0, 16);
}

// A message that is kept names no folder of this machine.
std::string without_places(const std::string& message, const fs::path& folder) {
  std::string text = message;
  const std::string place = folder.string() + "/";
  for (size_t at = text.find(place); at != std::string::npos; at = text.find(place)) {
    text.erase(at, place.size());
  }
  return text;
}

class Training {
 public:
  Training(const std::string& claim, const Trial& trial, const std::vector<PlannedRun>& plan)
      : trial_(trial),
        ranks_(trial.ranks),
        plan_(plan),
        folder_(place()),
        data_folder_(fs::weakly_canonical(trial.data)),
        kept_(folder_, claim, trial.scale) {}

  TrainedRuns finish() {
    bool interrupted = false;
    if (ranks_.is_first()) {
      kept_.begin();
      read_kept();
    }
    while (!interrupted) {
      const std::vector<Job> jobs = next_jobs(interrupted);
      if (jobs.empty()) {
        break;
      }
      interrupted = train(jobs);
    }
    if (!ranks_.is_first()) {
      throw JudgedElsewhere{interrupted};
    }
    std::vector<TrainedRun> found;
    std::vector<std::string> missing;
    for (const PlannedRun& planned : plan_) {
      const auto trained = trained_.find(planned.name());
      if (std::optional<TrainedRun> run = trained != trained_.end() ? trained->second : kept_.find(planned)) {
        found.push_back(*std::move(run));
      } else {
        missing.push_back(planned.name());
      }
    }
    if (found.empty() && !lacking_.empty()) {
      throw InputError(fmt::format("the folder of --data, {}, has no {} (nor one with .xz or .gz)",
                                   quote(shown(trial_.data)), quote(*lacking_.begin())));
    }
    if (found.empty() && interrupted) {
      throw Interrupted();
    }
    if (trial_.minutes && trained_.empty() && !missing.empty() && !interrupted && trial_.note) {
      trial_.note(fmt::format("--minutes {:g} is too short for any of the {} that are left: nothing was trained",
                              *trial_.minutes, missing.size()));
    }
    return {std::move(found), std::move(missing), interrupted};
  }

 private:
  // One run, with the places of its data and of what it begins with.
  struct Job {
    std::string name;
    nlohmann::json config;
  };

  // What comes next, one for each rank: the first decides. A run that another one starts from goes before it.
  std::vector<Job> next_jobs(bool& interrupted) {
    nlohmann::json list = nlohmann::json::array();
    try {
      std::set<std::string> begun;
      for (const PlannedRun& planned : ranks_.is_first() ? plan_ : std::vector<PlannedRun>()) {
        if (std::ssize(list) == ranks_.size()) {
          break;
        }
        if (tried_.contains(planned.name()) || kept_.find(planned) || !may_train(planned)) {
          continue;
        }
        const PlannedRun& run = first_needed(planned);
        if (!tried_.contains(run.name()) && begun.insert(run.name()).second) {
          check_interrupt();
          list.push_back({{"name", run.name()}, {"config", json_of(run, true)}});
        }
      }
      for (const std::string& name : begun) {
        tried_.insert(name);
      }
    } catch (const Interrupted&) {
      forget_interrupt();
      list.clear();
      interrupted = true;
    }
    list = nlohmann::json::parse(ranks_.broadcast(nlohmann::json{list, interrupted}.dump()));
    interrupted = list[1].get<bool>();
    std::vector<Job> jobs;
    for (const nlohmann::json& job : list[0]) {
      jobs.push_back({job["name"].get<std::string>(), job["config"]});
    }
    return jobs;
  }

  // The run itself, or one whose checkpoint it needs and that is not there.
  const PlannedRun& first_needed(const PlannedRun& run) {
    for (const std::string& start : {run.from, run.teacher}) {
      if (!start.empty()) {
        starts_.insert(start);
        if (!path_exists(folder_of(start)) || !is_finished(start)) {
          return first_needed(planned(start));
        }
      }
    }
    return run;
  }

  // Each rank its own; the first keeps what comes of them. Whether it was interrupted.
  bool train(const std::vector<Job>& jobs) {
    Round round(ranks_);
    std::optional<Trained> own;
    const size_t place = static_cast<size_t>(ranks_.rank());
    bool interrupted = false;
    try {
      if (place < jobs.size()) {
        check_interrupt();
        own = train_one(jobs[place], round);
      }
    } catch (const Interrupted&) {
      forget_interrupt();
      interrupted = true;
    }
    interrupted = round.end(interrupted);
    nlohmann::ordered_json handed;
    if (own && !ranks_.is_first()) {
      handed = {{"run", to_json(own->run, planned(own->run.name))}, {"seconds", own->seconds}};
    }
    const std::vector<std::string> all = ranks_.all_gather(handed.dump());
    for (size_t rank = 0; rank < jobs.size() && ranks_.is_first(); ++rank) {
      if (const nlohmann::ordered_json found = nlohmann::ordered_json::parse(all[rank]); !found.is_null()) {
        keep({run_from_json(planned(jobs[rank].name), found["run"]), found["seconds"].get<double>()}, jobs[rank]);
      } else if (rank == 0 && own) {
        keep(*own, jobs[rank]);
      }
    }
    return interrupted;
  }

  // Before anything is trained that could not be compared with it.
  void read_kept() {
    int64_t others = 0;
    for (const PlannedRun& planned : plan_) {
      if (const std::optional<TrainedRun> run = kept_.find(planned)) {
        seen_data_.add(planned, *run);
      } else {
        others += kept_.has(planned.name());
      }
    }
    if (others > 0 && trial_.note) {
      trial_.note(
          fmt::format("{} kept {} of another configuration or start: not counted, and replaced when trained again",
                      others, others == 1 ? "run is" : "runs are"));
    }
  }

  // That of the first rank, for all.
  fs::path place() { return ranks_.broadcast(ranks_.is_first() ? own_place().string() : std::string()); }

  fs::path own_place() {
    if (trial_.folder.empty()) {
      return scratch_.emplace("claim").path();
    }
    std::error_code failed;
    fs::create_directories(trial_.folder, failed);
    if (failed) {
      fail_io("create", trial_.folder, failed.value());
    }
    lock_.emplace(lock_folder(trial_.folder));
    return trial_.folder;
  }

  fs::path folder_of(const std::string& name) const { return folder_ / work_folder / name; }

  fs::path start_of(const std::string& name) const { return folder_ / work_folder / (name + "-start"); }

  const PlannedRun& planned(const std::string& name) const {
    const auto found = std::ranges::find(plan_, name, &PlannedRun::name);
    PARE_CHECK(found != plan_.end(), "a claim's plan has no run called " + name);
    return *found;
  }

  double minutes_gone() const { return std::chrono::duration<double>(Clock::now() - started_).count() / 60; }

  // In products of tokens and parameters, which is what time goes with.
  static double work_of(const TrainConfig& config, int64_t parameters) {
    return static_cast<double>(config.steps * config.batch * config.accumulate * context_of(config)) *
           static_cast<double>(parameters);
  }

  // Runs on other corpora than those that are there wait for another time.
  bool has_data(const PlannedRun& planned) {
    nlohmann::json config = planned.config;
    for (const nlohmann::json* name : corpora_in(config)) {
      if (in_corpora(data_folder_, name->get<std::string>())) {
        continue;
      }
      if (lacking_.insert(name->get<std::string>()).second && trial_.note) {
        trial_.note(fmt::format("no {} in {}: runs that need it are left for later", quote(name->get<std::string>()),
                                quote(shown(trial_.data))));
      }
      return false;
    }
    return true;
  }

  // What a run that stopped left behind is not the model that this one should begin with.
  bool begins_at_stopped(const PlannedRun& run) {
    for (const std::string& before : {run.from, run.teacher}) {
      const std::optional<TrainedRun> found = before.empty() ? std::nullopt : kept_.find(planned(before));
      if (found && !found->stopped.empty()) {
        return true;
      }
    }
    return false;
  }

  bool may_train(const PlannedRun& planned) {
    if (!trial_.runs.empty() && !glob_match(trial_.runs, planned.name())) {
      return false;
    }
    if (trial_.scale != ClaimScale::smoke && trial_.data.empty()) {
      return false;
    }
    if (!has_data(planned) || begins_at_stopped(planned)) {
      return false;
    }
    if (!trial_.minutes) {
      return true;
    }
    const TrainConfig config = config_of(planned);
    const double expected = seconds_per_work_ * work_of(config, count(last_architecture(config)).total) / 60;
    return minutes_gone() + expected <= *trial_.minutes;
  }

  TrainConfig config_of(const PlannedRun& planned) {
    return train_config_from_json(json_of(planned, false), planned.name(), preset_or_refuse);
  }

  // With the places of this machine. The checkpoints that it starts from are there where `trained`.
  nlohmann::json json_of(const PlannedRun& planned, bool trained) {
    nlohmann::json config = planned.config;
    for (nlohmann::json* name : corpora_in(config)) {
      const std::optional<std::string> place = in_corpora(data_folder_, name->get<std::string>());
      PARE_CHECK(place, "a run begins whose data is not there: " + planned.name());
      *name = *place;
    }
    for (const auto& [key, name] : {std::pair("from", planned.from), std::pair("teacher", planned.teacher)}) {
      if (!name.empty() && trained) {
        config[key] = checkpoints_of(folder_of(name)).back().folder.string();
      }
    }
    if (!planned.passes.empty() && trained) {
      const fs::path start = start_of(planned.name());
      rewrite(open_model(config["from"].get<std::string>()), start,
              {.passes = parse_passes(planned.passes), .allow_growth = true, .force = true});
      config["from"] = start.string();
    }
    if (config.contains("data") && config["data"].contains("samples")) {
      const nlohmann::json order = config["data"].value("seed", nlohmann::json(0));
      config["data"] = {{"shards", trained ? samples_for(planned, config) : "samples"}, {"seed", order}};
    }
    return config;
  }

  // What a teacher draws is drawn once, for all runs that learn from it.
  std::string samples_for(const PlannedRun& planned, const nlohmann::json& config) {
    nlohmann::json data = config["data"];
    data["seed"] = 0;  // that of the samples; a run's own is that of its order
    const std::string teacher =
        planned.teacher.empty() ? planned.config["teacher"].get<std::string>() : planned.teacher;
    const fs::path folder = folder_of("samples-of-" + teacher + "-" + sha256_of(data.dump()).substr(0, 8));
    if (!path_exists(folder)) {
      fs::create_directories(folder.parent_path());  // it may be the first that is kept
      write_shards(
          train_config_from_json({{"from", config["teacher"]}, {"data", data}}, planned.name(), preset_or_refuse),
          folder, find_device(trial_.device));
    }
    return folder.string();
  }

  bool is_finished(const std::string& name) const {
    const std::vector<int64_t> steps = RunFolder(folder_of(name)).checkpoints();
    return !steps.empty() && steps.back() == planned(name).config.at("steps").get<int64_t>();
  }

  bool is_needed_later(const std::string& name) const {
    return starts_.contains(name) || std::ranges::any_of(plan_, [&](const PlannedRun& run) {
             return (run.from == name || run.teacher == name) && !kept_.find(run);
           });
  }

  struct Trained {
    TrainedRun run;
    double seconds = 0;  // with what was measured before and after
  };

  Trained train_one(const Job& job, const Round& round) {
    const PlannedRun& planned = this->planned(job.name);
    const fs::path folder = folder_of(job.name);
    fs::create_directories(folder.parent_path());
    const TrainConfig config = train_config_from_json(job.config, job.name, preset_or_refuse);
    TrainedRun run = run_of(planned);
    const Clock::time_point begun = Clock::now();
    const bool goes_on = path_exists(folder);
    const auto report = [&](const TrainProgress& progress) {
      round.check();
      trial_.progress ? trial_.progress(job.name, progress) : void();
    };
    try {
      const TrainResult result =
          pare::train(config, data_.open(config),
                      {.folder = folder,
                       .resume = true,
                       .device = find_device(trial_.device),
                       .report = report,
                       .note = trial_.note,
                       .warn = trial_.note,
                       .goes_on = trial_.folder.empty() ? "with -o FOLDER it would be kept"
                                                        : "the same command goes on from there"});
      run.parameters = result.parameters;
      run.seconds = result.seconds;
    } catch (const TrainingStopped& error) {
      run.stopped = without_places(error.what(), folder_ / work_folder);
      run.parameters = count(config.architecture).total;
    } catch (const InputError& error) {
      throw InputError(goes_on
                           ? fmt::format("{}; to begin this run again, remove {}", error.what(), quote(shown(folder)))
                           : error.what());
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    run.seconds = run.stopped.empty() ? run.seconds : seconds;
    run.device = trial_.device;
    run.data = data_seen(folder);
    for (const nlohmann::json& line : read_metrics(folder)) {
      const int64_t step = line.at("step").get<int64_t>();
      run.steps = std::max(run.steps, step);
      if (line.contains("validation")) {
        run.validation[step] = run.loss = line["validation"].get<double>();
        run.accuracies[step] = run.accuracy = line["accuracy"].get<double>();
      }
    }
    if (planned.look && run.stopped.empty()) {
      run.seen = planned.look(folder);
    }
    return {std::move(run), seconds};
  }

  void keep(const Trained& trained, const Job& job) {
    const TrainedRun& run = trained.run;
    const PlannedRun& planned = this->planned(run.name);
    const TrainConfig config = train_config_from_json(job.config, job.name, preset_or_refuse);
    seen_data_.add(planned, run);
    const double done = static_cast<double>(std::max<int64_t>(run.steps, 1)) / static_cast<double>(config.steps);
    seconds_per_work_ = trained.seconds / (done * work_of(config, run.parameters));
    kept_.keep(run, planned);
    trained_.emplace(run.name, run);
    fs::remove_all(start_of(run.name));
    starts_.erase(planned.from);
    starts_.erase(planned.teacher);
    for (const std::string& name : {run.name, planned.from, planned.teacher}) {
      if (!name.empty() && !is_needed_later(name)) {
        fs::remove_all(folder_of(name));
      }
    }
  }

  const Trial& trial_;
  const Communicator ranks_;
  const std::vector<PlannedRun>& plan_;
  std::optional<ScratchFolder> scratch_;
  std::optional<Descriptor> lock_;
  fs::path folder_;
  fs::path data_folder_;  // as it is called whoever asks: a run that goes on was begun with it
  KeptRuns kept_;
  SeenData seen_data_;
  std::set<std::string> tried_;  // runs that were begun here
  std::map<std::string, TrainedRun> trained_;
  std::set<std::string> starts_;   // runs whose checkpoints somebody is about to start from
  std::set<std::string> lacking_;  // what the folder of corpora has not
  SequencesCache data_;
  Clock::time_point started_ = Clock::now();
  double seconds_per_work_ = 0;  // of the run before
};

}  // namespace

double PlannedRun::rate() const {
  return config.at("optimiser").at("lr").get<double>();
}

int64_t PlannedRun::seed() const {
  return config.value("seed", int64_t{0});
}

std::string PlannedRun::name() const {
  return fmt::format("{}-lr{:g}-seed{}", variant, rate(), seed());
}

TrainedRun run_of(const PlannedRun& planned) {
  return {.name = planned.name(),
          .variant = planned.variant,
          .classifies = planned.config.value("task", "") == "classifier",
          .goes_on = !planned.from.empty(),
          .rate = planned.rate(),
          .seed = planned.seed()};
}

TrainedRuns trained_runs(const std::string& claim, const Trial& trial, const std::vector<PlannedRun>& plan) {
  std::set<std::string> names;
  for (const PlannedRun& run : plan) {
    PARE_CHECK(names.insert(run.name()).second, "a claim plans two runs called " + run.name());
  }
  const auto is_asked = [&](const PlannedRun& run) { return glob_match(trial.runs, run.name()); };
  if (!trial.runs.empty() && std::ranges::none_of(plan, is_asked)) {  // before a folder is made for it
    throw InputError(fmt::format("--runs {}: none of the {} runs is called so: the first is {}", quote(trial.runs),
                                 plan.size(), quote(plan.front().name())));
  }
  return Training(claim, trial, plan).finish();
}

nlohmann::json changed(nlohmann::json config, const std::vector<std::pair<std::string, nlohmann::json>>& changes) {
  for (const auto& [key, value] : changes) {
    set_key(config, key, value, preset_or_refuse);
  }
  return config;
}

}  // namespace pare
