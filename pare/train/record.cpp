#include "pare/train/record.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pare/arch/count.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

RunRecord::RunRecord(const TrainConfig& config, const TrainOptions& options,
                     std::chrono::steady_clock::time_point started)
    : config_(config), options_(options), started_(started) {
  if (options.ranks.is_first()) {
    folder_.emplace(options.folder);
  }
}

double RunRecord::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

double RunRecord::limit() const {
  if (config_.stop_above > 0) {
    return config_.stop_above;
  }
  // Who learns from himself begins with a loss near zero: less than what a guess costs is no measure.
  const Architecture& a = config_.architecture;
  const double guess = std::log(static_cast<double>(a.head.classes.value_or(a.vocab)));
  return first_loss_ == 0 ? std::numeric_limits<double>::infinity() : 3 * std::max(first_loss_, guess);
}

int64_t RunRecord::go_on_at(int64_t step) {
  result_.resumed_from = step;
  int64_t measured = folder_ ? take_up(step) : 0;
  const at::Tensor told = at::tensor({result_.loss, result_.cross_entropy, result_.validation, result_.accuracy,
                                      seconds_before_, last_rate_, first_loss_, static_cast<double>(measured)},
                                     at::kDouble);
  options_.ranks.broadcast(told);
  const double* found = told.const_data_ptr<double>();
  for (double* into : {&result_.loss, &result_.cross_entropy, &result_.validation, &result_.accuracy, &seconds_before_,
                       &last_rate_, &first_loss_}) {
    *into = *found++;
  }
  return static_cast<int64_t>(*found);
}

int64_t RunRecord::take_up(int64_t step) {
  folder_->cut_metrics(step == 0 ? -1 : step);  // before the first step one measures, too
  int64_t measured = -1;
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
      measured = line["step"].get<int64_t>();
    }
  }
  return measured;
}

void RunRecord::add_step(const DoneStep& step) {
  const StepMeasure& found = step.found;
  first_loss_ = first_loss_ == 0 ? found.loss : first_loss_;
  tokens_ += step.tokens;
  result_.loss = found.loss;
  result_.cross_entropy = found.cross_entropy;
  last_rate_ = step.rate;
  nlohmann::ordered_json line = {
      {"step", step.number}, {"loss", found.loss}, {"lr", step.rate}, {"gradient_norm", found.gradient_norm}};
  if (has_other_parts(config_)) {
    line["cross_entropy"] = found.cross_entropy;
  }
  if (step.t) {
    line["t"] = *step.t;
  }
  line["seconds"] = seconds_before_ + seconds();
  add_line(line);
  progress_ = {.step = step.number, .steps = config_.steps, .cross_entropy = found.cross_entropy, .rate = step.rate};
}

void RunRecord::add_evaluation(int64_t step, const Evaluation& found, const std::optional<RewriteOutlook>& outlook,
                               const StoredState& state) {
  result_.validation = found.loss;
  result_.accuracy = found.accuracy;
  progress_.validation = found.loss;
  if (!std::isfinite(found.loss)) {
    return;  // the next step says what is wrong, and a file of JSON has no word for it
  }
  nlohmann::ordered_json line = {{"step", step}, {"validation", found.loss}, {"accuracy", found.accuracy}};
  if (outlook) {
    line["conditions"] = outlook->conditions;
    line["predicted_error"] = outlook->predicted_error;
    progress_.condition = outlook->worst();
    progress_.rewrite_error = outlook->predicted_error.at("float32");
  }
  add_line(line);
  // Half of what ends a run by itself is far from it. Who chose where to end chose what is good.
  // What is put together from several ranks fits on none of them perhaps.
  if (!state.shared && found.loss <= (config_.stop_above > 0 ? config_.stop_above : limit() / 2)) {
    good_ = Good{step, found.loss, folder_ ? copied(state) : StoredState()};
  }
}

void RunRecord::add_line(const nlohmann::ordered_json& line) {
  if (folder_) {
    folder_->add_metrics(line);
  }
}

void RunRecord::report() const {
  if (!options_.report) {
    return;
  }
  TrainProgress progress = progress_;
  progress.tokens_per_second = static_cast<double>(tokens_) / seconds();
  progress.seconds_left = seconds() / static_cast<double>(progress.step - result_.resumed_from) *
                          static_cast<double>(config_.steps - progress.step);
  options_.report(progress);
}

void RunRecord::save(int64_t step, const StoredState& state) const {
  const InterruptsWait wait;  // for what is written half
  try {
    RunFolder::save(folder(), step, state, config_.checkpoint.keep, options_.ranks);
  } catch (const RankLost&) {
    throw;
  } catch (const EndedElsewhere&) {
    throw;
  } catch (const IoError& error) {
    const std::string last = folder_ ? fmt::format("step {}", folder_->checkpoints().back()) : "its last checkpoint";
    throw IoError(fmt::format("{}. The run is kept as it was at {}: make room, and {}", error.what(), last,
                              options_.goes_on.empty() ? "continue it with --resume" : options_.goes_on));
  }
}

void RunRecord::note_interrupt(int64_t step) const {
  if (options_.note) {
    const std::string goes_on =
        fmt::format("'pare train --resume -o {}' goes on from there", shell_word(options_.folder.string()));
    options_.note(fmt::format("saved after step {}: {}", with_commas(step),
                              options_.goes_on.empty() ? goes_on : options_.goes_on));
  }
}

void RunRecord::stop(const std::string& why) const {
  const std::string kept = folder_ ? kept_at_stop() : "";
  options_.ranks.barrier();  // a launcher ends all that are left once the first has ended
  if (!folder_) {
    throw EndedElsewhere(why);
  }
  throw TrainingStopped(fmt::format("{}: training stopped: {}. {}", quote(folder_->path().string()), why, kept));
}

// The weights of a loss that explodes have exploded before it. What is kept was measured, and measured well.
std::string RunRecord::kept_at_stop() const {
  const int64_t last = folder_->checkpoints().back();
  const std::string before = folder_->checkpoint_path(last).string();
  if (config_.shard != Shard::nothing && !options_.ranks.alone()) {
    return fmt::format("Its last checkpoint is {}", before);
  }
  if (!good_) {
    return fmt::format("It measured nothing good since it began or was continued; its last checkpoint is {}", before);
  }
  const std::string what =
      fmt::format("What last measured well, step {} (validation {:.4g}),", with_commas(good_->step), good_->validation);
  try {
    RunFolder::save(folder(), good_->step, good_->state, /*keep=*/0);  // no other goes for it
  } catch (const IoError& error) {
    return fmt::format("{} could not be kept ({}); its last checkpoint is {}", what, error.what(), before);
  }
  return fmt::format(
      "{} is kept as {}{}", what, folder_->checkpoint_path(good_->step).string(),
      last > good_->step
          ? fmt::format("; {} was not measured, and --resume goes on from there unless it is removed", before)
          : "");
}

TrainResult RunRecord::result(int64_t step, const Architecture& architecture) const {
  TrainResult result = result_;
  result.steps = step;
  result.seconds = seconds_before_ + seconds();
  result.name = config_.name;
  if (folder_) {
    result.path = folder_->path().string();
    result.checkpoint = folder_->checkpoint_path(step).string();
  }
  result.parameters = count(architecture).total;
  return result;
}

}  // namespace pare
