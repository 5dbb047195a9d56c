#include "pare/model/executor.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/head.h"
#include "pare/model/block.h"
#include "pare/model/cache.h"
#include "pare/model/ends.h"
#include "pare/model/positions.h"
#include "pare/support/error.h"
#include "pare/support/memory.h"

namespace pare {

struct Executor::State {
  Architecture architecture;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  Use use = Use::inference;
  EmbeddingLayer embedding;
  std::vector<BlockLayer> blocks;
  std::vector<int64_t> layers;
  HeadLayer head;
  std::map<std::string, at::Tensor> parameters;
};

namespace {

at::Tensor joined(const at::Tensor& before, const at::Tensor& now) {
  return before.defined() ? at::cat({before, now}, 1) : now;
}

bool depends_on_length(const Architecture& a) {
  return std::any_of(a.blocks.begin(), a.blocks.end(), [](const Block& block) {
    return block.attention.rope && depends_on_length(*block.attention.rope);
  });
}

// Whether the tokens at hand make the sequence so much longer that those remembered turn by other angles.
bool angles_change(const Architecture& a, const Inputs& inputs, const Cache& cache) {
  const at::Tensor positions = positions_for(a, inputs, inputs.ids.options(), &cache);
  const int64_t before = cache.positions.max().item<int64_t>() + 1;
  const int64_t now = std::max(before, positions.max().item<int64_t>() + 1);
  return std::any_of(a.blocks.begin(), a.blocks.end(), [&](const Block& block) {
    const std::optional<Rope>& rope = block.attention.rope;
    return rope && rope_frequencies(*rope, before) != rope_frequencies(*rope, now);
  });
}

}  // namespace

Executor::Executor(const Model& model, at::ScalarType dtype, at::Device device, Use use)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  const Architecture& architecture = s.architecture = model.architecture;
  s.dtype = dtype;
  s.device = device;
  s.use = use;
  s.layers = layer_blocks(architecture);
  const PromptlyFreed promptly;  // what is read on the way into a stack or another type
  Loader loader(model.weights, dtype, device, use == Use::training);
  s.embedding = load_embedding(loader, architecture);
  const std::vector<Block>& blocks = architecture.blocks;
  for (size_t n = 0; n < blocks.size(); ++n) {
    s.blocks.push_back(load_block(loader, architecture, blocks[n], static_cast<int64_t>(n)));
  }
  s.head = load_head(loader, architecture, s.embedding);
  s.parameters = loader.parameters();
}

Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;

const Architecture& Executor::architecture() const {
  return state_->architecture;
}

const std::map<std::string, at::Tensor>& Executor::parameters() const {
  return state_->parameters;
}

Outputs Executor::forward(const Inputs& inputs, Cache* cache, Taps* taps) const {
  if (!cache || !depends_on_length(state_->architecture)) {
    return forward_once(inputs, cache, taps);
  }
  const bool stale = cache->length > 0 && angles_change(state_->architecture, inputs, *cache);
  const Cache before = *cache;
  cache->ids = joined(before.ids, inputs.ids);
  cache->types = inputs.types.defined() ? joined(before.types, inputs.types) : at::Tensor();
  if (!stale) {
    return forward_once(inputs, cache, taps);
  }
  // What was remembered belongs to other angles: everything is computed anew, so that cached decoding and one prefill
  // are the same function, whatever that costs.
  Inputs all = inputs;
  all.ids = cache->ids;
  all.types = cache->types;
  if (before.mask.defined() || inputs.mask.defined()) {
    const at::Tensor now = inputs.mask.defined() ? inputs.mask : at::ones_like(inputs.ids, at::kBool);
    all.mask = joined(before.mask.defined() ? before.mask : at::ones_like(before.ids, at::kBool), now);
  }
  all.positions = inputs.positions.defined() ? joined(before.positions, inputs.positions) : at::Tensor();
  cache->length = 0;
  Outputs outputs = forward_once(all, cache, taps);
  const int64_t tokens = inputs.ids.size(1), past = all.ids.size(1) - tokens;
  outputs.hidden = outputs.hidden.narrow(1, past, tokens);
  if (outputs.logits.defined() && !answers_sequences(state_->architecture)) {
    outputs.logits = outputs.logits.narrow(1, past, tokens);
  }
  return outputs;
}

Outputs Executor::forward_once(const Inputs& inputs, Cache* cache, Taps* taps) const {
  const State& s = *state_;
  const at::AutoGradMode grad(s.use == Use::training && at::GradMode::is_enabled());
  PARE_CHECK(inputs.ids.defined() != inputs.pixels.defined(), "a batch is tokens or pixels");
  const at::TensorOptions integers = at::TensorOptions(at::kLong).device(s.device);
  const at::Tensor positions = positions_for(s.architecture, inputs, integers, cache);
  if (cache) {
    cache->layers.resize(s.layers.size());
  }

  Step step(positions, inputs.mask, s.dtype, cache, taps);
  Embedded stream = embed(s.embedding, s.architecture, inputs, step, s.dtype);
  for (size_t layer = 0; layer < s.layers.size(); ++layer) {
    const BlockLayer& block = s.blocks[static_cast<size_t>(s.layers[layer])];
    stream.x = run_block(block, stream.x, layer == 0 ? stream.table : at::Tensor(), step, static_cast<int64_t>(layer));
  }
  if (taps) {
    stream.x = step.tap(fmt::format("residual.{}", s.layers.size()), "", stream.x);
  }
  Outputs outputs = answer(s.head, s.architecture, stream.x, inputs, step);
  step.remember();
  return outputs;
}

}  // namespace pare
