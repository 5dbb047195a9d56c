#pragma once
// A tensor that can be had, not one that is held: it is read, sliced or computed when asked for.
//
// A Weight is a handle to a node that never changes: a leaf, which is read, or an operation and its inputs, which are
// other Weights. Copies share the node, so a model is as cheap to copy after a hundred operations as after one. Any
// number of threads may load from one node.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pare/arch/tensors.h"
#include "pare/checkpoint/dtype.h"
#include "pare/checkpoint/formula.h"

namespace pare {

class Weight {
 public:
  using Load = std::function<at::Tensor()>;
  using LoadRows = std::function<at::Tensor(int64_t begin, int64_t count)>;
  // A function of the inputs and of nothing else. It may overwrite the vector, so that no input is held too long, but
  // not what is in the tensors.
  using Operation = std::function<at::Tensor(std::vector<at::Tensor>& inputs)>;
  enum class Rows {
    all,   // only the whole can be had
    each,  // a row is made of one row of the first input, and the other inputs as they are
  };

  Weight() = default;  // none: a bias that is not there
  // Without `load_rows`, only all can be had at once. Both must be safe in threads.
  static Weight leaf(Formula formula, Dtype dtype, Shape shape, Load load, LoadRows load_rows = nullptr);
  static Weight made(Formula formula, Dtype dtype, Shape shape, std::vector<Weight> inputs, Operation operation,
                     Rows rows = Rows::all);

  explicit operator bool() const { return node_ != nullptr; }
  bool operator==(const Weight&) const = default;  // the same node, not the same numbers

  Dtype dtype() const;
  const Shape& shape() const;
  at::Tensor load() const;  // a CPU tensor of that dtype and shape
  // Some entries of the first axis, for tables larger than one wants to hold.
  bool can_load_rows() const;
  at::Tensor load_rows(int64_t begin, int64_t count) const;

  const Formula& formula() const;          // how it was made
  std::span<const Weight> inputs() const;  // of what; a leaf has none

  // A number that is known of these numbers (a condition number), measured when first asked for.
  double measured(const std::string& what, const std::function<double()>& measure) const;

 private:
  struct Node;
  explicit Weight(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  const Node& node() const;
  std::shared_ptr<const Node> node_;
};

}  // namespace pare
