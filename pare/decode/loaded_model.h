#pragma once
// A model whose layers are there, for engines that run its steps, and the forward pass that fills their cache.

#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/model/block.h"
#include "pare/model/cache.h"
#include "pare/model/ends.h"
#include "pare/model/tables.h"

namespace pare {

struct LoadedModel {
  Architecture architecture;
  EmbeddingLayer embedding;
  std::vector<BlockLayer> blocks;
  HeadLayer head;
};

LoadedModel load_whole(const Model& model, const Arithmetic& arithmetic);

// Logits behind the last token, [1, 1, vocab]; the cache then holds all of them.
at::Tensor forward(const LoadedModel& model, const Tables& tables, const Inputs& inputs, Cache& cache);

}  // namespace pare
