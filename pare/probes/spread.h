#pragma once
// One number of many sequences, as mean and spread, kept while they pass: memory does not grow with the corpus.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace pare {

struct Spread {
  int64_t count = 0;      // sequences that have this number
  int64_t undefined = 0;  // sequences that do not
  std::string reason;     // why not, of the first
  double mean = 0;
  double squares = 0;  // sum of squared distances from the mean (Welford 1962)
  double least = std::numeric_limits<double>::infinity(), most = -std::numeric_limits<double>::infinity();

  // A number that is not finite counts as undefined.
  void add(double value, const char* reason_if_not_finite = "the activations are not finite");
  void add_undefined(const std::string& why);

  std::optional<double> average() const { return count > 0 ? std::optional(mean) : std::nullopt; }
  std::optional<double> deviation() const;  // the sample's, with n - 1; nothing for fewer than two
};

}  // namespace pare
