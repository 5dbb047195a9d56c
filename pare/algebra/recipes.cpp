#include "pare/algebra/recipes.h"

#include <ATen/ATen.h>

#include "pare/support/error.h"

namespace pare {

namespace {

at::Tensor apply_along(const at::Tensor& tensor, int64_t axis, int64_t begin, int64_t width, const RowMap& map) {
  const at::Tensor last = tensor.movedim(axis, -1);  // the stream's coordinates side by side
  const at::Tensor part = last.narrow(-1, begin, width);
  Shape shape = part.sizes().vec();
  at::Tensor changed = map(part.reshape({-1, width}));
  shape.back() = changed.size(1);
  changed = changed.view(shape);
  if (width < last.size(-1)) {
    const int64_t end = begin + width;
    changed = at::cat({last.narrow(-1, 0, begin), changed, last.narrow(-1, end, last.size(-1) - end)}, -1);
  }
  return changed.movedim(-1, axis).contiguous();
}

}  // namespace

at::Tensor load_double(const Weight& weight) {
  return weight.load().to(at::kDouble);
}

Weight computed(Shape shape, std::function<at::Tensor()> make) {
  return {Dtype::f64, std::move(shape), std::move(make)};
}

Weight mapped_along(const Weight& weight, int64_t axis, int64_t begin, int64_t width, const RowMap& map) {
  const int64_t axes = static_cast<int64_t>(weight.shape.size());
  PARE_CHECK(axis < axes && begin + width <= weight.shape[static_cast<size_t>(axis)], "a port outside of its tensor");
  Weight result{Dtype::f64, weight.shape, [=] { return apply_along(load_double(weight), axis, begin, width, map); }};
  if (axes == 2 && axis == 1 && weight.load_rows) {
    result.load_rows = [=](int64_t first, int64_t count) {
      return apply_along(weight.load_rows(first, count).to(at::kDouble), axis, begin, width, map);
    };
  }
  return result;
}

Weight rounded(const Weight& weight, Dtype dtype) {
  if (weight.dtype == dtype) {
    return weight;
  }
  const at::ScalarType type = scalar_type(dtype);
  Weight result{dtype, weight.shape, [=] { return weight.load().to(type); }};
  if (weight.load_rows) {
    result.load_rows = [=](int64_t begin, int64_t count) { return weight.load_rows(begin, count).to(type); };
  }
  return result;
}

}  // namespace pare
