#include "pare/train/agenda.h"

#include <doctest/doctest.h>

#include <string>

namespace pare {

TEST_CASE("what a run does next follows from where it stands") {
  // b, f: a step begins, is finished; m, s, r: measured, saved, reported; t: it turns; e: the end.
  const auto phases = [](Agenda agenda, int64_t interrupted_at = -1) {
    std::string all;
    while (all.size() < 100) {
      const Phase phase = agenda.next();
      all += "bftmsre"[static_cast<size_t>(phase)];
      all += phase == Phase::report ? " " : "";
      if (phase == Phase::end) {
        break;
      }
      agenda.begun += phase == Phase::begin_step;
      agenda.done += phase == Phase::finish_step;
      agenda.judged = agenda.judged || phase == Phase::finish_step;
      agenda.morph_steps = phase == Phase::end_morph ? 0 : agenda.morph_steps;
      agenda.measured = phase == Phase::measure ? agenda.done : agenda.measured;
      agenda.saved = phase == Phase::save ? agenda.done : agenda.saved;
      agenda.reported = phase == Phase::report ? agenda.done : agenda.reported;
      agenda.stopping = agenda.stopping || agenda.begun == interrupted_at;
    }
    return all;
  };
  const Agenda plain{.steps = 5, .measure_every = 3, .save_every = 2};
  CHECK(phases(plain) == "mbfr bfsr bfmr bfsr bfmr e");
  CHECK(phases(plain, 3) == "mbfr bfsr bfr e");  // it is not measured any more
  Agenda later = plain;
  later.go_on_at(3);
  CHECK(phases(later) == "mbfsr bfmr e");  // 3 was not measured
  later.measured = 3;
  CHECK(phases(later) == "bfsr bfmr e");
  Agenda turning = plain;
  turning.morph_steps = 3;
  CHECK(phases(turning) == "mbfr bfsr bftmr bfsr bfmr e");
  CHECK(phases(turning, 3) == "mbfr bfsr bftr e");
  turning.morph_steps = 5;
  CHECK(phases(turning) == "mbfr bfsr bfmr bfsr bftmr e");
  // A GPU: one step ahead, but not of the first, nor over a step that somebody looks at.
  const Agenda ahead{.steps = 7, .measure_every = 7, .save_every = 4, .most_ahead = 2};
  CHECK(phases(ahead) == "mbfr bbfr bfr fsr bbfr bfr fmr e");
  CHECK(phases(ahead, 3) == "mbfr bbfr fr e");
}

}  // namespace pare
