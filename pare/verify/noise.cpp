#include "pare/verify/noise.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <optional>

namespace pare {

namespace {

bool is_float(const Weight& weight) {
  return at::isFloatingType(scalar_type(weight.dtype()));
}

Dtype finest(const Weights& weights) {
  std::optional<Dtype> found;
  for (const auto& [name, weight] : weights) {
    if (is_float(weight) && (!found || unit_roundoff(weight.dtype()) < unit_roundoff(*found))) {
      found = weight.dtype();
    }
  }
  return found.value_or(Dtype::f64);
}

at::Tensor random_signs(int64_t count, uint64_t seed) {
  return 2 * at::randint(2, {count}, at::detail::createCPUGenerator(seed), at::kDouble) - 1;
}

// The sign of an element is that of its row times that of its column: as good as one for each in a sum over either, and
// the same whether a tensor is loaded whole or in slices.
struct Signs {
  at::Tensor rows, columns;
  at::Tensor moved(const at::Tensor& slice, int64_t first_row, double fraction) const {
    const at::Tensor flat = slice.to(at::kDouble).reshape({-1, columns.size(0)});
    const at::Tensor some = rows.narrow(0, first_row, flat.size(0)).unsqueeze(1);
    return at::addcmul(flat, flat * some, columns.unsqueeze(0), fraction).view(slice.sizes());
  }
};

Weight moved_weight(const Weight& original, double fraction, uint64_t seed) {
  const int64_t rows = original.shape().empty() ? 1 : original.shape()[0];
  const int64_t columns = rows == 0 ? 0 : element_count(original.shape()) / rows;
  const Signs signs{random_signs(rows, seed), random_signs(columns, seed + 1)};
  Weight::LoadRows some = [=](int64_t begin, int64_t count) {
    return signs.moved(original.load_rows(begin, count), begin, fraction);
  };
  return Weight::leaf(
      original.formula(), Dtype::f64, original.shape(), [=] { return signs.moved(original.load(), 0, fraction); },
      original.can_load_rows() ? some : nullptr);
}

}  // namespace

Dtype Rounding::dtype_of(const std::string& tensor) const {
  if (same_.contains(tensor)) {
    return Dtype::f64;
  }
  const auto kept = stored_.find(tensor);
  return kept != stored_.end() && is_float(kept->second) ? kept->second.dtype() : finest(stored_);
}

Dtype Rounding::coarsest(const Weights& weights) const {
  Dtype found = Dtype::f64;
  for (const auto& [name, weight] : weights) {
    const Dtype dtype = dtype_of(name);
    if (is_float(weight) && unit_roundoff(dtype) > unit_roundoff(found)) {
      found = dtype;
    }
  }
  return found;
}

Model Rounding::moved(const Model& model, uint64_t seed) const {
  Model result = model;
  for (auto& [name, weight] : result.weights) {
    seed += 2;
    if (is_float(weight) && element_count(weight.shape()) > 0) {
      weight = moved_weight(weight, unit_roundoff(dtype_of(name)), seed);
    }
  }
  return result;
}

}  // namespace pare
