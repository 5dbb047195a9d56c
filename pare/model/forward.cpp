#include "pare/model/forward.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/model/recompute.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"

namespace pare {

Forward::Forward(const Architecture& architecture, const Tables& tables, std::span<const Inputs> inputs, Cache* cache,
                 Taps* taps)
    : architecture_(&architecture), inputs_(inputs.begin(), inputs.end()), order_(layer_blocks(architecture)) {
  PARE_CHECK((!cache && !taps) || inputs.size() == 1, "the cache or taps of several inputs would overwrite each other");
  if (cache) {
    cache->layers.resize(order_.size());
  }
  for (const Inputs& input : inputs_) {
    PARE_CHECK(input.ids.defined() != input.pixels.defined(), "a batch is tokens or pixels");
    steps_.emplace_back(positions_for(architecture, input, tables, cache), input.mask, tables, cache, taps);
  }
}

void Forward::drop_with(Dropout* dropout) {
  for (Step& step : steps_) {
    step.drop_with(dropout);
  }
}

void Forward::embed(const EmbeddingLayer& layer) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Embedded stream = pare::embed(layer, *architecture_, inputs_[i], steps_[i]);
    streams_.x.push_back(steps_[i].dropped(stream.x, &DropoutRates::embedding));
    streams_.table.push_back(stream.table);
  }
}

void Forward::begin_at(int64_t layer, LayerInputs streams) {
  layer_ = layer;
  streams_ = std::move(streams);
}

void Forward::run_layer(const Blocks& blocks) {
  PARE_CHECK(layer_ < layers() && streams_.x.size() == inputs_.size(), "no layer is left, or nothing was embedded");
  const int64_t n = order_[layer_];
  // A GPU is handed its work, and what it is handed may be recorded, from which nothing may break out.
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const bool at_once = streams_.x[i].is_cpu();
    at_once ? check_interrupt() : void();
    const at::Tensor x = streams_.x[i], table = streams_.table[i];
    streams_.x[i] = seen_ ? run_block_recomputed(blocks, n, x, table, steps_[i], layer_, seen_)
                          : run_block(blocks(n), x, table, steps_[i], layer_);
    streams_.table[i] = at::Tensor();
    if (at_once && streams_.x[i].requires_grad()) {  // the way back is as long
      streams_.x[i].register_hook([](const at::Tensor&) { check_interrupt(); });
    }
  }
  ++layer_;
}

std::vector<Features> Forward::finish(const HeadLayer& head, Logits wanted) {
  PARE_CHECK(layer_ == layers(), "layers are left");
  std::vector<Features> result;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    Step& step = steps_[i];
    at::Tensor x = streams_.x[i];
    if (step.tapped()) {
      x = step.tap(fmt::format("residual.{}", layers()), "", x);
    }
    result.push_back(features(head, *architecture_, x, inputs_[i], wanted, step));
    step.remember();
  }
  return result;
}

}  // namespace pare
