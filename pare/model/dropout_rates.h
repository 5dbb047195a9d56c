#pragma once

namespace pare {

// How likely a number is left out while training.
struct DropoutRates {
  double embedding = 0;  // of what the first layer gets
  double attention = 0;  // of the probabilities, by which a token sees another
  double residual = 0;   // of what a sublayer writes
  bool operator==(const DropoutRates&) const = default;
};

}  // namespace pare
