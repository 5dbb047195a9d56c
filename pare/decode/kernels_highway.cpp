// Compiled once for every set of instructions that Highway knows on this kind of machine.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "pare/decode/kernels_highway.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "pare/decode/halves.h"
#include "pare/decode/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace pare::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

HWY_INLINE Vector sum_of(Vector a, Vector b, Vector c, Vector d) {
  return hn::Add(hn::Add(a, b), hn::Add(c, d));
}

HWY_INLINE float total(Vector v) {
  return hn::GetLane(hn::SumOfLanes(Floats(), v));
}

HWY_INLINE Vector loaded(const float* from) {
  return hn::LoadU(Floats(), from);
}
HWY_INLINE Vector loaded(const hwy::float16_t* from) {
  const Floats floats;
  return hn::PromoteTo(floats, hn::LoadU(hn::Rebind<hwy::float16_t, Floats>(), from));
}

HWY_INLINE float wide(const float* x) {
  return *x;
}
HWY_INLINE float wide(const hwy::float16_t* x) {
  uint16_t bits;
  std::memcpy(&bits, x, sizeof(bits));
  return from_float16(bits);
}

// Eight sums: as many products are under way as two units with a latency of four take.
template <class Number>
void multiply(const Number* data, int64_t columns, int64_t first, int64_t last, const float* x, float* y) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(Floats()));
  for (int64_t r = first; r < last; ++r) {
    const Number* row = data + r * columns;
    Vector a = hn::Zero(Floats()), b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    int64_t i = 0;
    for (; i + 8 * n <= columns; i += 8 * n) {
      a = hn::MulAdd(loaded(row + i), loaded(x + i), a);
      b = hn::MulAdd(loaded(row + i + n), loaded(x + i + n), b);
      c = hn::MulAdd(loaded(row + i + 2 * n), loaded(x + i + 2 * n), c);
      d = hn::MulAdd(loaded(row + i + 3 * n), loaded(x + i + 3 * n), d);
      e = hn::MulAdd(loaded(row + i + 4 * n), loaded(x + i + 4 * n), e);
      f = hn::MulAdd(loaded(row + i + 5 * n), loaded(x + i + 5 * n), f);
      g = hn::MulAdd(loaded(row + i + 6 * n), loaded(x + i + 6 * n), g);
      h = hn::MulAdd(loaded(row + i + 7 * n), loaded(x + i + 7 * n), h);
    }
    for (; i + n <= columns; i += n) {
      a = hn::MulAdd(loaded(row + i), loaded(x + i), a);
    }
    float sum = total(hn::Add(sum_of(a, b, c, d), sum_of(e, f, g, h)));
    for (; i < columns; ++i) {
      sum += wide(row + i) * x[i];
    }
    y[r - first] = sum;
  }
}

