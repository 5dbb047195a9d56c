#pragma once
// What a rewrite costs in floating point, said before it is tried.
//
// A tensor that is computed and rounded anew moves the answer by about one unit roundoff of its stored type, times the
// condition number of what it was solved with. Different tensors are rounded independently, so their errors add like
// the steps of a random walk: squares add up. A block that runs several times makes the same error each time: those
// add up as they are.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/dtype.h"

namespace pare {

class RoundingWalk {
 public:
  // A place that is rounded anew, in a block that runs so many times.
  void step(double condition, int64_t runs = 1);
  double roundings() const;  // its length

 private:
  double squares_ = 0;
};

// The relative error of the answer when what was computed is stored as `dtype`.
double predicted_error(double roundings, Dtype dtype);

// What storing a model costs that was stored in more digits: all of it is rounded anew, each sublayer one place.
double narrowing_roundings(const Architecture& architecture, Dtype stored, Dtype narrower);

// How much may be predicted: `auto` leaves out what would exceed it.
struct Budget {
  double error = std::numeric_limits<double>::infinity();
  Dtype dtype = Dtype::f64;
  std::string_view source = "";  // who set the limit, for messages

  bool allows(double roundings) const { return predicted_error(roundings, dtype) <= error; }
  Budget after(double roundings) const;        // what is left when so much is spent
  std::string excess(double roundings) const;  // "predicted error 0.2 in bfloat16, allowed 0.1 (--max-error)"
};

}  // namespace pare
