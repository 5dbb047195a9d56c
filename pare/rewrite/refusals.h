#pragma once
// All that a rewrite refuses: why it is not done, or not kept, with every reason at once and what is left to try.

#include <string>

#include "pare/rewrite/rewrite.h"
#include "pare/support/error.h"

namespace pare {

// Refused where a pass does not apply, nothing saves, the result would grow, or more error is predicted than allowed.
// `narrowing`: the part of the pipeline's roundings that storing it in fewer digits has.
void refuse_pipeline(const Pipeline& pipeline, const RewriteOptions& options, const Architecture& architecture,
                     const Budget& budget, double narrowing);

// Nothing can become smaller in the compat form, so what a pass has to show for itself there is what it made neutral.
void refuse_idle_compat(const Plan& plan, const Pipeline& pipeline, const RewriteOptions& options);

// What the family says of a model in its config.json; Refused where it has no words for it.
nlohmann::ordered_json config_or_refuse(const Family& family, const Architecture& architecture);
// The compat form has no place for the result: `why`, of the first pass after which it is so.
[[noreturn]] void refuse_form(const ModelFolder& source, const Pipeline& pipeline, const Refused& why);
// There, a norm that is gone cannot stand again as one that does nothing.
[[noreturn]] void refuse_norm(const ModuleId& norm, const char* why);

// Rounding to float16 must not make infinities: its largest number is small.
void refuse_beyond_float16(const std::string& name, const at::Tensor& tensor);

// VerificationFailed: it was written, and measured to be too far off.
[[noreturn]] void refuse_result(const Rewritten& result, const RewriteOptions& options,
                                const Architecture& architecture);

}  // namespace pare
