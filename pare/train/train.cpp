#include "pare/train/train.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>

#include "pare/arch/count.h"
#include "pare/model/device.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/output_place.h"
#include "pare/support/shell.h"
#include "pare/support/text.h"
#include "pare/train/diagnosis.h"
#include "pare/train/first_tokens.h"
#include "pare/train/run_folder.h"
#include "pare/train/start.h"
#include "pare/train/trainer.h"

namespace pare {

namespace {

using Clock = std::chrono::steady_clock;

// Keys that differ, for who is told that two configurations are not the same.
std::string differing_keys(const nlohmann::json& a, const nlohmann::json& b) {
  std::string list;
  for (const nlohmann::json& change : nlohmann::json::diff(a, b)) {
    std::string key = change.at("path").get<std::string>().substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    list += (list.empty() ? "" : ", ") + key;
  }
  return list;
}

// How often to save, how it is called and when it is ended change nothing that is computed.
TrainConfig comparable(TrainConfig config) {
  config.checkpoint = {};
  config.stop_above = 0;
  config.name.clear();
  return config;
}

void check_same_run(const RunFolder& folder, const TrainConfig& config, const Batches& batches) {
  const TrainConfig stored = folder.config();
  if (comparable(stored) != comparable(config)) {
    throw InputError(fmt::format(
        "{} was begun with another configuration (it differs in {}): continue it without changes, or begin a new run",
        quote(folder.path().string()),
        differing_keys(train_config_to_json(comparable(stored)), train_config_to_json(comparable(config)))));
  }
  const nlohmann::json before = folder.manifest(), now = batches.manifest();
  if (before != now) {
    throw InputError(fmt::format("{} was begun with other data ({} in data.json): its files have changed since",
                                 quote(folder.path().string()), differing_keys(before, now)));
  }
}

std::string words_of(const MorphPlan& plan, int64_t steps) {
  std::string list;
  const auto add = [&list](size_t count, const char* what) {
    if (count > 0) {
      list += fmt::format("{}{} {}", list.empty() ? "" : ", ", count, what);
    }
  };
  add(plan.norms.size(), "norms");
  add(plan.skips.size(), "skips");
  add(plan.projections.size(), "projections");
  add(plan.biases.size(), "biases");
  add(plan.neurons.size(), "MLPs' last neurons");
  return fmt::format("within {} steps go {}", steps, list.empty() ? "none of its parts" : list);
}

class Run {
 public:
  Run(const TrainConfig& config, const std::shared_ptr<const Sequences>& sequences, const TrainOptions& options)
      : config_(config),
        options_(options),
        batches_(sequences, config),
        started_(Clock::now()),
        teacher_(open_teacher()),
        trainer_(begin()) {}

  TrainResult finish() {
    const InterruptSaves saves;
    try {
      if (is_unmeasured()) {
        note_evaluation();
      }
      while (step_ < config_.steps) {
        check_interrupt();
        while (may_begin()) {
          begin_step();
        }
        finish_step();
      }
    } catch (const Interrupted&) {
      forget_interrupt();
      stopping_ = true;
      while (step_ < begun()) {
        finish_step();
      }
      save();
      if (options_.note) {
        const std::string place = shell_word(options_.folder.string());
        options_.note(fmt::format("saved after step {}: {}", with_commas(step_),
                                  options_.goes_on.empty()
                                      ? fmt::format("'pare train --resume -o {}' goes on from there", place)
                                      : options_.goes_on));
      }
      throw;
    }
    save();
    result_.steps = step_;
    result_.seconds = seconds_before_ + seconds();
    result_.path = folder_->path().string();
    result_.name = config_.name;
    result_.checkpoint = folder_->checkpoint_path(step_).string();
    result_.parameters = count(trainer_.executor().architecture()).total;
    return result_;
  }

 private:
  // Since this process began; what a run that goes on took before is beside it.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

  std::shared_ptr<const Teacher> open_teacher() {
    if (config_.teacher.empty()) {
      return nullptr;
    }
    const ModelFolder folder = open_model(config_.teacher);
    check_teacher(config_, config_.architecture, folder.model.architecture);
    auto teacher = std::make_shared<const Teacher>(folder.model, arithmetic_of(config_.dtype), options_.device);
    source_["teacher"] = source_manifest(config_.teacher, folder);
    return teacher;
  }

  void check_same_teacher(const RunFolder& folder) const {
    const nlohmann::json before = folder.source().value("teacher", nlohmann::json::object()),
                         now = nlohmann::json(source_).value("teacher", nlohmann::json::object());
    if (before != now) {
      throw InputError(fmt::format("{} was begun with another teacher ({}): its files have changed since",
                                   quote(folder.path().string()), differing_keys(before, now)));
    }
  }

