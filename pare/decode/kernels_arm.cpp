#include "pare/decode/kernels_arm.h"

#if defined(__aarch64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)

#include <arm_neon.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cmath>

#include "pare/decode/halves.h"

#define PARE_DIRECTLY __attribute__((target("arch=armv8.2-a+bf16+fp16fml")))

namespace pare {

namespace {

constexpr unsigned long has_fp16fml = 1ul << 23, has_bfloat16 = 1ul << 14;  // of AT_HWCAP and AT_HWCAP2

constexpr int64_t block = 16;  // columns that a turn of the loops takes

// Rows that are taken at once share what is read of x, and come from places as far apart as can be: memory serves
// several streams faster than one. So many that all sums stay in registers.
constexpr int64_t rows_bfloat16 = 3, rows_float16 = 2;

// x = a + b + c exactly, by 8 bits each: for every eight numbers eight of a, of b and of c.
void split_bfloat16(const float* x, int64_t columns, uint16_t* parts) {
  const uint32x4_t upper = vdupq_n_u32(0xffff0000u);
  const auto cut = [&](float32x4_t v) { return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), upper)); };
  const auto halves = [](float32x4_t v) { return vshrn_n_u32(vreinterpretq_u32_f32(v), 16); };
  for (int64_t i = 0; i + 4 <= columns; i += 4) {
    const float32x4_t v = vld1q_f32(x + i), a = cut(v), rest = vsubq_f32(v, a), b = cut(rest);
    uint16_t* to = parts + i / 8 * 24 + i % 8;
    vst1_u16(to, halves(a));
    vst1_u16(to + 8, halves(b));
    vst1_u16(to + 16, halves(vsubq_f32(rest, b)));
  }
}

template <int64_t rows>
PARE_DIRECTLY void multiply_bfloat16(const uint16_t* row, int64_t apart, int64_t columns, const float* x,
                                     const uint16_t* parts, float* y, int64_t y_apart) {
  const auto loaded = [](const uint16_t* from) PARE_DIRECTLY { return vreinterpretq_bf16_u16(vld1q_u16(from)); };
  float32x4_t sums[rows][6] = {};
  const int64_t whole = columns / block * block;
  for (int64_t i = 0; i < whole; i += block, parts += 3 * block) {
    const bfloat16x8_t a = loaded(parts), b = loaded(parts + 8), c = loaded(parts + 16);
    const bfloat16x8_t d = loaded(parts + 24), e = loaded(parts + 32), f = loaded(parts + 40);
#pragma GCC unroll 4
    for (int64_t k = 0; k < rows; ++k) {
      const bfloat16x8_t v = loaded(row + k * apart + i), w = loaded(row + k * apart + i + 8);
      sums[k][0] = vbfdotq_f32(sums[k][0], v, a);
      sums[k][1] = vbfdotq_f32(sums[k][1], v, b);
      sums[k][2] = vbfdotq_f32(sums[k][2], v, c);
      sums[k][3] = vbfdotq_f32(sums[k][3], w, d);
      sums[k][4] = vbfdotq_f32(sums[k][4], w, e);
      sums[k][5] = vbfdotq_f32(sums[k][5], w, f);
    }
  }
#pragma GCC unroll 4  // or they would lie in memory
  for (int64_t k = 0; k < rows; ++k) {
    const float32x4_t* s = sums[k];
    float sum = vaddvq_f32(vaddq_f32(vaddq_f32(s[0], s[3]), vaddq_f32(vaddq_f32(s[1], s[4]), vaddq_f32(s[2], s[5]))));
    for (int64_t i = whole; i < columns; ++i) {
      sum += from_bfloat16(row[k * apart + i]) * x[i];
    }
    y[k * y_apart] = sum;
  }
}

// x = (a + b / 2048) / scale up to half a unit in the last place of float32, by 11 bits each; the largest of x becomes
// nearly the largest number of float16, and what is 2^29 times smaller loses digits.
float split_float16(const float* x, int64_t columns, uint16_t* parts) {
  float most = 0;
  for (int64_t i = 0; i < columns; ++i) {
    most = std::max(most, std::abs(x[i]));
  }
  const float scale = std::ldexp(1.0f, std::min(120, 14 - (most > 0 ? std::ilogb(most) : 0)));
  for (int64_t i = 0; i + 4 <= columns; i += 4) {
    const float32x4_t v = vmulq_n_f32(vld1q_f32(x + i), scale);
    const float16x4_t a = vcvt_f16_f32(v);
    const float16x4_t b = vcvt_f16_f32(vmulq_n_f32(vsubq_f32(v, vcvt_f32_f16(a)), 2048));
    uint16_t* to = parts + i / 8 * 16 + i % 8;
    vst1_u16(to, vreinterpret_u16_f16(a));
    vst1_u16(to + 8, vreinterpret_u16_f16(b));
  }
  return scale;
}

