#pragma once
// Weights that lie on every rank, of which each rank moves only an equal part, so that it needs the optimiser's state
// of that part alone (ZeRO, stage 1): https://arxiv.org/abs/1910.02054.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "pare/ranks/communicator.h"
#include "pare/train/flat_layout.h"

namespace pare {

class WeightShares {
 public:
  // The leaves from now on lie in flat tensors. `start` has their numbers in the type in which they are moved.
  WeightShares(const Communicator& ranks, std::vector<std::string> names, const std::vector<at::Tensor>& leaves,
               const std::vector<at::Tensor>& start, const FlatLayout& layout);

  // What this rank moves, by the names of the leaves: stretches of them, flat. A leaf may have none here.
  const std::map<std::string, at::Tensor>& own() const { return own_; }
  std::vector<at::Tensor> own_of(const std::vector<at::Tensor>& buckets) const;  // of other buckets, in own()'s order
  void spread() const;  // what each rank has moved becomes the leaves' on all

  // A whole tensor of which each rank has its stretch. All ranks ask for the same tensors in one order.
  at::Tensor whole(const std::string& name, const at::Tensor& stretch) const;
  at::Tensor stretch(const std::string& name, const at::Tensor& whole) const;  // undefined: none here

 private:
  Communicator ranks_;
  FlatLayout layout_;
  std::map<std::string, size_t> numbers_;
  std::map<std::string, FlatLayout::Piece> pieces_;
  std::vector<at::Tensor> weights_, parts_;  // the leaves' buckets, and what this rank moves of each
  std::map<std::string, at::Tensor> own_;
};

}  // namespace pare
