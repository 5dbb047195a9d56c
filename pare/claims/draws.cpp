#include "pare/claims/draws.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <cmath>

#include "pare/support/numbers.h"

namespace pare {

at::Generator generator_of(uint64_t seed) {
  return at::detail::createCPUGenerator(seed);
}

at::Tensor gaussian(at::IntArrayRef shape, double deviation, at::Generator& generator) {
  return at::randn(shape, generator, at::kDouble) * deviation;
}

int64_t rank_of(const at::Tensor& matrix, double threshold) {
  const at::Tensor values = at::linalg_svdvals(matrix);
  const double largest = values[0].item<double>();
  return largest > 0 ? (values > threshold * largest).sum().item<int64_t>() : 0;
}

double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found - expected).norm() / expected.norm()).item<double>();
}

at::Tensor layer_normed(const at::Tensor& rows, double epsilon) {
  const at::Tensor centred = rows - rows.mean(-1, true);
  return centred / (centred.square().mean(-1, true) + epsilon).sqrt();
}

RandomHeads random_heads(int64_t heads, int64_t d, int64_t k, at::Generator& generator) {
  const double deviation = 1 / std::sqrt(static_cast<double>(d));
  const at::Tensor query = gaussian({heads, d, k}, deviation, generator);
  const at::Tensor key = gaussian({heads, d, k}, deviation, generator);
  return {at::matmul(query, key.transpose(1, 2)), gaussian({heads, d, k}, deviation, generator),
          gaussian({heads, k, d}, deviation, generator), k};
}

at::Tensor attention_of(const RandomHeads& heads, const at::Tensor& x) {
  const at::Tensor scores = at::matmul(at::matmul(x, heads.scores), x.t()) / std::sqrt(static_cast<double>(heads.k));
  return at::softmax(scores, -1);
}

at::Tensor written_by_heads(const RandomHeads& heads, const at::Tensor& x) {
  const at::Tensor values = at::matmul(at::matmul(attention_of(heads, x), x), heads.value);
  return at::matmul(values, heads.output);
}

at::Tensor multi_head(const RandomHeads& heads, const at::Tensor& x) {
  return written_by_heads(heads, x).sum(0);
}

std::string shown(double number, const std::optional<int>& decimals) {
  if (std::isnan(number)) {
    return "";
  }
  if (number == std::round(number) && std::abs(number) < (decimals ? 1e4 : 1e6)) {
    return fmt::format("{:.0f}", number);
  }
  if (decimals && number == std::round(number) && std::abs(number) < 1e15) {  // beside numbers that are not: a count
    return with_commas(std::llround(number));
  }
  return decimals ? fmt::format("{:.{}f}", number, *decimals) : fmt::format("{:.3g}", number);
}

}  // namespace pare
