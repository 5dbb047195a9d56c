// Paper 3's claims that need no training.

#include "pare/claims/claim.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "pare/claims/draws.h"

namespace pare {

// ---- The order of the polynomial that S layers of cubic attention are: 3 S or 3^S?

static Outcome nonlinearity_order(const Trial& trial) {
  const int64_t n = 4, d = 4;
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor x = gaussian({n, d}, 1, generator);
  std::vector<at::Tensor> similarities;
  for (int layer = 0; layer < 3; ++layer) {
    similarities.push_back(gaussian({d, d}, 1, generator));
  }
  // Quadratic similarities times the input, without the softmax: a polynomial, whose degree its growth tells.
  const auto grown = [&](int layers, double scale) {
    at::Tensor state = scale * x;
    for (int layer = 0; layer < layers; ++layer) {
      state = at::matmul(at::matmul(at::matmul(state, similarities[layer]), state.t()), state);
    }
    return state.norm().item<double>();
  };
  ClaimTable table{
      "Degree in the input, by layers", {"layers S", "3 S", "3^S", "measured"}, {}, "degree of the polynomial"};
  bool powers = true;
  for (int layers = 1; layers <= 3; ++layers) {
    const double degree = std::log2(grown(layers, 2) / grown(layers, 1));
    table.rows.push_back({static_cast<double>(layers), 3.0 * layers, std::pow(3.0, layers), degree});
    powers = powers && std::abs(degree - std::pow(3.0, layers)) < 1e-6;
  }
  Outcome found;
  for (const std::vector<double>& row : table.rows) {
    found.compared.push_back({fmt::format("degree after {:.0f} layers", row[0]), shown(row[1]), shown(row[3])});
  }
  found.tables = {table};
  found.verdict = powers ? ClaimVerdict::holds_corrected : ClaimVerdict::does_not_hold;
  found.because = "degrees multiply when layers are composed: 3^S, which makes the paper's point stronger";
  return found;
}

std::vector<PaperClaim> claims_of_minimum_transformer() {
  return {{"nonlinearity-order", Paper::minimum_transformer, "Section 2",
           "S layers of attention are of polynomial order 3S.", ClaimVerdict::holds_corrected,
           "3, 9, 27 for 1, 2, 3 layers", nonlinearity_order}};
}

}  // namespace pare
