#pragma once
// What is said of two models so that it can be checked that they are the same function: in which order the candidate
// has its units, in which basis its streams are and in which gauge its heads. pare/search finds it; here nothing of it
// is believed, but for what StreamBasis says below.

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>

#include "pare/arch/tensor_id.h"

namespace pare {

// Which of the candidate's is at each place of the reference's: groups of heads that share keys and values, and heads.
struct HeadOrder {
  at::Tensor groups, heads;
};

struct NeuronOrder {
  at::Tensor index = {};                    // undefined: the reference's
  std::map<Slot, at::Tensor> factors = {};  // of what each neuron reads, which what it writes takes back
};

struct BlockOrder {
  std::optional<HeadOrder> heads = {};
  NeuronOrder neurons = {};
};

// The map Ψ of one stream: z of the reference = Ψ z of the candidate.
struct StreamBasis {
  at::Tensor map = {};  // undefined: the identity
  // Taken as they are: how large the entries of readers usually are in the candidate's basis (what at_least_usual in
  // stream_map.h measures by), and, where an output matrix was absorbed, the part of the map that is a gauge of heads.
  at::Tensor units = {}, gauges = {};
};

// Of one block's attention: [kv_heads, k, k] for scores and for values. Undefined: the identity.
struct Gauges {
  at::Tensor scores, values;
};

}  // namespace pare
