#pragma once
// How far a training run is: a line that is drawn again on a terminal, and now and then one of its own elsewhere.

#include <chrono>
#include <string>

#include "pare/train/train.h"

namespace pare {

class TrainDisplay {
 public:
  explicit TrainDisplay(std::string name);
  ~TrainDisplay();
  TrainDisplay(const TrainDisplay&) = delete;
  TrainDisplay& operator=(const TrainDisplay&) = delete;

  void show(const TrainProgress& progress);

 private:
  using Clock = std::chrono::steady_clock;
  std::string name_;
  bool redrawn_;
  Clock::time_point shown_ = Clock::now();
};

}  // namespace pare
