#pragma once
// What a run leaves as it goes: lines of metrics.jsonl, checkpoints, and words for whoever watches.

#include <chrono>
#include <optional>
#include <string>

#include "pare/train/conditioning.h"
#include "pare/train/run_folder.h"
#include "pare/train/train.h"

namespace pare {

struct DoneStep {
  int64_t number = 0;  // how often the weights have moved with it
  double rate = 0;
  std::optional<double> t;  // of a morph
  int64_t tokens = 0;
  StepMeasure found;
};

class RunRecord {
 public:
  // Locks the folder until this object goes. Of several ranks the first has it; the others only follow what was
  // measured.
  RunRecord(const TrainConfig& config, const TrainOptions& options, std::chrono::steady_clock::time_point started);

  const RunFolder* folder() const { return folder_ ? &*folder_ : nullptr; }
  // Of the steps that were recorded; 0 before the first.
  double first_loss() const { return first_loss_; }
  double last_loss() const { return result_.loss; }
  double last_rate() const { return last_rate_; }
  // The largest loss that does not end the run.
  double limit() const;

  // Takes up what was measured up to a step, and forgets what was after it. Hands back the step at which the run was
  // last measured on its validation data; -1: none.
  int64_t go_on_at(int64_t step);

  void add_step(const DoneStep& step);
  // `state`: kept as well-measured where the loss is far from the limit.
  void add_evaluation(int64_t step, const Evaluation& found, const std::optional<RewriteOutlook>& outlook,
                      const StoredState& state);
  void report() const;
  void save(int64_t step, const StoredState& state) const;
  void note_interrupt(int64_t step) const;
  // TrainingStopped: why, and which weights are kept.
  [[noreturn]] void stop(const std::string& why) const;
  TrainResult result(int64_t step, const Architecture& architecture) const;

 private:
  int64_t take_up(int64_t step);
  void add_line(const nlohmann::ordered_json& line);
  double seconds() const;
  std::string kept_at_stop() const;

  const TrainConfig& config_;
  const TrainOptions& options_;
  std::optional<RunFolder> folder_;
  std::chrono::steady_clock::time_point started_;
  double seconds_before_ = 0;  // that a run which goes on took before
  double first_loss_ = 0, last_rate_ = 0;
  int64_t tokens_ = 0;
  TrainProgress progress_;
  TrainResult result_;
  struct Good {
    int64_t step = 0;
    double validation = 0;
    StoredState state;
  };
  std::optional<Good> good_;  // what last measured well
};

}  // namespace pare
