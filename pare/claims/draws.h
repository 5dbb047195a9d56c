#pragma once
// What experiments on random matrices have in common: draws in float64, ranks, one layer of attention.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace pare {

at::Generator generator_of(uint64_t seed);
at::Tensor gaussian(at::IntArrayRef shape, double deviation, at::Generator& generator);

// Singular values above a fraction of the largest; paper 4 takes 1e-3.
constexpr double usual_threshold = 1e-3, exact_threshold = 1e-10;
int64_t rank_of(const at::Tensor& matrix, double threshold);
double relative_error(const at::Tensor& found, const at::Tensor& expected);  // in the Frobenius norm

// Layer norm of rows, without gain and bias.
at::Tensor layer_normed(const at::Tensor& rows, double epsilon);

// Attention of every token to all, with scores x M_h yᵀ / sqrt(k) and what head h writes: x W_V W_O [heads, n, d].
struct RandomHeads {
  at::Tensor scores;         // M = W_Q W_Kᵀ, [heads, d, d]
  at::Tensor value, output;  // [heads, d, k], [heads, k, d]
  int64_t k = 0;
};
RandomHeads random_heads(int64_t heads, int64_t d, int64_t k, at::Generator& generator);
at::Tensor attention_of(const RandomHeads& heads, const at::Tensor& x);  // probabilities [heads, n, n]
at::Tensor written_by_heads(const RandomHeads& heads, const at::Tensor& x);
at::Tensor multi_head(const RandomHeads& heads, const at::Tensor& x);  // their sum

// Numbers for tables of claims: few digits, and none that mean nothing; nothing for what is no number.
std::string shown(double number, const std::optional<int>& decimals = {});

}  // namespace pare
