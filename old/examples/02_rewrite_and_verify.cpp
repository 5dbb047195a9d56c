// Lesson 2: a smaller model, and the proof that it is the same function.
//
//   example_02_rewrite_and_verify MODEL OUTPUT
//
// rewrite() keeps only what it has read back and compared. Whoever wants to see it with their own eyes compares again,
// on other inputs.

#include <iostream>

#include "pare/arch/count.h"
#include "pare/rewrite/reasons.h"
#include "pare/rewrite/rewrite.h"
#include "pare/support/error.h"
#include "pare/verify/draw_inputs.h"

int main(int count, char** words) {
  if (count != 3) {
    std::cerr << "usage: example_02_rewrite_and_verify MODEL OUTPUT\n";
    return 1;
  }
  try {
    const pare::ModelFolder source = pare::open_model(words[1]);
    pare::RewriteOptions options;  // no list of passes: whatever saves
    options.seed = 1;
    const pare::Rewritten result = pare::rewrite(source, words[2], options);
    for (const pare::PassStep& step : result.pipeline.steps) {
      std::cout << pare::pasteable(step.call) << " saves " << step.saved_parameters << "\n";
    }
    std::cout << "kept as " << pare::word(result.verification->verdict) << "\n";

    const pare::ModelFolder smaller = pare::open_model(words[2]);
    const pare::Architecture &before = source.model.architecture, &after = smaller.model.architecture;
    const pare::Verification again = pare::verify(source, smaller, pare::draw_inputs(before, after, 8, /*seed=*/42),
                                                  {.predicted_error = result.verification->predicted_error});
    std::cout << pare::count(before).total << " -> " << pare::count(after).total << " parameters, relative error "
              << again.metrics.max_relative_logit_error << ": " << pare::word(again.verdict) << "\n";
    return 0;
  } catch (const pare::Refused& refusal) {  // an answer, with every reason, and not a failure
    for (const pare::ErrorReason& reason : refusal.reasons) {
      std::cout << "refused: " << reason.message << "\n";
    }
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
