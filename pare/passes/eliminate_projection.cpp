// Theorem (paper 0: 4.1, 4.2, 4.3): S(x W_Q, x W_K, x W_V) sees x only through its three products, so with Θ = W_Q
//   S(x W_Q, x W_K, x W_V) = S(x', x' Θ⁻¹ W_K, x' Θ⁻¹ W_V),  x' = x Θ.
// Before: every writer of the stream W, every reader R, the target T (query, key or value).
// After:  W Θ, Θ⁻¹ R, and no T. Biases of readers stay, T's own bias included; those of writers become b Θ.
//
// Proof: x' = x Θ holds at the embeddings, and each sublayer that reads x' Θ⁻¹ R = x R and writes W Θ keeps it; skips
// add equal bases because the points they join are one stream. The head reads x' Θ⁻¹ W_head. A tied head keeps its
// table when the stream before it has the dual basis: (E Θ)ᵀ = Θ_last⁻¹ Eᵀ for Θ_last = Θ⁻ᵀ.
//
// Preconditions: P1 only matrices touch the stream (no norm, no identity, not the model's answer); P2 T is dense and
// square; P3 T, in the best gauge of its heads, is well conditioned.
// Exactness: relative error about u · cond(Θ), with u the unit roundoff of the stored weights; squares of layers add
// up. Order: after passes that fold into projections, since what is removed can take nothing. Reference:
// docs/theorems/eliminate_projection.md

#include "pare/passes/pass.h"

#include "pare/algebra/remove_matrices.h"
#include "pare/support/error.h"

namespace pare {

namespace {

std::optional<int64_t> block_of(const Architecture& architecture, const std::string& layer) {
  if (layer == "all") {
    return std::nullopt;
  }
  const std::vector<int64_t> layers = layer_blocks(architecture);
  const size_t number = std::stoul(layer);
  refuse_if(number >= layers.size(), "eliminate_projection{{layer={}}}: the model has {} layers, counted from 0", layer,
            layers.size());
  return layers[number];
}

Proposal propose(const Model& model, const Options& options, const std::optional<Budget>& budget) {
  const std::optional<Target> asked = target_from_word(options.at("target"));
  return remove_matrices(model,
                         {.targets = targets_of(asked),
                          .asked = asked,
                          .block = block_of(model.architecture, options.at("layer")),
                          .measure_all = !budget},
                         budget);
}

}  // namespace

const Pass& pass_eliminate_projection() {
  static const Pass pass{
      .id = "eliminate_projection",
      .theorem = "S(xQ, xK, xV) = S(x', x'Q⁻¹K, x'Q⁻¹V) with x' = xQ",
      .saves = "width² for each independent stream (each layer, where no skip joins them)",
      .reference = "W_K, W_V is Probably All You Need (Karbevski and Mijoski 2025), theorems 4.1, 4.2, 4.3",
      .preconditions = {"only matrices touch the stream: no norm, no identity", "the target is dense and square",
                        "the target is well conditioned in the best gauge of its heads"},
      .options = {{"target", "q|k|v|best", "best"}, {"layer", "all|N", "all"}},
      .inverts = true,
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
