#pragma once
// Products of one vector with the rows of a matrix, at the speed at which the matrix can be read: what decoding on a
// CPU consists of; and the loops over vectors in between. Highway chooses the instructions when the program runs (AVX2,
// AVX-512, NEON, SVE); without Highway the same loops in plain C++.

#include <cstdint>

namespace pare {

enum class Element { float32, bfloat16, float16 };

// Row-major, rows one after another.
struct MatrixView {
  const void* data = nullptr;
  Element type = Element::float32;
  int64_t columns = 0;
};

// y[r - first] = row r times x, summed in float32, for first <= r < last. `scratch` holds
// twice as many numbers as x.
void multiply_rows(const MatrixView& matrix, int64_t first, int64_t last, const float* x, float* scratch, float* y);

// y = the sum of weights[r] times row r, over count rows of float32.
void add_rows(const float* rows, int64_t columns, int64_t count, const float* weights, float* y);

// The largest of at least one number; no number, if one of them is none.
float largest(const float* x, int64_t n);

// y = exp(x - shift), and their sum; y may be x. No x is larger than the shift; minus infinity gives 0.
double exponentials(const float* x, int64_t n, float shift, float* y);
double sum_of_exponentials(const float* x, int64_t n, float shift);

// x = 1 / (1 + exp(-x)), and x = x / (1 + exp(-x (a + b x^2))): SiLU, and GELU by its two approximations.
void sigmoids(float* x, int64_t n);
void swish(float* x, int64_t n, float a, float b);

// What the loops were compiled for: "NEON", "AVX3", "plain".
const char* kernel_target();

}  // namespace pare
