#pragma once
// What an MLP sublayer is. mlp.cpp says how it is written as JSON, what it must obey and what it stores.

#include <cstdint>
#include <optional>
#include <variant>

#include "pare/arch/norm.h"

namespace pare {

// α(z) - α(-z) = z: of every α(z) = z g(z) with g(z) + g(-z) = 1.
bool has_linear_odd_part(Activation activation);

struct MlpBias {
  bool up = false, gate = false, down = false;
  bool operator==(const MlpBias&) const = default;
};

struct DenseMlp {
  int64_t width = 0;
  Activation activation = Activation::gelu;
  bool gated = false;
  MlpBias bias;
  bool operator==(const DenseMlp&) const = default;
};

struct NeuronHeads {  // attention over {self, extra token}: the sigmoid is the softmax's
  int64_t width = 0;
  bool shared_value = false;  // the value weights are the query weights
  bool output_bias = false;
  bool operator==(const NeuronHeads&) const = default;
};

struct Mlp {
  std::variant<DenseMlp, NeuronHeads> kind;
  std::optional<Norm> norm, output_norm;
  bool skip = true;
  bool operator==(const Mlp&) const = default;
};

}  // namespace pare
