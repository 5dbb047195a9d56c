#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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

float largest(const float* x, int64_t n) {
  const bool numbers = std::none_of(x, x + n, [](float one) { return std::isnan(one); });
  return numbers ? *std::max_element(x, x + n) : std::numeric_limits<float>::quiet_NaN();
}

double exponentials(const float* x, int64_t n, float shift, float* y) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    y[i] = std::exp(x[i] - shift);
    sum += static_cast<double>(y[i]);
  }
  return sum;
}

double sum_of_exponentials(const float* x, int64_t n, float shift) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(std::exp(x[i] - shift));
  }
  return sum;
}

void sigmoids(float* x, int64_t n) {
  std::transform(x, x + n, x, [](float one) { return 1 / (1 + std::exp(-one)); });
}

void swish(float* x, int64_t n, float a, float b) {
  std::transform(x, x + n, x, [a, b](float one) { return one / (1 + std::exp(-one * (a + b * one * one))); });
}

const char* kernel_target() {
  return "plain";
}

}  // namespace pare
