#pragma once
// A forward pass holding one block at a time: all inputs go through a block before the next is read.
// Of the token table only the rows that are asked for are kept, and the head's matrix comes in slices.

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/model/forward.h"

namespace pare {

class BlockwiseRun {
 public:
  // Embeds the inputs. Taps are for a single one.
  BlockwiseRun(const Model& model, const Arithmetic& arithmetic, std::span<const Inputs> inputs, Taps* taps = nullptr);
  ~BlockwiseRun();

  int64_t layers() const;
  int64_t done() const;
  const LayerInputs& streams() const;
  void run_layer();
  std::vector<Features> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Rows [begin, begin + count) of the head's matrix and bias: that many columns of the logits.
Linear head_rows(const Model& model, const Arithmetic& arithmetic, int64_t begin, int64_t count);
std::string head_matrix_name(const Architecture& architecture);  // the table's own, where they are tied

}  // namespace pare
