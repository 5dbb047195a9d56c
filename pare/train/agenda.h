#pragma once
// What a run does next, decided by numbers alone: it has no model, no file and no clock.

#include <cstdint>

namespace pare {

enum class Phase { begin_step, finish_step, end_morph, measure, save, report, end };

struct Agenda {
  int64_t steps = 0, measure_every = 1, save_every = 1;
  int64_t morph_steps = 0;  // 0: nothing is mixed, or not any more
  int64_t most_ahead = 1;   // steps that may have begun and not be finished

  int64_t begun = 0, done = 0;                     // steps
  int64_t measured = -1, saved = 0, reported = 0;  // the step after which that was last done
  bool judged = false;                             // the first loss is known, which says how large a later one may be
  bool stopping = false;                           // what has begun is finished, and nothing else begins

  // Goes on at a stored step, which was measured or not.
  void go_on_at(int64_t step) { begun = done = saved = reported = step; }
  Phase next() const;

 private:
  bool may_begin() const;
};

}  // namespace pare
