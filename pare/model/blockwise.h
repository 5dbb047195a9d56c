#pragma once
// The forward pass of Executor, holding one block at a time: all inputs go through a block before the next is read.
// Of the token table only the rows that are asked for are kept, and the head's matrix comes in slices.

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/weights.h"
#include "pare/model/executor.h"
#include "pare/model/taps.h"

namespace pare {

struct Features;  // ends.h
struct Linear;    // loader.h

// Where and in which arithmetic a model runs.
struct Arithmetic {
  at::ScalarType dtype = at::kDouble;
  at::Device device = at::kCPU;
};

// What every input has become before some layer.
struct LayerInputs {
  std::vector<at::Tensor> x;
  std::vector<at::Tensor> table;  // the first layer's looked-up projections; undefined later, and elsewhere
};

class BlockwiseRun {
 public:
  // Embeds the inputs. Taps hold one value for each name, so they are
  // for a single input.
  BlockwiseRun(const Model& model, const Arithmetic& arithmetic, std::span<const Inputs> inputs, Taps* taps = nullptr);
  ~BlockwiseRun();

  int64_t layers() const;
  int64_t done() const;  // layers behind us
  const LayerInputs& streams() const;
  void run_layer();
  // After the last layer: for each input, everything but the product with the head's matrix.
  std::vector<Features> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Rows [begin, begin + count) of the head's matrix and bias: that many columns of the logits.
Linear head_rows(const Model& model, const Arithmetic& arithmetic, int64_t begin, int64_t count);
std::string head_matrix_name(const Architecture& architecture);  // the table's own, where they are tied

}  // namespace pare
