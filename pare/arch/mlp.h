#pragma once
// What an MLP sublayer is. mlp.cpp says how each kind is written as JSON, what it must obey, what it stores, and what
// the rest of the library asks of any kind.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "pare/arch/kinds.h"
#include "pare/arch/norm.h"
#include "pare/arch/tensor_id.h"

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

// ---- what is asked of any kind

// The rows of one matrix may be multiplied by c and the columns that write divided by c^power: for any c, or for c > 0.
struct FreeFactor {
  Slot slot = Slot::up;
  int power = 1;
  bool any_sign = true;
};

// Every kind is made of neurons: rows of the matrices that read the input, and a column of the matrix that writes.
struct NeuronFacts {
  int64_t count = 0;
  std::vector<FreeFactor> factors;
  bool linear = false;    // nothing bends: more is free than factors
  bool switches = false;  // some are off on almost every input
};

// One that no change of the weights makes up for: models of one kind that differ in it are different functions.
struct MlpSetting {
  std::string name, value;
};

const char* kind_of(const Mlp& mlp);  // in words: "neuron heads"
NeuronFacts neurons_of(const Mlp& mlp);
std::vector<MlpSetting> fixed_settings(const Mlp& mlp);
// The setting that gives a matrix its bias; null where it cannot have one.
bool* bias_flag(Mlp& mlp, Slot slot);

// A number that holds the gate of a neuron open, whatever the neuron reads.
//
// α(at) = value. Both are 0 or powers of two, which every stored type holds: what passes such a gate, and is divided by
// `value`, is not rounded. Where α(z) only tends to z or to 1, it is so far on there that float64 cannot tell: what is
// missing is less than 2⁻⁶⁴ of it.
struct OpenGate {
  double at = 0, value = 1;
};

OpenGate open_gate(Activation activation);

}  // namespace pare
