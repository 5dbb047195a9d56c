#include <cstring>

#include "pare/decode/halves.h"
#include "pare/decode/kernels.h"

namespace pare {

namespace {

float wide(float x) {
  return x;
}

struct Bfloat16 {
  uint16_t bits;
};
float wide(Bfloat16 x) {
  return from_bfloat16(x.bits);
}

struct Float16 {
  uint16_t bits;
};
float wide(Float16 x) {
  return from_float16(x.bits);
}

template <class Number>
void multiply(const MatrixView& matrix, int64_t first, int64_t last, const float* x, float* y) {
  constexpr int64_t lanes = 16;  // independent sums, so that a compiler may use vectors
  for (int64_t r = first; r < last; ++r) {
    const Number* row = static_cast<const Number*>(matrix.data) + r * matrix.columns;
    float sums[lanes] = {};
    int64_t i = 0;
    for (; i + lanes <= matrix.columns; i += lanes) {
      for (int64_t lane = 0; lane < lanes; ++lane) {
        sums[lane] += wide(row[i + lane]) * x[i + lane];
      }
    }
    float sum = 0;
    for (; i < matrix.columns; ++i) {
      sum += wide(row[i]) * x[i];
    }
    for (const float part : sums) {
      sum += part;
    }
    y[r - first] = sum;
  }
}

}  // namespace

void multiply_rows(const MatrixView& matrix, int64_t first, int64_t last, const float* x, float*, float* y) {
  switch (matrix.type) {
    case Element::float32:
      return multiply<float>(matrix, first, last, x, y);
    case Element::bfloat16:
      return multiply<Bfloat16>(matrix, first, last, x, y);
    case Element::float16:
      return multiply<Float16>(matrix, first, last, x, y);
  }
}

void add_rows(const float* rows, int64_t columns, int64_t count, const float* weights, float* y) {
  std::memset(y, 0, static_cast<size_t>(columns) * sizeof(float));
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t i = 0; i < columns; ++i) {
      y[i] += weights[r] * rows[r * columns + i];
    }
  }
}

const char* kernel_target() {
  return "plain";
}

}  // namespace pare
