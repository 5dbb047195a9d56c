#include "pare/train/agenda.h"

namespace pare {

// A GPU has the next step waiting while it works on one. Not after a step whose weights somebody wants to see, nor
// after the first.
bool Agenda::may_begin() const {
  if (begun == steps || begun - done >= most_ahead || stopping) {
    return false;
  }
  const bool looked_at = begun % measure_every == 0 || begun % save_every == 0 || begun == morph_steps;
  return begun == done || (judged && !looked_at);
}

Phase Agenda::next() const {
  const bool still = begun == done;  // the weights are those after the last step
  if (still && done > 0 && done == morph_steps) {
    return Phase::end_morph;
  }
  // At the start and at the end, too, and where an interrupt came between a step and its measurement.
  const bool to_measure = done == 0 || done == steps || done % measure_every == 0;
  if (still && !stopping && to_measure && measured != done) {
    return Phase::measure;
  }
  if (still && done % save_every == 0 && saved != done) {
    return Phase::save;
  }
  if (reported != done) {
    return Phase::report;
  }
  if (still && (stopping || done == steps)) {
    return Phase::end;
  }
  return may_begin() ? Phase::begin_step : Phase::finish_step;
}

}  // namespace pare
