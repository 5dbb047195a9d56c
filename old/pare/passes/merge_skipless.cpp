// Theorem (paper 1): without skips and norms, attention → P → M and O → Q have nothing between their matrices:
//   (s P + b_P) M + b_M = s (P M) + (b_M + b_P M),   (h O) Q = h (O Q),   (h O) K = h (O Q) (Q⁻¹ K).
// Before: P, M, O, Q, K, V.   After: P M, O Q, Q⁻¹ K, Q⁻¹ V: two matrices fewer in each serial layer.
//
// Proof: each point between two sublayers is a stream of its own, so each has a basis of its own (eliminate_projection
// with Θ = Q); between P and M the basis Θ = P⁻¹ turns P into I and M into P M, and no inverse is ever computed.
// In a parallel block attention and MLP read one stream and both write the next. That is one basis for each point, not
// two: Q can go by Θ = Q or the P before it by Θ = P⁻¹, never both, and at the untied head the last P as well.
//
// Preconditions: P1 no skip in any block; P2 no norm on the streams; P3 the matrices are square; P4 the one that is
// inverted is well conditioned.
// Exactness: as eliminate_projection; P M is one product.
// Order: before eliminate_projection, which takes a part of the same.
// Reference: docs/theorems/merge_skipless.md

#include "pare/passes/pass.h"

#include <fmt/format.h>

#include "pare/algebra/remove_matrices.h"

namespace pare {

namespace {

std::vector<Precondition> skips_of(const Architecture& architecture) {
  std::vector<Precondition> failed;
  const bool eliminable = remove_matrices({architecture}, {.targets = targets_of(std::nullopt)}, std::nullopt).applies;
  const std::vector<Block>& blocks = architecture.blocks;
  for (size_t n = 0; n < blocks.size(); ++n) {
    const bool attention = blocks[n].attention.skip;
    const bool mlp = blocks[n].mlp && blocks[n].wiring == Wiring::serial && blocks[n].mlp->skip;
    if (attention || mlp) {
      failed.push_back({.where = fmt::format("blocks.{}", n),
                        .block = static_cast<int64_t>(n),
                        .expected = "no skip",
                        .found = attention && mlp ? "skips around attention and MLP"
                                 : attention      ? "a skip around the attention"
                                                  : "a skip around the MLP",
                        .remedy = eliminable ? "eliminate_projection takes what skips leave free"
                                             : "train the model without skips"});
    }
  }
  return failed;
}

Proposal propose(const Model& model, const Options& options, const std::optional<Budget>& budget) {
  Proposal refused{.after = model, .preconditions = skips_of(model.architecture)};
  if (!refused.preconditions.empty()) {
    return refused;
  }
  const std::optional<Target> asked = target_from_word(options.at("target"));
  std::vector<Target> targets = targets_of(asked);
  targets.push_back(Target::output);
  Proposal proposal = remove_matrices(model, {.targets = targets, .asked = asked}, budget);
  for (const Block& block : model.architecture.blocks) {
    if (proposal.applies && block.wiring == Wiring::parallel) {
      proposal.notes.push_back(
          "parallel blocks: attention and MLP share each stream, so of Q and the P before it one can go exactly; "
          "without both (Graef 2024, figure 3) is an architecture to train, not a rewrite");
      break;
    }
  }
  return proposal;
}

}  // namespace

const Pass& pass_merge_skipless() {
  static const Pass pass{
      .id = "merge_skipless",
      .theorem = "(s P) M = s (P M) and (h O) Q = h (O Q) where nothing stands between them",
      .saves = "2 width² in each serial layer, width² in each parallel one",
      .reference = "KV-weights are all you need for skipless transformers (Graef 2024), table 1",
      .preconditions = {"no skip in any block", "only matrices touch the streams", "the matrices are square",
                        "what is inverted is well conditioned"},
      .options = {{"target", "q|k|v|best", "best"}},
      .inverts = true,
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
