#pragma once
// Weights of which each rank moves only an equal part, so that it needs the optimiser's state of that part alone
// (ZeRO, stage 1), and which it may hold whole only now and then (stage 3): https://arxiv.org/abs/1910.02054.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pare/ranks/communicator.h"
#include "pare/train/flat_layout.h"

namespace pare {

class WeightShares {
 public:
  using Tensors = std::map<std::string, at::Tensor>;
  // A leaf's numbers in the type in which they are moved.
  using Start = std::function<at::Tensor(const std::string& name)>;
  enum class Whole { always, on_demand };

  explicit WeightShares(const Communicator& ranks) : ranks_(ranks) {}

  // The leaves from now on lie in flat tensors. Hands back the number of what was added. On demand: nowhere, until they
  // are fetched. The layout has the leaves in the order of their names.
  size_t add(const Tensors& leaves, const Start& start, const FlatLayout& layout, Whole whole);

  // What this rank moves, by the names of the leaves: stretches of them, flat. A leaf may have none here.
  Tensors own() const;
  Tensors own_of(size_t number, const std::vector<at::Tensor>& parts) const;  // the same of other buckets' parts

  // What each rank has moved becomes the leaves' on all: of those that always are, and of one that is on demand.
  void spread() const;
  void fetch(size_t number) const;
  void drop(size_t number) const;  // its leaves have no numbers until they are fetched

  // A whole tensor of which each rank has its stretch. All ranks ask for the same tensors in one order.
  at::Tensor whole(const std::string& name, const at::Tensor& stretch) const;
  at::Tensor stretch(const std::string& name, const at::Tensor& whole) const;  // undefined: none here

 private:
  struct Set {
    FlatLayout layout;
    Whole whole;
    std::vector<at::Tensor> weights, parts;           // the leaves' buckets, and what this rank moves of each
    std::map<std::string, FlatLayout::Piece> pieces;  // of this rank
  };
  struct Place {
    size_t set = 0, tensor = 0;
  };
  void gather(const Set& set) const;

  Communicator ranks_;
  std::vector<Set> sets_;
  std::map<std::string, Place> places_;
};

}  // namespace pare
