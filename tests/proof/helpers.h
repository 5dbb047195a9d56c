#pragma once
// Two models in memory, the second of which a test changes, and what the prover says of them.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "pare/search/prove.h"
#include "tests/verify/helpers.h"

namespace pare::test {

struct Pair {
  Architecture a, b;
  Tensors ta, tb;
};

inline Pair pair_of(const Architecture& architecture, uint64_t seed = 1) {
  const Tensors tensors = generic_tensors(architecture, seed);
  return {architecture, architecture, tensors, tensors};
}

inline Pair pair_of(const std::string& json) {
  return pair_of(parse(json));
}

inline Proof proof_of(const Pair& pair, at::ScalarType dtype = at::kDouble) {
  const Model reference{pair.a, as_weights(rounded(pair.ta, dtype))};
  const Model candidate{pair.b, as_weights(rounded(pair.tb, dtype))};
  return prove(reference, candidate, at::kCPU);
}

inline std::string why(const Proof& proof) {
  return fmt::format("{}", fmt::join(proof.gaps, "; "));
}

inline const Relation& relation(const Proof& proof, const std::string& tensor) {
  const auto found = std::find_if(proof.relations.begin(), proof.relations.end(),
                                  [&](const Relation& r) { return r.tensor == tensor; });
  REQUIRE_MESSAGE(found != proof.relations.end(), tensor);
  return *found;
}

inline at::Tensor random_matrix(int64_t size, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn({size, size}, at::kDouble) + 2 * at::eye(size, at::kDouble);
}

constexpr at::ScalarType every_type[] = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};

// No norm, a skip around attention and MLP: one stream from the embeddings to the head.
inline const char* const one_stream =
    R"({"width": 12, "vocab": 40, "context": 9, "embedding": {"position": "learned", "types": 2},
        "blocks": [{"repeat": 2, "attention": {"heads": 3, "head_width": 4, "bias": {"query": true, "key": true, "value": true, "output": true}},
                    "mlp": {"width": 20, "activation": "gelu", "gated": true, "bias": {"up": true, "gate": true, "down": true}}}],
        "head": {"bias": true}})";

}  // namespace pare::test
