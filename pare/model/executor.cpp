#include "pare/model/executor.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/arch/head.h"
#include "pare/model/forward.h"
#include "pare/support/memory.h"

namespace pare {

struct Executor::State {
  Architecture architecture;
  Tables tables;
  Use use = Use::inference;
  Kept kept = Kept::activations;
  BlockWatch watch;
  std::shared_ptr<NormsSeen> seen;
  EmbeddingLayer embedding;
  std::vector<BlockLayer> blocks;
  HeadLayer head;
  std::map<std::string, at::Tensor> parameters;
};

namespace {

bool depends_on_length(const Architecture& a) {
  return std::ranges::any_of(
      a.blocks, [](const Block& block) { return block.attention.rope && depends_on_length(*block.attention.rope); });
}

// Whether the tokens at hand make the sequence so much longer that those remembered turn by other angles.
bool angles_change(const Architecture& a, const Inputs& inputs, const Tables& tables, const Cache& cache) {
  const int64_t before = cache.positions.defined() ? end_of({cache.positions, {}}) : cache.length;
  const int64_t now = std::max(before, end_of(positions_for(a, inputs, tables, &cache)));
  return std::ranges::any_of(a.blocks, [&](const Block& block) {
    const std::optional<Rope>& rope = block.attention.rope;
    return rope && rope_frequencies(*rope, before) != rope_frequencies(*rope, now);
  });
}

using Leaves = std::map<std::string, at::Tensor>;

Leaves leaves_of(const TensorTable& table, const Leaves& all, int64_t block) {
  Leaves leaves = all;
  std::erase_if(leaves, [&](const auto& leaf) { return table.at(leaf.first).id.module.block != block; });
  return leaves;
}

}  // namespace

Executor::Executor(const Model& model, at::ScalarType dtype, at::Device device, Use use, const Blend* blend, Kept kept,
                   BlockWatch watch)
    : state_(new State{.architecture = model.architecture,
                       .tables = Tables({dtype, device}),
                       .use = use,
                       .kept = kept,
                       .watch = std::move(watch),
                       .seen = blend ? blend->seen : std::make_shared<NormsSeen>()}) {
  State& s = *state_;
  const PromptlyFreed promptly;  // what is read on the way into a stack or another type
  Loader loader(model.architecture, model.weights, {dtype, device}, use == Use::training, blend);
  const TensorTable table = tensor_table(s.architecture);
  s.embedding = load_embedding(loader, s.architecture);
  for (int64_t n = 0; n < std::ssize(s.architecture.blocks); ++n) {
    s.blocks.push_back(load_block(loader, s.architecture, n));
    if (s.watch.loaded) {
      s.watch.loaded(n, leaves_of(table, loader.parameters(), n));
    }
  }
  s.head = load_head(loader, s.architecture, s.embedding);
  s.parameters = loader.parameters();
  s.watch.loaded = {};  // it may refer to what is read here
}

Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;
Executor& Executor::operator=(Executor&&) noexcept = default;

const Architecture& Executor::architecture() const {
  return state_->architecture;
}

const std::map<std::string, at::Tensor>& Executor::parameters() const {
  return state_->parameters;
}

Outputs Executor::forward(const Inputs& inputs, Cache* cache, Taps* taps, Logits logits) const {
  if (!cache || !depends_on_length(state_->architecture)) {
    return forward_once(inputs, cache, taps, logits);
  }
  const bool stale = cache->length > 0 && angles_change(state_->architecture, inputs, state_->tables, *cache);
  const Cache before = *cache;
  cache->ids = joined(before.ids, inputs.ids);
  cache->types = inputs.types.defined() ? joined(before.types, inputs.types) : at::Tensor();
  if (!stale) {
    return forward_once(inputs, cache, taps, logits);
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
  if (inputs.positions.defined()) {
    all.positions = joined(before.positions.defined() ? before.positions : state_->tables.counted(0, before.length).at,
                           inputs.positions);
  }
  cache->length = 0;
  Outputs outputs = forward_once(all, cache, taps, logits);
  const int64_t tokens = inputs.ids.size(1), past = all.ids.size(1) - tokens;
  outputs.hidden = outputs.hidden.narrow(1, past, tokens);
  if (outputs.logits.defined() && logits == Logits::all && !answers_sequences(state_->architecture)) {
    outputs.logits = outputs.logits.narrow(1, past, tokens);
  }
  return outputs;
}

Features Executor::features_of(const Inputs& inputs, Cache* cache, Taps* taps, Logits wanted, Dropout* dropout) const {
  const State& s = *state_;
  Forward run(s.architecture, s.tables, {&inputs, 1}, cache, taps);
  run.drop_with(dropout);
  if (s.kept == Kept::layer_inputs && at::GradMode::is_enabled() && !cache && !taps) {
    run.keep_layer_inputs(s.seen);
  }
  run.embed(s.embedding);
  const Blocks blocks = [&s](int64_t n) -> const BlockLayer& {
    if (s.watch.wanted) {
      s.watch.wanted(n);
    }
    return s.blocks[n];
  };
  while (run.done() < run.layers()) {
    run.run_layer(blocks);
  }
  return run.finish(s.head, wanted).front();
}

at::Tensor Executor::head_input(const Inputs& inputs, Dropout* dropout) const {
  const at::AutoGradMode grad(state_->use == Use::training && at::GradMode::is_enabled());
  return features_of(inputs, nullptr, nullptr, Logits::all, dropout).x;
}

Outputs Executor::forward_once(const Inputs& inputs, Cache* cache, Taps* taps, Logits wanted) const {
  const State& s = *state_;
  const at::AutoGradMode grad(s.use == Use::training && at::GradMode::is_enabled());
  const Features found = features_of(inputs, cache, taps, wanted);
  Outputs outputs{.hidden = found.hidden, .pooled = found.pooled, .sequence_logits = found.sequence_logits};
  if (found.x.defined()) {
    outputs.logits = logits(s.head.head, s.architecture, found.x);
    if (taps) {
      outputs.logits = taps->touch("logits", outputs.logits);
    }
  }
  return outputs;
}

}  // namespace pare
