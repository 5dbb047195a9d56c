#include "pare/verify/moved_weight.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pare/support/mixed_bits.h"

namespace pare {

namespace {

uint64_t mixed(uint64_t x) {
  return mixed_bits(x + golden_bits);
}

}  // namespace

at::Tensor moved(const at::Tensor& rows, int64_t first_row, const Movement& movement, double fraction) {
  at::Tensor values = rows.to(at::kDouble).clone(at::MemoryFormat::Contiguous);
  const int64_t row_elements = values.dim() == 0 || values.size(0) == 0 ? 1 : values.numel() / values.size(0);
  const int64_t first_element = first_row * row_elements;
  double* const numbers = values.data_ptr<double>();
  at::parallel_for(0, values.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    uint64_t bits = 0;  // of 64 elements
    for (int64_t i = begin; i < end; ++i) {
      const auto element = static_cast<uint64_t>(first_element + i);
      if (i == begin || element % 64 == 0) {
        bits = mixed(movement.seed ^ mixed(element / 64));
      }
      const double size = movement.from_zero > 0 ? movement.from_zero : numbers[i];
      numbers[i] += (bits >> (element % 64) & 1 ? fraction : -fraction) * size;
    }
  });
  return values;
}

Weight moved(const Weight& original, const Movement& movement, double fraction) {
  Weight::LoadRows some = [=](int64_t begin, int64_t count) {
    return moved(original.load_rows(begin, count), begin, movement, fraction);
  };
  return Weight::leaf(
      original.formula(), Dtype::f64, original.shape(), [=] { return moved(original.load(), 0, movement, fraction); },
      original.can_load_rows() ? some : nullptr);
}

}  // namespace pare
