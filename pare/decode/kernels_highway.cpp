// Compiled once for every set of instructions that Highway knows on this kind of machine.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "pare/decode/kernels_highway.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>  // after the two above

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

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

// Two vectors of a row, in the order that `arranged` gives x.
HWY_INLINE void load_two(const float* from, Vector& a, Vector& b) {
  a = loaded(from);
  b = loaded(from + hn::Lanes(Floats()));
}

HWY_INLINE void load_two(const hwy::float16_t* from, Vector& a, Vector& b) {
  const hn::Rebind<hwy::float16_t, Floats> halves;
  a = hn::PromoteTo(Floats(), hn::LoadU(halves, from));
  b = hn::PromoteTo(Floats(), hn::LoadU(halves, from + hn::Lanes(Floats())));
}

// A bfloat16 is the upper half of a float32: of two in 32 bits a shift makes the even one, a mask the odd one.
struct Bfloat16 {
  uint16_t bits;
};

HWY_INLINE void load_two(const Bfloat16* from, Vector& even, Vector& odd) {
  const hn::Repartition<uint32_t, Floats> words;
  const auto pairs = hn::LoadU(words, reinterpret_cast<const uint32_t*>(from));  // also where a vector is one float
  even = hn::BitCast(Floats(), hn::ShiftLeft<16>(pairs));
  odd = hn::BitCast(Floats(), hn::And(pairs, hn::Set(words, 0xffff0000u)));
}

template <class Number>
HWY_INLINE const float* arranged(const Number*, const float* x, int64_t, float*) {
  return x;
}
// Two vectors of x at a time, the even numbers before the odd ones.
HWY_INLINE const float* arranged(const Bfloat16*, const float* x, int64_t columns, float* scratch) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(Floats()));
  for (int64_t i = 0; i + 2 * n <= columns; i += 2 * n) {
    for (int64_t k = 0; k < n; ++k) {
      scratch[i + k] = x[i + 2 * k];
      scratch[i + n + k] = x[i + 2 * k + 1];
    }
  }
  return scratch;
}

HWY_INLINE float wide(const float* x) {
  return *x;
}
HWY_INLINE float wide(const Bfloat16* x) {
  return from_bfloat16(x->bits);
}
HWY_INLINE float wide(const hwy::float16_t* x) {
  uint16_t bits;
  std::memcpy(&bits, x, sizeof(bits));
  return from_float16(bits);
}

// One row times x, or two rows, so many numbers apart, which share what is read of x.
template <int rows, class Number>
HWY_INLINE void multiply_one_or_two(const Number* row, int64_t apart, int64_t columns, const float* x,
                                    const float* in_order, float* y, float* y_of_other) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(Floats()));
  Vector a = hn::Zero(Floats()), b = a, c = a, d = a, e = a, f = a, g = a, h = a, w = a, v = a;
  int64_t i = 0;
  for (; i + 4 * n <= columns; i += 4 * n) {
    const Vector p = loaded(in_order + i), q = loaded(in_order + i + n);
    const Vector s = loaded(in_order + i + 2 * n), t = loaded(in_order + i + 3 * n);
    load_two(row + i, w, v);
    a = hn::MulAdd(w, p, a);
    b = hn::MulAdd(v, q, b);
    load_two(row + i + 2 * n, w, v);
    c = hn::MulAdd(w, s, c);
    d = hn::MulAdd(v, t, d);
    if constexpr (rows == 2) {
      load_two(row + apart + i, w, v);
      e = hn::MulAdd(w, p, e);
      f = hn::MulAdd(v, q, f);
      load_two(row + apart + i + 2 * n, w, v);
      g = hn::MulAdd(w, s, g);
      h = hn::MulAdd(v, t, h);
    }
  }
  for (; i + 2 * n <= columns; i += 2 * n) {
    const Vector p = loaded(in_order + i), q = loaded(in_order + i + n);
    load_two(row + i, w, v);
    a = hn::MulAdd(w, p, a);
    b = hn::MulAdd(v, q, b);
    if constexpr (rows == 2) {
      load_two(row + apart + i, w, v);
      e = hn::MulAdd(w, p, e);
      f = hn::MulAdd(v, q, f);
    }
  }
  const auto with_rest = [&](const Number* numbers, Vector sums) HWY_ATTR {
    float sum = total(sums);
    for (int64_t k = i; k < columns; ++k) {
      sum += wide(numbers + k) * x[k];
    }
    return sum;
  };
  *y = with_rest(row, sum_of(a, b, c, d));
  if constexpr (rows == 2) {
    *y_of_other = with_rest(row + apart, sum_of(e, f, g, h));
  }
}

