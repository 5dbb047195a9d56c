#pragma once
// How large what a norm is given can get, for every input there is: bounds from the weights alone. A norm whose epsilon
// dwarfs that is a constant times its input.
//
// Lengths go through the model: a row of a table is no longer than the longest, a matrix stretches by its largest
// singular value at most, attention gives a mean of values, and no activation but relu² makes a number larger. What no
// such rule covers has no bound: images, shaped attention, values that are not a stored matrix.

#include <map>

#include "pare/arch/tensor_id.h"
#include "pare/checkpoint/model.h"

namespace pare {

// The most that the mean of squares of each norm's input can be, and so its variance; infinite where nothing bounds it.
// Norms of queries and keys are among them. What gets longer than `hopeless` is taken to have no bound, so that
// matrices behind it need not be read.
std::map<ModuleId, double> largest_mean_squares(const Model& model, double hopeless);

// How far x (v + ε)^-1/2 is from x ε^-1/2 at most, of itself: v / 2ε.
double share_of_epsilon(double mean_square, double epsilon);

// The unit roundoff of the finest type that anything of the model is stored in.
double finest_roundoff(const Weights& weights);

// Each norm with an epsilon above 1; a DyT and a scale have none. A smaller one is there against a division by zero.
std::map<ModuleId, double> large_epsilons(const Architecture& architecture);
// v / 2ε of these, at most, for all inputs.
std::map<ModuleId, double> dominated_shares(const Model& model);
// What of that nobody sees: no more than a quarter of a rounding of each number.
constexpr double unseen_share(double roundoff) {
  return roundoff / 4;
}

}  // namespace pare
