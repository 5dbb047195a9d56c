#pragma once
// What happens to the vectors of one token besides products with matrices, in float32: norms, activations, angles,
// softmax; and the layers' tensors as such loops read them.

#include <optional>
#include <span>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/decode/kernels.h"
#include "pare/model/loader.h"
#include "pare/model/norm.h"

namespace pare {

// y = W x + b. Without a matrix: the identity.
class Product {
 public:
  Product() = default;
  explicit Product(const Linear& linear);
  bool has_matrix() const { return weight_.defined(); }
  // y[r - first] for first <= r < last. `scratch` holds twice as many numbers as the matrix has columns.
  void rows(int64_t first, int64_t last, std::span<const float> x, std::span<float> scratch, float* y) const;

 private:
  at::Tensor weight_, bias_;  // hold what the views see
  MatrixView view_;
};

struct VectorNorm {
  NormKind kind = NormKind::rms;
  NormPlace place = NormPlace::pre;
  double epsilon = 0;
  float alpha = 1;
  std::vector<float> gain, bias;  // empty: none
};
std::optional<VectorNorm> vector_norm(const std::optional<NormLayer>& layer);
// y may be x. A copy where there is no norm.
void apply(const std::optional<VectorNorm>& norm, std::span<const float> x, std::span<float> y);

// The angles of one place.
class Angles {
 public:
  explicit Angles(const Rope& rope);
  void stand_at(int64_t position);
  void turn(std::span<float> head) const;

 private:
  Rope rope_;
  std::vector<double> frequencies_;
  std::vector<float> cosine_, sine_;
};

void activate(Activation activation, std::span<float> x);
void softmax(std::span<float> scores);
// y += factor times numbers of one row of a table of any type, from the one at `begin` on.
void add_row(const at::Tensor& table, int64_t row, int64_t begin, float factor, std::span<float> y);

}  // namespace pare
