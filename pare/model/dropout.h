#pragma once
// Numbers that are left out at random while training. What stays grows by 1 / (1 - rate), so that the expectation of
// each number is the number. Never part of an executor: only who trains has one, for one batch.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "pare/model/dropout_rates.h"

namespace pare {

class Dropout {
 public:
  // The same seed leaves out the same numbers, on the same kind of device.
  Dropout(const DropoutRates& rates, uint64_t seed, at::Device device);
  // A copy leaves out what this one would from now on, and neither changes what the other does.
  Dropout(const Dropout& other) : rates_(other.rates_), generator_(other.generator_.clone()) {}
  Dropout& operator=(const Dropout&) = delete;

  const DropoutRates& rates() const { return rates_; }
  at::Tensor operator()(const at::Tensor& x, double rate);

 private:
  DropoutRates rates_;
  at::Generator generator_;
};

// One number for a batch of a run, so that a run that is continued leaves out what it would have left out.
uint64_t dropout_seed(uint64_t seed, uint64_t step, uint64_t batch);

}  // namespace pare