// The first half of the rows beside the second half: memory serves two streams from places far apart faster than one,
// and one faster than two from neighbouring rows.
template <class Number>
void multiply(const Number* data, int64_t columns, int64_t first, int64_t last, const float* x, float* scratch,
              float* y) {
  const float* in_order = arranged(data, x, columns, scratch);
  const int64_t half = (last - first) / 2;
  for (int64_t r = 0; r < half; ++r) {
    multiply_one_or_two<2>(data + (first + r) * columns, half * columns, columns, x, in_order, y + r, y + half + r);
  }
  if (first + 2 * half < last) {
    multiply_one_or_two<1>(data + (last - 1) * columns, 0, columns, x, in_order, y + 2 * half, y);
  }
}

void multiply_rows(const MatrixView& matrix, int64_t first, int64_t last, const float* x, float* scratch, float* y) {
  switch (matrix.type) {
    case Element::float32:
      return multiply(static_cast<const float*>(matrix.data), matrix.columns, first, last, x, scratch, y);
    case Element::bfloat16:
      return multiply(static_cast<const Bfloat16*>(matrix.data), matrix.columns, first, last, x, scratch, y);
    case Element::float16:
      return multiply(static_cast<const hwy::float16_t*>(matrix.data), matrix.columns, first, last, x, scratch, y);
  }
}

// Four rows at a time, from four places as far apart as can be.
void add_rows(const float* rows, int64_t columns, int64_t count, const float* weights, float* y) {
  const Floats floats;
  const int64_t n = static_cast<int64_t>(hn::Lanes(floats)), quarter = count / 4;
  std::fill(y, y + columns, 0.0f);
  const auto add = [&](auto how_many, int64_t r, int64_t apart) HWY_ATTR {
    const float *row = rows + r * columns, *weight = weights + r;
    int64_t i = 0;
    for (; i + n <= columns; i += n) {
      Vector sum = loaded(y + i);
      for (int64_t k = 0; k < how_many; ++k) {
        sum = hn::MulAdd(loaded(row + k * apart * columns + i), hn::Set(floats, weight[k * apart]), sum);
      }
      hn::StoreU(sum, floats, y + i);
    }
    for (; i < columns; ++i) {
      for (int64_t k = 0; k < how_many; ++k) {
        y[i] += row[k * apart * columns + i] * weight[k * apart];
      }
    }
  };
  for (int64_t r = 0; r < quarter; ++r) {
    add(std::integral_constant<int64_t, 4>(), r, quarter);
  }
  for (int64_t r = 4 * quarter; r < count; ++r) {
    add(std::integral_constant<int64_t, 1>(), r, 0);
  }
}

// each(at, how many, vector) for all of x; the last vector is filled up with `filler`.
template <class Each>
HWY_INLINE void for_vectors(const float* x, int64_t n, float filler, const Each& each) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    each(i, lanes, loaded(x + i));
  }
  if (i < n) {
    HWY_ALIGN float rest[hn::MaxLanes(Floats())];
    std::fill(rest, rest + lanes, filler);
    std::copy(x + i, x + n, rest);
    each(i, n - i, loaded(rest));
  }
}

HWY_INLINE void store(Vector v, float* to, int64_t count) {
  if (count == static_cast<int64_t>(hn::Lanes(Floats()))) {
    return hn::StoreU(v, Floats(), to);
  }
  HWY_ALIGN float all[hn::MaxLanes(Floats())];
  hn::StoreU(v, Floats(), all);
  std::copy(all, all + count, to);
}

