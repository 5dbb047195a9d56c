#pragma once
// Two Architectures at once, while one is trained into the other: wherever they differ an executor that is given a
// Blend computes (1 - t) old + t new, on the old one's weights.
//   a norm        (1 - t) n(x) + t c x, times its gain: the mean that a LayerNorm takes off fades with it
//   a skip        (1 - t) x + f(x)
//   a projection  (1 - t) W + t a I
//   a bias        (1 - t) b
//   a neuron      (1 - t) of its column of the matrix down
// t, c and a are scalars in float64 on the model's device. Whoever trains moves them in place, between steps: nothing
// is made anew, so that a recorded step would see them too.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "pare/arch/tensor_id.h"

namespace pare {

// What norms see of a forward pass that records gradients, all of them together.
struct NormsSeen {
  // The variance of log std over all tokens, summed over norms, with its graph: where it is zero, a constant is what
  // the norm is. Who trains takes it away.
  at::Tensor unevenness;
  bool again = false;  // a layer is run a second time for its gradients: sums and counts have it already
};

struct NormBlend {
  at::Tensor t, constant;
  at::Tensor sum, count;  // of the means of 1/std of each forward pass that records gradients
  bool bias_fades = false;
  std::shared_ptr<NormsSeen> seen;
  // Where the tokens are those of several processes: the mean of what each of them found. Empty: they are all here.
  std::function<at::Tensor(const at::Tensor& own)> mean_of_all;
};

struct Blend {
  at::Tensor t;
  std::map<ModuleId, NormBlend> norms;
  std::shared_ptr<NormsSeen> seen = std::make_shared<NormsSeen>();  // by all of them
  std::map<ModuleId, at::Tensor> projections;                       // the a of each
  std::set<TensorId> biases;                                        // those that fade
  std::set<std::pair<int64_t, Sublayer>> skips;                     // of which block, around which sublayer
  std::map<int64_t, int64_t> neurons;                               // of which block, from which neuron on
};

}  // namespace pare
