#include "pare/decode/loaded_model.h"

#include <ATen/ATen.h>

#include "pare/model/forward.h"
#include "pare/support/memory.h"

namespace pare {

LoadedModel load_whole(const Model& model, const Arithmetic& arithmetic) {
  const PromptlyFreed promptly;
  Loader loader(model.architecture, model.weights, arithmetic, false);
  LoadedModel loaded{.architecture = model.architecture, .embedding = load_embedding(loader, model.architecture)};
  for (int64_t n = 0; n < std::ssize(model.architecture.blocks); ++n) {
    loaded.blocks.push_back(load_block(loader, model.architecture, n));
  }
  loaded.head = load_head(loader, model.architecture, loaded.embedding);
  return loaded;
}

at::Tensor forward(const LoadedModel& model, const Tables& tables, const Inputs& inputs, Cache& cache) {
  Forward run(model.architecture, tables, {&inputs, 1}, &cache);
  run.embed(model.embedding);
  while (run.done() < run.layers()) {
    run.run_layer([&model](int64_t n) -> const BlockLayer& { return model.blocks[n]; });
  }
  return logits(model.head.head, model.architecture, run.finish(model.head, Logits::last).front().x);
}

}  // namespace pare