  // Before anything is opened: what cannot be mixed is no run.
  std::optional<MorphPlan> planned() const {
    return config_.morph.to ? std::optional(plan_morph(config_.architecture, *config_.morph.to, "morph.to"))
                            : std::nullopt;
  }

  Trainer trainer_at(int64_t step, const Model& model, std::optional<MorphPlan> plan) {
    if (plan && step < config_.morph.steps) {
      morph_ = std::make_shared<const Morph>(*std::move(plan), config_.morph.steps, model, options_.device);
      morph_->go_to(step);
    }
    return Trainer(config_, model, options_.device, {morph_, teacher_});
  }

  // The start, and the folder where there is none yet.
  Trainer begin() {
    std::error_code unknown;
    std::optional<MorphPlan> plan = planned();
    if (options_.resume && std::filesystem::exists(options_.folder, unknown)) {
      return resumed(std::move(plan));
    }
    const uint64_t weight = config_.dtype == TrainDtype::float64 ? 8 : 4;
    const uint64_t checkpoint = 3 * weight * static_cast<uint64_t>(count(config_.architecture).total);
    check_output(options_.folder, OutputKind::folder, RunFolder::refuse_existing,
                 3 * checkpoint + 4 * batches_.order().size());
    for (const std::string& read : paths_read(config_)) {
      check_input_stays(read, options_.folder);
    }
    Start start = start_of_run(config_, batches_.training(0).inputs);
    source_.update(start.manifest);
    std::vector<std::string> warnings = keys_without_effect(config_);
    warnings.insert(warnings.end(), start.warnings.begin(), start.warnings.end());
    for (std::string& warning :
         warnings_of_first_tokens(config_, [this](int64_t token) { return batches_.may_learn(token); })) {
      warnings.push_back(std::move(warning));
    }
    for (const std::string& warning : warnings) {
      options_.warn ? options_.warn(warning) : void();
    }
    if (options_.note && !start.note.empty()) {
      options_.note(start.note);
    }
    if (options_.note && plan) {
      options_.note(words_of(*plan, config_.morph.steps));
    }
    Trainer trainer = trainer_at(0, plan ? morph_start(*plan, start.model) : start.model, plan);
    RunFolder::create(options_.folder, config_, batches_, trainer, source_);
    folder_.emplace(options_.folder);
    return trainer;
  }

  // Everything is read once, under a lock that stays: weights and moments are of one step.
  Trainer resumed(std::optional<MorphPlan> plan) {
    folder_.emplace(options_.folder);
    check_same_run(*folder_, config_, batches_);
    check_same_teacher(*folder_);
    const RunFolder::Continuation found = folder_->continuation();
    for (const std::string& damage : found.damaged) {
      options_.warn ? options_.warn(damage) : void();
    }
    step_ = found.step;
    const StoredState stored = folder_->load(step_);
    Trainer trainer = trainer_at(step_, stored.model, std::move(plan));
    trainer.restore(stored.optimiser, step_);
    folder_->cut_metrics(step_ == 0 ? -1 : step_);  // before the first step one measures, too
    result_.resumed_from = step_;
    for (const nlohmann::json& line : folder_->metrics()) {
      if (line.contains("loss")) {
        result_.loss = line["loss"].get<double>();
        result_.cross_entropy = line.value("cross_entropy", result_.loss);
        seconds_before_ = line["seconds"].get<double>();
        last_rate_ = line["lr"].get<double>();
        first_loss_ = first_loss_ == 0 ? result_.loss : first_loss_;
      }
      if (line.contains("validation")) {
        result_.validation = line["validation"].get<double>();
        result_.accuracy = line["accuracy"].get<double>();
        measured_at_ = line["step"].get<int64_t>();
      }
    }
    return trainer;
  }

  // Whether the weights are to be measured before the next step, and were not: at the start, and where an interrupt
  // came between a step and its measurement.
  bool is_unmeasured() const {
    return measured_at_ != step_ && (step_ == 0 || step_ % config_.evaluate.every == 0 || step_ == config_.steps);
  }

  int64_t begun() const { return step_ + std::ssize(ahead_); }  // steps that were, whether they are finished or not

  bool is_looked_at(int64_t step) const {
    return step % config_.evaluate.every == 0 || step % config_.checkpoint.every == 0 ||
           (morph_ && step == morph_->steps());
  }

  // A GPU has the next step waiting while it works on one. Not after a step whose weights somebody wants to see, nor
  // after the first, whose loss says what a later one may be.
  bool may_begin() const {
    const int64_t ahead = options_.device.is_cpu() ? 1 : 2;
    if (begun() == config_.steps || begun() - step_ >= ahead) {
      return false;
    }
    return begun() == step_ || (first_loss_ != 0 && !is_looked_at(begun()));
  }