template <int64_t rows>
PARE_DIRECTLY void multiply_float16(const uint16_t* row, int64_t apart, int64_t columns, const float* x, float scale,
                                    const uint16_t* parts, float* y, int64_t y_apart) {
  const auto loaded = [](const uint16_t* from) PARE_DIRECTLY { return vreinterpretq_f16_u16(vld1q_u16(from)); };
  float32x4_t sums[rows][8] = {};
  const int64_t whole = columns / block * block;
  for (int64_t i = 0; i < whole; i += block, parts += 2 * block) {
    const float16x8_t a = loaded(parts), b = loaded(parts + 8), c = loaded(parts + 16), d = loaded(parts + 24);
#pragma GCC unroll 4
    for (int64_t k = 0; k < rows; ++k) {
      const float16x8_t v = loaded(row + k * apart + i), w = loaded(row + k * apart + i + 8);
      sums[k][0] = vfmlalq_low_f16(sums[k][0], v, a);
      sums[k][1] = vfmlalq_high_f16(sums[k][1], v, a);
      sums[k][2] = vfmlalq_low_f16(sums[k][2], v, b);
      sums[k][3] = vfmlalq_high_f16(sums[k][3], v, b);
      sums[k][4] = vfmlalq_low_f16(sums[k][4], w, c);
      sums[k][5] = vfmlalq_high_f16(sums[k][5], w, c);
      sums[k][6] = vfmlalq_low_f16(sums[k][6], w, d);
      sums[k][7] = vfmlalq_high_f16(sums[k][7], w, d);
    }
  }
#pragma GCC unroll 4  // or they would lie in memory
  for (int64_t k = 0; k < rows; ++k) {
    const float32x4_t* s = sums[k];
    const float large = vaddvq_f32(vaddq_f32(vaddq_f32(s[0], s[1]), vaddq_f32(s[4], s[5])));
    const float small = vaddvq_f32(vaddq_f32(vaddq_f32(s[2], s[3]), vaddq_f32(s[6], s[7])));
    float sum = (large + small / 2048) / scale;
    for (int64_t i = whole; i < columns; ++i) {
      sum += from_float16(row[k * apart + i]) * x[i];
    }
    y[k * y_apart] = sum;
  }
}

}  // namespace

bool multiplies_directly(const MatrixView& matrix) {
  static const bool fp16fml = (getauxval(AT_HWCAP) & has_fp16fml) != 0;
  static const bool bfloat16 = (getauxval(AT_HWCAP2) & has_bfloat16) != 0;
  if (matrix.type == Element::bfloat16) {
    // The three parts of x are half as large again as x. In between x itself stays in the nearest cache beside the
    // rows, and they do not; beyond, neither does. By columns, measured on a Neoverse-V1: 62 against 61 GB/s at 2,048,
    // 49 against 59 at 3,072, 51 against 57 at 4,096, 54 against 45 at 14,336.
    constexpr int64_t parts_stay = 2048, x_stays = 4096;
    return bfloat16 && (matrix.columns <= parts_stay || matrix.columns > x_stays);
  }
  return fp16fml && matrix.type == Element::float16;
}

void multiply_directly(const MatrixView& matrix, int64_t first, int64_t last, const float* x, float* scratch,
                       float* y) {
  const uint16_t* data = static_cast<const uint16_t*>(matrix.data) + first * matrix.columns;
  const int64_t columns = matrix.columns, count = last - first;
  uint16_t* parts = reinterpret_cast<uint16_t*>(scratch);
  const bool bfloat16 = matrix.type == Element::bfloat16;
  const int64_t whole = columns / block * block;
  const float scale = bfloat16 ? (split_bfloat16(x, whole, parts), 1.0f) : split_float16(x, whole, parts);
  const int64_t at_once = bfloat16 ? rows_bfloat16 : rows_float16, apart = count / at_once;
  for (int64_t r = 0; r < apart; ++r) {
    const uint16_t* row = data + r * columns;
    bfloat16 ? multiply_bfloat16<rows_bfloat16>(row, apart * columns, columns, x, parts, y + r, apart)
             : multiply_float16<rows_float16>(row, apart * columns, columns, x, scale, parts, y + r, apart);
  }
  for (int64_t r = apart * at_once; r < count; ++r) {
    const uint16_t* row = data + r * columns;
    bfloat16 ? multiply_bfloat16<1>(row, 0, columns, x, parts, y + r, 0)
             : multiply_float16<1>(row, 0, columns, x, scale, parts, y + r, 0);
  }
}

}  // namespace pare

#else

namespace pare {

bool multiplies_directly(const MatrixView&) {
  return false;
}

void multiply_directly(const MatrixView&, int64_t, int64_t, const float*, float*, float*) {}

}  // namespace pare

#endif
