#pragma once
// Progress of one long job: a bar with rate and time left on a terminal, a plain line now and then elsewhere.

#include <chrono>
#include <cstdint>
#include <string>

namespace pare {

// Off until a program asks for it: a library does not write on its user's screen.
void show_progress(bool shown);

class Progress {
 public:
  enum class Unit { items, bytes };

  Progress(std::string label, uint64_t total, Unit unit = Unit::items);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Throws Interrupted after Ctrl-C, so that every loop that shows progress can be stopped.
  void advance(uint64_t by = 1);
  // So much of the next items is done, where one takes long: shown, and replaced by the next call of either.
  void within(double items);

 private:
  void show();

  using Clock = std::chrono::steady_clock;
  std::string label_;
  uint64_t total_, done_ = 0;
  double part_ = 0;  // of the items after those
  Unit unit_;
  Clock::time_point started_, shown_;
};

// The text of one state, shorter than `columns`; 0 columns: no terminal, so no bar and no limit. Pure, for the tests.
// `part` is what is done of further items: it counts in share and time, and not among those that are done.
std::string progress_line(const std::string& label, uint64_t done, uint64_t total, Progress::Unit unit, double seconds,
                          int columns, double part = 0);

}  // namespace pare
