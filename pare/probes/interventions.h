#pragma once
// What a probe may change in a model that runs, to see what follows: skips taken away, gains of norms set to zero, and
// two symmetries of attention, which should change nothing. Only the copy that is loaded is changed.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/block.h"
#include "pare/model/device.h"
#include "pare/model/ends.h"
#include "pare/model/taps.h"

namespace pare {

struct Interventions {
  bool without_attention_residual = false, without_mlp_residual = false;
  double zero_gains = 0;        // this share of the gains of every norm, drawn at random for each
  std::optional<double> gauge;  // value heads times A, undone after attention; the condition number of A is exp(this)
  bool permute_heads = false;   // with their keys, values, gates, shapes, columns of W_O
  uint64_t seed = 0;

  bool any() const;
};

// InputError, with every reason, where the architecture has nothing that could be changed so.
void check_interventions(const Interventions& interventions, const Architecture& architecture);
std::vector<std::string> in_words(const Interventions& interventions);

// Skips and gains of distinct block `n`, and of the last norm.
void intervene(BlockLayer& block, const Interventions& interventions, int64_t n, const Arithmetic& arithmetic);
void intervene(HeadLayer& head, const Interventions& interventions, int64_t width, const Arithmetic& arithmetic);

// The symmetries of distinct block `n` when it runs as layer `layer`.
void add_symmetries(Taps& taps, const Attention& attention, const Interventions& interventions, int64_t n,
                    int64_t layer, const Arithmetic& arithmetic);
// Which head of the model stands where: the order that permute_heads gives those of block `n`, else 0, 1, 2, ...
std::vector<int64_t> head_order(const Attention& attention, const Interventions& interventions, int64_t n);

}  // namespace pare