  double limit() const {
    if (config_.stop_above > 0) {
      return config_.stop_above;
    }
    // Who learns from himself begins with a loss near zero: less than what a guess costs is no measure.
    const Architecture& a = config_.architecture;
    const double guess = std::log(static_cast<double>(a.head.classes.value_or(a.vocab)));
    return first_loss_ == 0 ? std::numeric_limits<double>::infinity() : 3 * std::max(first_loss_, guess);
  }

  void begin_step() {
    Ahead next{.rate = learning_rate(config_.optimiser, config_.steps, begun()), .limit = limit()};
    if (morph_) {
      morph_->go_to(begun());
      next.t = morph_->t(begun());
    }
    std::vector<TrainBatch> batches;
    for (int64_t i = 0; i < config_.accumulate; ++i) {
      check_interrupt();
      batches.push_back(batches_.training(begun() * config_.accumulate + i));
      next.tokens += batches_.positions(batches.back());
    }
    trainer_.begin_step(batches, {next.rate, begun(), next.limit});
    ahead_.push_back(next);
  }

  void finish_step() {
    const Ahead step = ahead_.front();
    const StepMeasure found = trainer_.finish_step();
    first_loss_ = first_loss_ == 0 ? found.loss : first_loss_;
    stop_if_bad(found, step.limit);
    ahead_.pop_front();
    ++step_;
    tokens_ += step.tokens;
    if (morph_ && step_ == begun()) {  // whoever looks now sees it as the next step will
      morph_->go_to(step_);
      finish_morph();
    }
    result_.loss = found.loss;
    result_.cross_entropy = found.cross_entropy;
    last_rate_ = step.rate;
    nlohmann::ordered_json line = {
        {"step", step_}, {"loss", found.loss}, {"lr", step.rate}, {"gradient_norm", found.gradient_norm}};
    if (has_other_parts(config_)) {
      line["cross_entropy"] = found.cross_entropy;
    }
    if (step.t) {
      line["t"] = *step.t;
    }
    line["seconds"] = seconds_before_ + seconds();
    folder_->add_metrics(line);
    // Beside what is measured on the validation text: without what a teacher and a morph add.
    TrainProgress progress{
        .step = step_, .steps = config_.steps, .cross_entropy = found.cross_entropy, .rate = step.rate};
    if (is_unmeasured() && !stopping_) {
      note_evaluation();
      progress.validation = result_.validation;
      if (outlook_) {
        progress.condition = outlook_->worst();
        progress.rewrite_error = outlook_->predicted_error.at("float32");
      }
    }
    if (step_ % config_.checkpoint.every == 0) {
      save();
    }
    if (options_.report) {
      progress.tokens_per_second = static_cast<double>(tokens_) / seconds();
      progress.seconds_left =
          seconds() / static_cast<double>(step_ - result_.resumed_from) * static_cast<double>(config_.steps - step_);
      options_.report(progress);
    }
  }

  // At t = 1 only the new Architecture is left.
  void finish_morph() {
    if (step_ < morph_->steps()) {
      return;
    }
    const InterruptsWait wait;  // half of it is no model
    const Weights weights = trainer_.model().weights;
    const std::map<std::string, at::Tensor> moments = morph_->finished_moments(weights, trainer_.state());
    const at::ScalarType type = config_.dtype == TrainDtype::float64 ? at::kDouble : at::kFloat;
    const Model finished = morph_->finished(weights, type);
    morph_.reset();
    trainer_ = Trainer(config_, finished, options_.device, {nullptr, teacher_});
    trainer_.restore(moments, step_);
  }

  void note_evaluation() {
    const Evaluation found = trainer_.evaluate(batches_);
    result_.validation = found.loss;
    result_.accuracy = found.accuracy;
    measured_at_ = step_;
    if (!std::isfinite(found.loss)) {
      return;  // the next step says what is wrong, and a file of JSON has no word for it
    }
    nlohmann::ordered_json line = {{"step", step_}, {"validation", found.loss}, {"accuracy", found.accuracy}};
    outlook_.reset();
    if (config_.conditioning.weight > 0) {
      outlook_ = outlook();
      line["conditions"] = outlook_->conditions;
      line["predicted_error"] = outlook_->predicted_error;
    }
    folder_->add_metrics(line);
    // Half of what ends a run by itself is far from it. Who chose where to end chose what is good.
    if (found.loss <= (config_.stop_above > 0 ? config_.stop_above : limit() / 2)) {
      good_ = Good{step_, found.loss, copied(state_of(trainer_))};
    }
  }

