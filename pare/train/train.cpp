#include "pare/train/train.h"
#include "pare/ranks/shares.h"
#include "pare/support/memory.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>

#include "pare/arch/count.h"
#include "pare/model/device.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/output_place.h"
#include "pare/train/agenda.h"
#include "pare/train/diagnosis.h"
#include "pare/train/first_tokens.h"
#include "pare/train/record.h"
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

// How often to save, how it is called, when it is ended and what lies where change nothing that is computed.
TrainConfig comparable(TrainConfig config) {
  config.checkpoint = {};
  config.stop_above = 0;
  config.name.clear();
  config.recompute = false;
  config.shard = Shard::nothing;
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

void check_same_teacher(const RunFolder& folder, const nlohmann::json& source) {
  const nlohmann::json before = folder.source().value("teacher", nlohmann::json::object()),
                       now = source.value("teacher", nlohmann::json::object());
  if (before != now) {
    throw InputError(fmt::format("{} was begun with another teacher ({}): its files have changed since",
                                 quote(folder.path().string()), differing_keys(before, now)));
  }
}

void tell(const std::function<void(const std::string&)>& whom, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    whom ? whom(line) : void();
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
        agenda_{.steps = config.steps,
                .measure_every = config.evaluate.every,
                .save_every = config.checkpoint.every,
                .most_ahead = options.device.is_cpu() ? 1 : 2},
        ranks_(options.ranks),
        teacher_(open_teacher()),
        state_(begin()) {}

  // A model that turns into another goes on with another trainer.
  TrainResult finish() {
    std::optional<InterruptsWait> turning;  // half of it is no model
    std::optional<InterruptSaves> saves;
    std::optional<InterruptsWait> agreed;  // all ranks stop after the same step
    if (!ranks_.alone()) {
      agreed.emplace();
    }
    while (true) {
      Trainer trainer(config_, state_.model, options_.device, {morph_, teacher_, ranks_});
      settle(trainer);
      turning.reset();
      if (!saves) {
        saves.emplace();
      }
      if (advance(trainer) == Phase::end) {
        record_->save(agenda_.done, state_of(trainer));
        ranks_.barrier();  // a launcher ends all that are left once the first has ended
        if (agenda_.stopping) {
          record_->note_interrupt(agenda_.done);
          throw Interrupted();
        }
        return record_->result(agenda_.done, trainer.executor().architecture());
      }
      turning.emplace();
      state_ = turned(trainer);
    }
  }

 private:
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

  // What is trained first, and the morph where one is under way. What cannot be mixed is no run.
  StoredState begin() {
    refuse_if(config_.batch % ranks_.size() != 0,
              "batch={} does not divide among {} ranks: make it a multiple, or start another number of them",
              config_.batch, ranks_.size());
    const PromptlyFreed promptly;  // what training starts from is gone once it has begun
    std::optional<MorphPlan> plan;
    if (config_.morph.to) {
      plan = plan_morph(config_.architecture, *config_.morph.to, "morph.to");
    }
    const bool goes_on = ranks_.sum(ranks_.is_first() && options_.resume && path_exists(options_.folder)) > 0;
    StoredState state = goes_on ? stored() : drawn(plan);
    if (!ranks_.alone()) {
      check_alike(ranks_, "data", batches_.manifest().dump());
      check_alike(ranks_, "model to start from or to learn from", source_.dump());
    }
    if (plan && agenda_.done < config_.morph.steps) {
      agenda_.morph_steps = config_.morph.steps;
      morph_ =
          std::make_shared<const Morph>(*std::move(plan), config_.morph.steps, state.model, options_.device, ranks_);
      morph_->go_to(agenda_.done);
    }
    return state;
  }

  StoredState drawn(const std::optional<MorphPlan>& plan) {
    const uint64_t weight = config_.dtype == TrainDtype::float64 ? 8 : 4;
    const uint64_t checkpoint = 3 * weight * static_cast<uint64_t>(count(config_.architecture).total);
    if (ranks_.is_first()) {
      check_output(options_.folder, OutputKind::folder, RunFolder::refuse_existing,
                   3 * checkpoint + 4 * batches_.order().size());
    }
    for (const std::string& read : paths_read(config_)) {
      check_input_stays(read, options_.folder);
    }
    Start start = start_of_run(config_, batches_.training(0).inputs);
    source_.update(start.manifest);
    const auto may_learn = [this](int64_t token) { return batches_.may_learn(token); };
    for (const std::vector<std::string>& warnings :
         {keys_without_effect(config_), start.warnings, warnings_of_first_tokens(config_, may_learn)}) {
      tell(options_.warn, warnings);
    }
    if (!start.note.empty()) {
      tell(options_.note, {start.note});
    }
    if (plan) {
      tell(options_.note, {words_of(*plan, config_.morph.steps)});
    }
    return {.model = plan ? morph_start(*plan, start.model) : start.model};
  }

  // Everything is read once, under a lock that stays: weights and moments are of one step.
  StoredState stored() {
    record_.emplace(config_, options_, started_);
    RunFolder::Continuation found;
    if (const RunFolder* folder = record_->folder()) {
      check_same_run(*folder, config_, batches_);
      check_same_teacher(*folder, source_);
      found = folder->continuation();
      tell(options_.warn, found.damaged);
    }
    agenda_.go_on_at(static_cast<int64_t>(ranks_.sum(static_cast<double>(found.step))));  // of the first alone
    check_alike(ranks_, "checkpoint", checkpoint_says(options_.folder, agenda_.done));
    return load_checkpoint(options_.folder, agenda_.done);
  }

  // Before the first step of a trainer: it takes up what is remembered; and a run has its folder from then on.
  void settle(Trainer& trainer) {
    if (!state_.optimiser.empty()) {
      trainer.restore(state_.optimiser, agenda_.done);
    }
    if (!record_) {
      RunFolder::create(options_.folder, config_, batches_, trainer, source_, ranks_);
      record_.emplace(config_, options_, started_);
    } else if (!settled_) {
      agenda_.measured = record_->go_on_at(agenda_.done);
      agenda_.judged = record_->first_loss() != 0;
    }
    settled_ = true;
    state_ = {};
  }

  // Until the run ends, or a morph does.
  Phase advance(Trainer& trainer) {
    while (true) {
      const Phase phase = agenda_.next();
      if (phase == Phase::end || phase == Phase::end_morph) {
        return phase;
      }
      try {
        act(phase, trainer);
      } catch (const Interrupted&) {
        if (agenda_.stopping) {
          throw;
        }
        stop_after_this();
      }
    }
  }

  void stop_after_this() {
    forget_interrupt();
    agenda_.stopping = true;
  }

  void act(Phase phase, Trainer& trainer) {
    switch (phase) {
      case Phase::begin_step:
        return begin_step(trainer);
      case Phase::finish_step:
        return finish_step(trainer);
      case Phase::measure:
        return measure(trainer);
      case Phase::save:
        record_->save(agenda_.done, state_of(trainer));
        agenda_.saved = agenda_.done;
        return;
      case Phase::report:
        agenda_.reported = agenda_.done;
        return record_->report();
      case Phase::end_morph:
      case Phase::end:
        break;
    }
    PARE_UNREACHABLE("nothing is done at an end");
  }

  void begin_step(Trainer& trainer) {
    check_interrupt();
    const int64_t number = agenda_.begun;
    Ahead next{.step = {.number = number + 1, .rate = learning_rate(config_.optimiser, config_.steps, number)},
               .limit = record_->limit()};
    if (morph_) {
      morph_->go_to(number);
      next.step.t = morph_->t(number);
    }
    std::vector<TrainBatch> batches;
    for (int64_t i = 0; i < config_.accumulate; ++i) {
      check_interrupt();
      batches.push_back(batches_.training(number * config_.accumulate + i));
      next.step.tokens += batches_.positions(batches.back());
    }
    trainer.begin_step(batches, {next.step.rate, number, next.limit, !ranks_.alone() && interrupt_seen()});
    ahead_.push_back(next);
    ++agenda_.begun;
  }

  void finish_step(Trainer& trainer) {
    Ahead& next = ahead_.front();
    next.step.found = trainer.finish_step();
    stop_if_bad(trainer, next);
    record_->add_step(next.step);
    const bool stop = next.step.found.stop;
    ahead_.pop_front();
    ++agenda_.done;
    agenda_.judged = true;
    if (stop) {
      stop_after_this();
    }
    if (morph_ && ahead_.empty()) {  // whoever looks now sees it as the next step will
      morph_->go_to(agenda_.done);
    }
  }

  void measure(Trainer& trainer) {
    const Evaluation found = trainer.evaluate(batches_);
    std::optional<RewriteOutlook> outlook;
    if (config_.conditioning.weight > 0 && std::isfinite(found.loss)) {
      const Model now = trainer.model();  // of what the run would end with, were this the last step
      outlook = rewrite_outlook(morph_ ? morph_->finished(now.weights, at::kDouble) : now);
    }
    record_->add_evaluation(agenda_.done, found, outlook, state_of(trainer));
    agenda_.measured = agenda_.done;
  }

  // At t = 1 only the new Architecture is left.
  StoredState turned(const Trainer& trainer) {
    const StoredState last = copied(state_of(trainer));
    const Weights& weights = last.model.weights;
    const at::ScalarType type = config_.dtype == TrainDtype::float64 ? at::kDouble : at::kFloat;
    StoredState state{morph_->finished(weights, type), morph_->finished_moments(weights, last.optimiser)};
    morph_.reset();
    agenda_.morph_steps = 0;
    return state;
  }

  struct Ahead {
    DoneStep step;
    double limit = 0;
  };

  // The trainer has moved nothing since such a step.
  void stop_if_bad(Trainer& trainer, const Ahead& bad) {
    const StepMeasure& found = bad.step.found;
    if (std::isfinite(found.loss) && std::isfinite(found.gradient_norm) && found.loss <= bad.limit) {
      return;
    }
    const InterruptsWait wait;  // it ends already
    for (size_t after = 1; after < ahead_.size(); ++after) {
      trainer.finish_step();
    }
    const TrainBatch batch = batches_.training(agenda_.done * config_.accumulate);
    trainer.measure({&batch, 1}, agenda_.done);
    std::string why =
        diagnosis(config_, trainer, batch, {agenda_.done, found, record_->last_loss(), record_->last_rate()});
    if (std::isfinite(found.loss) && found.loss > bad.limit) {
      why += fmt::format(" (it is stopped above {:.4g}: stop_above, which --resume may change)", bad.limit);
    }
    record_->stop(why);
  }

  const TrainConfig& config_;
  const TrainOptions& options_;
  Batches batches_;
  Clock::time_point started_;
  Agenda agenda_;
  Communicator ranks_;
  nlohmann::ordered_json source_ = nlohmann::ordered_json::object();
  std::optional<RunRecord> record_;  // of a run that goes on, before anything in its folder is read
  bool settled_ = false;
  std::shared_ptr<const Teacher> teacher_;
  std::shared_ptr<const Morph> morph_;  // until only its end is left
  std::deque<Ahead> ahead_;             // the steps that were begun and not finished
  StoredState state_;                   // what the next trainer begins with
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
    throw InputError(
        fmt::format("{}: out of memory with batch={}, context={} and {} parameters. Make batch smaller, and accumulate "
                    "larger by as much, which gives the same steps; or context, or the model. What was saved stays, "
                    "and --resume continues it",
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
