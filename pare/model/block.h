#pragma once
// One transformer block: its two sublayers, their norms, skips and wiring.

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "pare/model/attention.h"
#include "pare/model/mlp.h"

namespace pare {

struct BlockLayer {
  Block spec;
  AttentionLayer attention;
  std::optional<MlpLayer> mlp;
  std::optional<NormLayer> attention_norm, attention_output_norm, mlp_norm, mlp_output_norm;
  at::Tensor attention_fade, mlp_fade;  // the t of a skip that fades; undefined where none does
};

// Distinct block N of the architecture. A whole model is these, one after another: who streams keeps one at a time.
BlockLayer load_block(Loader& loader, const Architecture& architecture, int64_t n);

// Where the blocks of a run come from: block N, until another is asked for.
using Blocks = std::function<const BlockLayer&(int64_t n)>;

// Loads what is asked for, and lets the last one go before the next is read: there are never two. The loader and the
// architecture outlive it.
class OneBlock {
 public:
  OneBlock(Loader& loader, const Architecture& architecture);
  const BlockLayer& operator()(int64_t n);
  void release();

 private:
  Loader* loader_;
  const Architecture* architecture_;
  std::optional<BlockLayer> held_;
  int64_t number_ = -1;
};

// x: the stream [batch, tokens, width]. `table`: the first layer's looked-up projections, undefined elsewhere.
at::Tensor run_block(const BlockLayer& block, at::Tensor x, const at::Tensor& table, Step& step, int64_t layer);

}  // namespace pare
