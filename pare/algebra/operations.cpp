#include "pare/algebra/operations.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "pare/support/error.h"

namespace pare {

namespace {

at::Tensor apply_along(const at::Tensor& tensor, const Port& port, int64_t width,
                       const std::function<at::Tensor(const at::Tensor& rows)>& map) {
  const at::Tensor last = tensor.movedim(port.axis, -1);  // the stream's coordinates side by side
  const at::Tensor part = last.narrow(-1, port.begin, width);
  Shape shape = part.sizes().vec();
  at::Tensor changed = map(part.reshape({-1, width}));
  shape.back() = changed.size(1);
  changed = changed.view(shape);
  if (width < last.size(-1)) {
    const int64_t end = port.begin + width;
    changed = at::cat({last.narrow(-1, 0, port.begin), changed, last.narrow(-1, end, last.size(-1) - end)}, -1);
  }
  return changed.movedim(-1, port.axis).contiguous();
}

// Matrices are stored [out, in] and written [in, out]. Tables and biases are rows, collapsed matrices [in, out] or
// [in, in] for each head: those are written as they are stored.
bool is_written_as_stored(const TensorId& tensor, const Shape& shape) {
  const Slot slot = tensor.module.slot;
  const bool table = tensor.kind == TensorKind::bias || slot == Slot::token || slot == Slot::position ||
                     slot == Slot::type || slot == Slot::registers || slot == Slot::table;
  return table || shape.size() == 1 || shape.size() == 3;
}

// A map along the last axis as it is written multiplies from the right, along the other from the left.
Formula mapped_formula(const Weight& weight, const Port& port, int64_t width, const Formula& matrix) {
  const Shape& shape = weight.shape();
  const bool last = port.axis + 1 == std::ssize(shape);
  const bool right = is_written_as_stored(port.tensor, shape) ? last : port.axis == 0;
  Formula factor = right ? matrix : matrix.transposed();
  if (const int64_t size = shape[port.axis]; width < size) {
    PARE_CHECK(port.begin == 0, "a stream's coordinates come first");
    factor = Formula::enclosed("(", factor, " ⊕ I)");
  }
  return right ? weight.formula() * factor : factor * weight.formula();
}

}  // namespace

at::Tensor load_double(const Weight& weight) {
  return weight.load().to(at::kDouble);
}

Weight computed(Shape shape, Formula formula, std::vector<Weight> inputs, Weight::Operation make, Weight::Rows rows) {
  return Weight::made(
      std::move(formula), Dtype::f64, std::move(shape), std::move(inputs),
      [make = std::move(make)](std::vector<at::Tensor>& in) {
        for (at::Tensor& tensor : in) {
          tensor = tensor.to(at::kDouble);
        }
        return make(in);
      },
      rows);
}

Weight mapped_along(const Weight& weight, const Port& port, int64_t width, const RowMap& map) {
  const int64_t axes = std::ssize(weight.shape());
  PARE_CHECK(port.axis < axes && port.begin + width <= weight.shape()[port.axis], "a port outside of its tensor");
  std::vector<Weight> inputs = {weight};
  inputs.insert(inputs.end(), map.inputs.begin(), map.inputs.end());
  return computed(
      weight.shape(), mapped_formula(weight, port, width, map.matrix), std::move(inputs),
      [=, apply = map.apply](std::vector<at::Tensor>& in) {
        const at::Tensor tensor = std::move(in[0]);
        in.erase(in.begin());
        return apply_along(tensor, port, width, [&](const at::Tensor& rows) { return apply(rows, in); });
      },
      axes == 2 && port.axis == 1 ? Weight::Rows::each : Weight::Rows::all);
}

Weight as_head(const Weight& table) {
  return Weight::made(
      table.formula().transposed(), table.dtype(), table.shape(), {table},
      [](std::vector<at::Tensor>& in) { return in[0]; }, Weight::Rows::each);
}

Weight rounded(const Weight& weight, Dtype dtype) {
  if (weight.dtype() == dtype) {
    return weight;
  }
  return Weight::made(
      weight.formula(), dtype, weight.shape(), {weight},
      [type = scalar_type(dtype)](std::vector<at::Tensor>& in) { return in[0].to(type); }, Weight::Rows::each);
}

class Shelf {
 public:
  // Threads that want the same wait for one of them to make it; others do not.
  at::Tensor get(const Weight& weight) {
    const std::shared_ptr<Place> place = place_of(weight);
    const std::lock_guard lock(place->mutex);
    if (!place->tensor.defined()) {
      place->tensor = weight.load();
    }
    return place->tensor;
  }

 private:
  struct Place {
    Weight weight;
    std::mutex mutex;
    at::Tensor tensor;
  };

  std::shared_ptr<Place> place_of(const Weight& weight) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(places_, [&](const auto& place) { return place->weight == weight; });
    if (found != places_.end()) {
      return *found;
    }
    if (places_.size() == 2) {
      places_.pop_front();
    }
    places_.push_back(std::make_shared<Place>());
    places_.back()->weight = weight;
    return places_.back();
  }

  std::mutex mutex_;
  std::deque<std::shared_ptr<Place>> places_;
};

std::shared_ptr<Shelf> make_shelf() {
  return std::make_shared<Shelf>();
}

Weight held(const Weight& weight, const std::shared_ptr<Shelf>& shelf) {
  return Weight::leaf(weight.formula(), weight.dtype(), weight.shape(), [=] { return shelf->get(weight); });
}

Weight factored(const Weight& square) {
  const int64_t n = square.shape().front();
  return computed({n, n + 1}, Formula::enclosed("lu(", square.formula(), ")"), {square},
                  [n](std::vector<at::Tensor>& in) {
                    at::Tensor factors = at::empty({n + 1, n}, at::kDouble).t();  // in columns, as LAPACK has them
                    at::Tensor lu = factors.narrow(1, 0, n), pivots = at::empty({n}, at::kInt);
                    at::linalg_lu_factor_out(lu, pivots, in[0]);
                    factors.select(1, n).copy_(pivots);
                    return factors;
                  });
}

at::Tensor solved(const at::Tensor& rows, const at::Tensor& factors, bool transposed) {
  const int64_t n = factors.size(0);
  return at::linalg_lu_solve(factors.narrow(1, 0, n), factors.select(1, n).to(at::kInt), rows, /*left=*/false,
                             /*adjoint=*/transposed);
}

}  // namespace pare