  // Of the model that the run would end with, were this the last step.
  RewriteOutlook outlook() const {
    const Model now = trainer_.model();
    return rewrite_outlook(morph_ ? morph_->finished(now.weights, at::kDouble) : now);
  }

  // The trainer has moved nothing since such a step.
  void stop_if_bad(const StepMeasure& found, double limit) {
    if (std::isfinite(found.loss) && std::isfinite(found.gradient_norm) && found.loss <= limit) {
      return;
    }
    const InterruptsWait wait;     // it ends already
    while (begun() > step_ + 1) {  // what was begun after it
      trainer_.finish_step();
      ahead_.pop_back();
    }
    const TrainBatch batch = batches_.training(step_ * config_.accumulate);
    trainer_.measure({&batch, 1}, step_);
    std::string why = diagnosis(config_, trainer_, batch, {step_, found, result_.loss, last_rate_});
    if (std::isfinite(found.loss) && found.loss > limit) {
      why += fmt::format(" (it is stopped above {:.4g}: stop_above, which --resume may change)", limit);
    }
    throw TrainingStopped(
        fmt::format("{}: training stopped: {}. {}", quote(folder_->path().string()), why, kept_at_stop()));
  }

  // The weights of a loss that explodes have exploded before it. What is kept was measured, and measured well.
  std::string kept_at_stop() {
    const int64_t last = folder_->checkpoints().back();
    const std::string before = folder_->checkpoint_path(last).string();
    if (!good_) {
      return fmt::format("It measured nothing good since it began or was continued; its last checkpoint is {}", before);
    }
    const std::string what = fmt::format("What last measured well, step {} (validation {:.4g}),",
                                         with_commas(good_->step), good_->validation);
    try {
      folder_->save(good_->step, good_->state, /*keep=*/0);  // no other goes for it
    } catch (const IoError& error) {
      return fmt::format("{} could not be kept ({}); its last checkpoint is {}", what, error.what(), before);
    }
    return fmt::format(
        "{} is kept as {}{}", what, folder_->checkpoint_path(good_->step).string(),
        last > good_->step
            ? fmt::format("; {} was not measured, and --resume goes on from there unless it is removed", before)
            : "");
  }

  void save() {
    const InterruptsWait wait;  // for what is written half
    try {
      folder_->save(step_, state_of(trainer_), config_.checkpoint.keep);
    } catch (const IoError& error) {
      throw IoError(fmt::format("{}. The run is kept as it was at step {}: make room, and {}", error.what(),
                                folder_->checkpoints().back(),
                                options_.goes_on.empty() ? "continue it with --resume" : options_.goes_on));
    }
  }

  const TrainConfig& config_;
  const TrainOptions& options_;
  Batches batches_;
  Clock::time_point started_;
  nlohmann::ordered_json source_ = nlohmann::ordered_json::object();
  std::optional<RunFolder> folder_;  // locked from before anything in it is read
  std::shared_ptr<const Teacher> teacher_;
  std::shared_ptr<const Morph> morph_;  // until only its end is left
  struct Ahead {
    double rate = 0, limit = 0;
    std::optional<double> t = {};  // of a morph
    int64_t tokens = 0;
  };
  std::deque<Ahead> ahead_;  // the steps that were begun and not finished
  int64_t step_ = 0, tokens_ = 0, measured_at_ = -1;
  double first_loss_ = 0, last_rate_ = 0, seconds_before_ = 0;
  bool stopping_ = false;
  struct Good {
    int64_t step = 0;
    double validation = 0;
    StoredState state;
  };
  std::optional<Good> good_;
  std::optional<RewriteOutlook> outlook_;
  TrainResult result_;
  Trainer trainer_;  // last: what it begins with sets the others
};

}  // namespace

TrainResult train(const TrainConfig& config, const std::shared_ptr<const Sequences>& sequences,
                  const TrainOptions& options) {
  try {
    return Run(config, sequences, options).finish();
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) {
      throw;
    }
    throw InputError(fmt::format(
        "{}: out of memory with batch={}, context={} and {} parameters. Make batch smaller, and accumulate larger by "
        "as "
        "much, which gives the same steps; or context, or the model. What was saved stays, and --resume continues it",
        quote(options.folder.string()), config.batch, context_of(config),
        with_commas(count(config.architecture).total)));
  }
}

std::shared_ptr<const Sequences> SequencesCache::open(const TrainConfig& config) {
  const std::string key = data_key(config);
  if (!last_ || key != key_) {
    last_ = nullptr;  // before the next is read: two may not fit
    last_ = open_sequences(config);
    key_ = key;
  }
  return last_;
}

}  // namespace pare