// A bfloat16 is the upper half of a float32: two of them in 32 bits become two numbers by a shift and by a mask, if x
// has its even numbers apart from its odd ones.
void multiply_bfloat16(const uint16_t* data, int64_t columns, int64_t first, int64_t last, const float* x,
                       float* scratch, float* y) {
  const hn::Repartition<uint32_t, Floats> words;
  const hn::Repartition<uint16_t, Floats> halves;
  const auto upper = hn::Set(words, 0xffff0000u);
  const Floats floats;
  const int64_t n = static_cast<int64_t>(hn::Lanes(floats)), pairs = columns / 2;
  float *even = scratch, *odd = scratch + pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    even[i] = x[2 * i];
    odd[i] = x[2 * i + 1];
  }
  for (int64_t r = first; r < last; ++r) {
    const uint16_t* row = data + r * columns;
    Vector a = hn::Zero(floats), b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    int64_t i = 0;  // pairs done
    for (; i + 4 * n <= pairs; i += 4 * n) {
      const auto p = hn::BitCast(words, hn::LoadU(halves, row + 2 * i));
      const auto q = hn::BitCast(words, hn::LoadU(halves, row + 2 * (i + n)));
      const auto s = hn::BitCast(words, hn::LoadU(halves, row + 2 * (i + 2 * n)));
      const auto t = hn::BitCast(words, hn::LoadU(halves, row + 2 * (i + 3 * n)));
      a = hn::MulAdd(hn::BitCast(floats, hn::ShiftLeft<16>(p)), loaded(even + i), a);
      b = hn::MulAdd(hn::BitCast(floats, hn::And(p, upper)), loaded(odd + i), b);
      c = hn::MulAdd(hn::BitCast(floats, hn::ShiftLeft<16>(q)), loaded(even + i + n), c);
      d = hn::MulAdd(hn::BitCast(floats, hn::And(q, upper)), loaded(odd + i + n), d);
      e = hn::MulAdd(hn::BitCast(floats, hn::ShiftLeft<16>(s)), loaded(even + i + 2 * n), e);
      f = hn::MulAdd(hn::BitCast(floats, hn::And(s, upper)), loaded(odd + i + 2 * n), f);
      g = hn::MulAdd(hn::BitCast(floats, hn::ShiftLeft<16>(t)), loaded(even + i + 3 * n), g);
      h = hn::MulAdd(hn::BitCast(floats, hn::And(t, upper)), loaded(odd + i + 3 * n), h);
    }
    for (; i + n <= pairs; i += n) {
      const auto p = hn::BitCast(words, hn::LoadU(halves, row + 2 * i));
      a = hn::MulAdd(hn::BitCast(floats, hn::ShiftLeft<16>(p)), loaded(even + i), a);
      b = hn::MulAdd(hn::BitCast(floats, hn::And(p, upper)), loaded(odd + i), b);
    }
    float sum = total(hn::Add(sum_of(a, b, c, d), sum_of(e, f, g, h)));
    for (int64_t k = 2 * i; k < columns; ++k) {
      sum += from_bfloat16(row[k]) * x[k];
    }
    y[r - first] = sum;
  }
}

void multiply_rows(const MatrixView& matrix, int64_t first, int64_t last, const float* x, float* scratch, float* y) {
  switch (matrix.type) {
    case Element::float32:
      return multiply(static_cast<const float*>(matrix.data), matrix.columns, first, last, x, y);
    case Element::bfloat16:
      return multiply_bfloat16(static_cast<const uint16_t*>(matrix.data), matrix.columns, first, last, x, scratch, y);
    case Element::float16:
      return multiply(static_cast<const hwy::float16_t*>(matrix.data), matrix.columns, first, last, x, y);
  }
}

void add_rows(const float* rows, int64_t columns, int64_t count, const float* weights, float* y) {
  const Floats floats;
  const int64_t n = static_cast<int64_t>(hn::Lanes(floats));
  int64_t i = 0;
  for (; i + 4 * n <= columns; i += 4 * n) {
    Vector a = hn::Zero(floats), b = a, c = a, d = a;
    for (int64_t r = 0; r < count; ++r) {
      const float* row = rows + r * columns + i;
      const Vector weight = hn::Set(floats, weights[r]);
      a = hn::MulAdd(loaded(row), weight, a);
      b = hn::MulAdd(loaded(row + n), weight, b);
      c = hn::MulAdd(loaded(row + 2 * n), weight, c);
      d = hn::MulAdd(loaded(row + 3 * n), weight, d);
    }
    hn::StoreU(a, floats, y + i);
    hn::StoreU(b, floats, y + i + n);
    hn::StoreU(c, floats, y + i + 2 * n);
    hn::StoreU(d, floats, y + i + 3 * n);
  }
  for (; i < columns; ++i) {
    float sum = 0;
    for (int64_t r = 0; r < count; ++r) {
      sum += weights[r] * rows[r * columns + i];
    }
    y[i] = sum;
  }
}

const char* kernel_target() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace pare::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pare {

HWY_EXPORT(multiply_rows);
HWY_EXPORT(add_rows);
HWY_EXPORT(kernel_target);

void multiply_rows(const MatrixView& matrix, int64_t first, int64_t last, const float* x, float* scratch, float* y) {
  HWY_DYNAMIC_DISPATCH(multiply_rows)(matrix, first, last, x, scratch, y);
}

void add_rows(const float* rows, int64_t columns, int64_t count, const float* weights, float* y) {
  HWY_DYNAMIC_DISPATCH(add_rows)(rows, columns, count, weights, y);
}

const char* kernel_target() {
  return HWY_DYNAMIC_DISPATCH(kernel_target)();
}

}  // namespace pare
#endif
