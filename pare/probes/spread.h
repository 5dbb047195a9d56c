#pragma once
// One number of many sequences, as mean and spread, kept while they pass: memory does not grow with the corpus.

#include <cstdint>
#include <limits>
#include <string>

#include "pare/support/statistics.h"

namespace pare {

struct Spread : Moments {  // of the sequences that have this number
  int64_t undefined = 0;   // sequences that do not
  std::string reason;      // why not, of the first
  double least = std::numeric_limits<double>::infinity(), most = -std::numeric_limits<double>::infinity();

  // A number that is not finite counts as undefined.
  void add(double value, const char* reason_if_not_finite = "the activations are not finite");
  void add_undefined(const std::string& why);
};

}  // namespace pare
