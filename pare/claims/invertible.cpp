// Paper 1, Section 1: square matrices are hardly ever singular. Those that can be had here: of random models and of
// trained ones. Section 5 says it of Mistral-7B, whose weights are not among them (stated.cpp).

#include "pare/claims/claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/algebra/basis.h"
#include "pare/algebra/operations.h"
#include "pare/arch/tensors.h"
#include "pare/claims/draws.h"
#include "pare/claims/probed_models.h"
#include "pare/support/mapped.h"

namespace pare {

static Outcome invertible_matrices(const Trial& trial) {
  Outcome found;
  ClaimTable table{"Square matrices of each model, and their condition numbers",
                   {"matrices", "invertible", "median", "largest"},
                   {},
                   "condition number",
                   {"matrices", "invertible"},
                   "model"};
  const double bfloat16 = 1 / unit_roundoff(Dtype::bf16);
  double largest = 0;
  int64_t matrices = 0, singular = 0, beyond = 0;
  measure_each(probed_models(trial, 8, 1), found, [&](const ProbedModel& model) {
    std::vector<double> conditions;
    int64_t invertible = 0;
    for (const TensorSpec& spec : tensor_table(model.model.architecture)) {
      const Weight& weight = model.model.weights.at(spec.name);
      if (spec.shape.size() != 2 || spec.shape[0] != spec.shape[1]) {
        continue;
      }
      // To the precision that it is stored in: a change as large as one rounding could have made it of a singular one.
      conditions.push_back(condition_number(load_double(weight)));
      invertible += conditions.back() * unit_roundoff(weight.dtype()) < 1;
    }
    std::ranges::sort(conditions);
    const int64_t count = std::ssize(conditions);
    table.names.push_back(model.name);
    table.rows.push_back(
        {static_cast<double>(count), static_cast<double>(invertible), conditions[count / 2], conditions.back()});
    matrices += count;
    singular += count - invertible;
    beyond += std::ranges::count_if(conditions, [&](double c) { return c >= bfloat16; });
    largest = std::max(largest, conditions.back());
  });
  found.compared = {
      {"square matrices that are singular", "extremely rare", fmt::format("{} of {}", singular, matrices)},
      {"largest condition number", "not said", shown(largest)},
      {fmt::format("condition numbers of {:.0f} and more", bfloat16), "not said",
       fmt::format("{} of {}", beyond, matrices)}};
  found.tables = {table};
  found.verdict = singular == 0 ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format(
      "{} of {} square matrices are singular, to the precision that they are stored in; the largest condition number "
      "is "
      "{}, and {} have one of {:.0f} or more, where a change as large as a rounding of bfloat16 can make a matrix "
      "singular",
      singular, matrices, shown(largest), beyond, bfloat16);
  return found;
}

std::vector<PaperClaim> claims_of_invertible() {
  PaperClaim claim{"invertible-matrices", Paper::skipless,
                   "Section 1",           "It is extremely rare that a square matrix is not invertible.",
                   ClaimVerdict::holds,   "0 of 88; condition numbers up to 8.18e+04",
                   invertible_matrices};
  claim.of_activations = true;
  return {claim};
}

}  // namespace pare
