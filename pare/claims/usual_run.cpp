// The run that claims change one thing of.

#include "pare/claims/trained.h"

namespace pare {

nlohmann::json usual_run(const Trial& trial) {
  const nlohmann::json usual =
      nlohmann::json::parse(R"({"data": {"train": ["novels-train.txt"], "validation": ["novels-val.txt"]},
    "architecture": {"width": 384, "vocab": 256, "context": 512, "embedding": {"position": "learned"},
      "blocks": [{"repeat": 6,
        "attention": {"heads": 6, "head_width": 64, "norm": {"kind": "layer", "epsilon": 1e-05, "bias": true},
                      "bias": {"query": true, "key": true, "value": true, "output": true}},
        "mlp": {"width": 1536, "activation": "gelu_tanh", "norm": {"kind": "layer", "epsilon": 1e-05, "bias": true},
                "bias": {"up": true, "down": true}}}],
      "final_norm": {"kind": "layer", "epsilon": 1e-05, "bias": true}, "head": {"tied": true}},
    "batch": 256, "steps": 1600, "seed": 0, "dtype": "bfloat16",
    "optimiser": {"lr": 0.001, "min_lr": 0.0001, "warmup": 100, "betas": [0.9, 0.95], "decay": 0.1, "clip": 1.0},
    "evaluate": {"every": 400, "batches": 20}, "checkpoint": {"every": 100000, "keep": 1}})");
  if (trial.scale != ClaimScale::smoke) {
    return usual;
  }
  return changed(usual, {{"task", "sorting"},
                         {"data", {{"length", 4}, {"symbols", 8}}},
                         {"dtype", "float32"},
                         {"architecture.width", 32},
                         {"architecture.vocab", 19},
                         {"architecture.context", 16},
                         {"architecture.blocks.0.repeat", 2},
                         {"architecture.blocks.*.attention.heads", 4},
                         {"architecture.blocks.*.attention.head_width", 8},
                         {"architecture.blocks.*.mlp.width", 128},
                         {"batch", 16},
                         {"steps", 20},
                         {"optimiser.warmup", 5},
                         {"evaluate", {{"every", 10}, {"batches", 2}}}});
}

nlohmann::json short_run(const Trial& trial) {
  const nlohmann::json usual = usual_run(trial);
  return trial.scale == ClaimScale::small ? changed(usual, {{"batch", 64}, {"steps", 1000}, {"evaluate.every", 200}})
                                          : usual;
}

}  // namespace pare
