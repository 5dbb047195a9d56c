#pragma once
// Why a rewrite is not done, or not kept: every reason at once, and what is left to try.

#include "pare/rewrite/rewrite.h"

namespace pare {

// Refused where a pass does not apply, nothing saves, the result would grow, or more error is predicted than allowed.
// `narrowing`: the part of the pipeline's roundings that storing it in fewer digits has.
void refuse_pipeline(const Pipeline& pipeline, const RewriteOptions& options, const Architecture& architecture,
                     const Budget& budget, double narrowing);

// Nothing can become smaller in the compat form, so what a pass has to show for itself there is what it made neutral.
void refuse_idle_compat(const Plan& plan, const Pipeline& pipeline, const RewriteOptions& options);

// VerificationFailed: it was written, and measured to be too far off.
[[noreturn]] void refuse_result(const Rewritten& result, const RewriteOptions& options,
                                const Architecture& architecture);

}  // namespace pare
