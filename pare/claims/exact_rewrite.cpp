#include "pare/claims/exact_rewrite.h"

#include "pare/arch/count.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/claims/finished_run.h"
#include "pare/rewrite/rewrite.h"
#include "pare/support/error.h"
#include "pare/support/scratch_folder.h"

namespace pare {

nlohmann::ordered_json rewritten_exactly(const std::filesystem::path& run, const std::string& passes) {
  const ModelFolder model = open_model(checkpoints_of(run).back().folder);
  const ScratchFolder scratch("rewritten");
  try {
    const Rewritten rewritten =
        rewrite(model, scratch.path() / "model", {.passes = parse_passes(passes), .dtype = Dtype::f64});
    return {{"before", count(model.model.architecture).total},
            {"after", count(rewritten.pipeline.after.architecture).total},
            {"verdict", word(rewritten.verification->verdict)},
            {"error", rewritten.verification->metrics.max_relative_logit_error}};
  } catch (const Refused& refused) {
    return {{"refused", refused.reasons.front().message}};
  } catch (const VerificationFailed& failed) {
    return {{"refused", failed.reasons.front().message}};
  }
}

}  // namespace pare
