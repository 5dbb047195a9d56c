#pragma once
// The one forward pass: inputs become streams, streams go through the layers, streams become features. A whole model, a
// run that holds one block at a time and one that branches off before a layer differ in where their blocks come from
// and in where they begin.

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/blend.h"
#include "pare/model/block.h"
#include "pare/model/ends.h"
#include "pare/model/step.h"

namespace pare {

// What every input has become before some layer.
struct LayerInputs {
  std::vector<at::Tensor> x;
  std::vector<at::Tensor> table;  // the first layer's looked-up projections; undefined later, and elsewhere
};

class Forward {
 public:
  // All inputs go through a layer before the next one runs. A cache and taps hold one value for each name, so they are
  // for a single input. What is referred to outlives this.
  Forward(const Architecture& architecture, const Tables& tables, std::span<const Inputs> inputs,
          Cache* cache = nullptr, Taps* taps = nullptr);

  void drop_with(Dropout* dropout);
  // While training: of a layer only what comes in is kept, and it is run again on the way back (recompute.h). `seen`
  // is that of the blend, if there is one.
  void keep_layer_inputs(std::shared_ptr<NormsSeen> seen) { seen_ = std::move(seen); }

  // Begins at the first layer, or before another one with what stood there.
  void embed(const EmbeddingLayer& layer);
  void begin_at(int64_t layer, LayerInputs streams);

  int64_t layers() const { return std::ssize(order_); }
  int64_t done() const { return layer_; }  // layers behind us
  const LayerInputs& streams() const { return streams_; }
  void run_layer(const Blocks& blocks);

  // After the last layer: for each input, everything but the product with the head's matrix. The cache then remembers
  // the tokens.
  std::vector<Features> finish(const HeadLayer& head, Logits wanted = Logits::all);

 private:
  const Architecture* architecture_;
  std::vector<Inputs> inputs_;
  std::vector<int64_t> order_;  // which block each layer runs
  std::vector<Step> steps_;
  std::shared_ptr<NormsSeen> seen_;  // where layers are run again
  LayerInputs streams_;
  int64_t layer_ = 0;
};

}  // namespace pare