float largest(const float* x, int64_t n) {
  const Floats floats;
  constexpr float least = -std::numeric_limits<float>::infinity();
  Vector most = hn::Set(floats, least), none = hn::Zero(floats);
  for_vectors(x, n, least, [&](int64_t, int64_t, Vector v) HWY_ATTR {
    most = hn::Max(most, v);
    none = hn::Or(none, hn::VecFromMask(floats, hn::IsNaN(v)));  // which of two Max keeps is the machine's choice
  });
  return hn::AllTrue(floats, hn::Eq(none, hn::Zero(floats))) ? hn::GetLane(hn::MaxOfLanes(floats, most))
                                                             : std::numeric_limits<float>::quiet_NaN();
}

// Sums of a few hundred in float32, these in float64.
template <class Each>
HWY_INLINE double summed(const float* x, int64_t n, float filler, const Each& each) {
  constexpr int64_t at_once = 512;
  double all = 0;
  for (int64_t begin = 0; begin < n; begin += at_once) {
    Vector sum = hn::Zero(Floats());
    for_vectors(x + begin, std::min(at_once, n - begin), filler,
                [&](int64_t at, int64_t count, Vector v) HWY_ATTR { sum = hn::Add(sum, each(begin + at, count, v)); });
    all += static_cast<double>(total(sum));
  }
  return all;
}

double exponentials(const float* x, int64_t n, float shift, float* y) {
  const Floats floats;
  return summed(x, n, -std::numeric_limits<float>::infinity(), [&](int64_t at, int64_t count, Vector v) HWY_ATTR {
    const Vector power = hn::Exp(floats, hn::Sub(v, hn::Set(floats, shift)));
    store(power, y + at, count);
    return power;
  });
}

double sum_of_exponentials(const float* x, int64_t n, float shift) {
  const Floats floats;
  return summed(x, n, -std::numeric_limits<float>::infinity(), [&](int64_t, int64_t, Vector v) HWY_ATTR {
    return hn::Exp(floats, hn::Sub(v, hn::Set(floats, shift)));
  });
}

// Highway's power is right up to 88; beyond, what is left of 1 / (1 + power) is less than 1e-38.
HWY_INLINE Vector sigmoid(Vector x) {
  const Floats floats;
  const Vector one = hn::Set(floats, 1.0f);
  return hn::Div(one, hn::Add(one, hn::Exp(floats, hn::Min(hn::Neg(x), hn::Set(floats, 88.0f)))));
}

void sigmoids(float* x, int64_t n) {
  for_vectors(x, n, 0, [&](int64_t at, int64_t count, Vector v) HWY_ATTR { store(sigmoid(v), x + at, count); });
}

void swish(float* x, int64_t n, float a, float b) {
  const Floats floats;
  for_vectors(x, n, 0, [&](int64_t at, int64_t count, Vector v) HWY_ATTR {
    const Vector factor = hn::MulAdd(hn::Set(floats, b), hn::Mul(v, v), hn::Set(floats, a));
    store(hn::Mul(v, sigmoid(hn::Mul(v, factor))), x + at, count);
  });
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
HWY_EXPORT(largest);
HWY_EXPORT(exponentials);
HWY_EXPORT(sum_of_exponentials);
HWY_EXPORT(sigmoids);
HWY_EXPORT(swish);
HWY_EXPORT(kernel_target);

void multiply_rows(const MatrixView& matrix, int64_t first, int64_t last, const float* x, float* scratch, float* y) {
  HWY_DYNAMIC_DISPATCH(multiply_rows)(matrix, first, last, x, scratch, y);
}

void add_rows(const float* rows, int64_t columns, int64_t count, const float* weights, float* y) {
  HWY_DYNAMIC_DISPATCH(add_rows)(rows, columns, count, weights, y);
}

float largest(const float* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(largest)(x, n);
}

double exponentials(const float* x, int64_t n, float shift, float* y) {
  return HWY_DYNAMIC_DISPATCH(exponentials)(x, n, shift, y);
}

double sum_of_exponentials(const float* x, int64_t n, float shift) {
  return HWY_DYNAMIC_DISPATCH(sum_of_exponentials)(x, n, shift);
}

void sigmoids(float* x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(sigmoids)(x, n);
}

void swish(float* x, int64_t n, float a, float b) {
  HWY_DYNAMIC_DISPATCH(swish)(x, n, a, b);
}

const char* kernel_target() {
  return HWY_DYNAMIC_DISPATCH(kernel_target)();
}

}  // namespace pare
#endif
