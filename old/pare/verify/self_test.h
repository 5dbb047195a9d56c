#pragma once
// A check that cannot fail proves nothing: how small a change of the candidate does this one catch?

#include <functional>

#include "pare/verify/answers.h"
#include "pare/verify/verify.h"

namespace pare {

// Disturbs a matrix of the candidate's last block that matters (its gradient is not zero), else of its head, by more
// and more until `caught`; another one where that never happens. Only the last block and the head are run again, on one
// sequence. A block that several layers share is disturbed in its last run alone, which makes it harder to catch.
// VerificationFailed when 100 % of each is missed.
SelfTest test_check(const ComparedModel& reference, const Answer& truth, const ComparedModel& candidate,
                    const Answer& answer, const Asked& asked, const Comparison& compared, double allowed, uint64_t seed,
                    const std::function<bool(const Comparison&)>& caught);

}  // namespace pare
