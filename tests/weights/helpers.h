#pragma once
// Models whose tensors are rewritten in every way that there is.

#include "pare/rewrite/pipeline.h"
#include "tests/model/helpers.h"

namespace pare::test {

// Only attention has a skip: eliminate_projection applies, merge_skipless where there is none at all.
inline Architecture skip_only(bool skip = true) {
  Architecture a = parse(R"({"width": 8, "vocab": 19, "context": 12, "embedding": {"position": "learned"},
      "blocks": [{"repeat": 3, "attention": {"heads": 2, "head_width": 4, "bias": {"value": true, "output": true}},
                  "mlp": {"width": 11, "activation": "gelu", "skip": false}}]})");
  for (Block& block : a.blocks) {
    block.attention.skip = skip;
  }
  return a;
}

// Of the whole program, which counts them (copying_test.cpp); AddressSanitizer allocates for itself, and then it is 0.
int64_t allocations_so_far();

inline Model rewritten(const Model& model, const std::string& passes) {
  const Pipeline pipeline = run_passes(model, parse_passes(passes));
  for (const PassStep& step : pipeline.steps) {
    REQUIRE_MESSAGE(step.proposal.applies, step.call.pass->id);
  }
  return pipeline.after;
}

}  // namespace pare::test
