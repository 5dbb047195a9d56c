#pragma once
// The same function in another form: run to see that it is the same, then proved, and then sabotaged.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "tests/proof/helpers.h"

namespace pare::test {

constexpr double float64_noise = 1e-9;

inline double distance(const Pair& pair) {
  const Inputs inputs = random_inputs(pair.a, 3, 8);
  return relative_error(run(pair.b, pair.tb, inputs), run(pair.a, pair.ta, inputs));
}

// Proved in float64, float32 and narrow types, stored from exact numbers; and nothing of it can be moved unseen.
inline void check_form(const Pair& pair, bool narrow = true) {
  REQUIRE(distance(pair) < float64_noise);
  for (const at::ScalarType dtype : every_type) {
    if (!narrow && (dtype == at::kHalf || dtype == at::kBFloat16)) {
      continue;
    }
    CAPTURE(std::string(at::toString(dtype)));
    const Proof proof = prove({pair.a, as_weights(pair.ta)}, {pair.b, as_weights(rounded(pair.tb, dtype))}, at::kCPU);
    CHECK_MESSAGE(proof.complete, why(proof));
    CHECK_FALSE(proof.identical);
  }
  for (const auto& [name, tensor] : pair.tb) {
    if (!tensor.is_floating_point()) {
      continue;
    }
    CAPTURE(name);
    Pair moved = pair;
    const int64_t largest = tensor.abs().argmax().item<int64_t>();
    moved.tb[name] = tensor.clone();
    moved.tb[name].flatten()[largest].mul_(1.001);
    if (distance(moved) > float64_noise) {
      const Proof proof = proof_of(moved);
      CHECK_FALSE(proof.complete);
      CHECK_FALSE(proof.gaps.empty());
    }
    moved.tb[name] = tensor * -1.5;
    if (distance(moved) > float64_noise) {
      CHECK_FALSE(proof_of(moved).complete);
    }
  }
}

inline at::Tensor without_mean(const at::Tensor& x, int64_t axis) {
  return x - x.mean(axis, true);
}

}  // namespace pare::test
