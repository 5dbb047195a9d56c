#pragma once
// A layer of which a forward pass in training keeps only what came in. It is run again when its gradients are asked
// for, so that the activations of one layer exist at a time.

#include <ATen/core/Tensor.h>

#include <memory>

#include "pare/model/blend.h"
#include "pare/model/block.h"
#include "pare/model/step.h"

namespace pare {

// run_block of block n, in grad mode, without cache and taps: the same numbers, bit for bit, and the same gradients,
// which the block's leaves add up as ever.
//
// `blocks` is asked for the block here, and once more when its gradients come back, last layer first. Both times what
// it gives is let go before it is asked for another, so weights may be fetched for a layer and dropped after it. A copy
// of it stays in the graph; what that refers to outlives the graph.
at::Tensor run_block_recomputed(const Blocks& blocks, int64_t n, const at::Tensor& x, const at::Tensor& table,
                                Step& step, int64_t layer, const std::shared_ptr<NormsSeen>& seen);

}  // namespace pare
