#pragma once
// Whether two models are the same function: measured, set against the noise of their storage, and the check checked.

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>

#include "pare/checkpoint/model_folder.h"
#include "pare/model/executor.h"
#include "pare/verify/metrics.h"

namespace pare {

enum class Verdict {
  equivalent,    // to the last digits of float64
  within_noise,  // nearer than twice what storing and computing in the candidate's type costs
  different,
};
const char* word(Verdict verdict);

// The largest relative error in float64 that still counts as equivalent.
double equivalence_limit(double predicted_error);
// `float64`: whether the candidate was computed in it, without which nothing is `equivalent`.
Verdict judge(const Metrics& metrics, const Metrics& noise_floor, double limit, bool float64);

// The check, checked: every element of one matrix moved by this fraction of itself, up or down at random.
struct SelfTest {
  std::string tensor;
  double smallest_caught = 0, largest_missed = 0;
};

// The first place where models differ by more than is allowed, among those that a change of basis leaves alone.
struct Divergence {
  std::string tap;
  double difference = 0, allowed = 0;
  int64_t sequence = 0;  // the worst one
  std::string note;      // what could not be compared; empty: everything could
};

struct VerifyOptions {
  Dtype dtype = Dtype::f64;    // the candidate's arithmetic; the reference is always run in float64
  double predicted_error = 0;  // of the passes that made the candidate, 0 when unknown
  uint64_t seed = 0;           // of the self test
  at::Device device = at::kCPU;
};

struct Verification {
  Dtype compute_dtype = Dtype::f64, floor_dtype = Dtype::f64;
  int64_t sequences = 0, tokens = 0;
  Metrics metrics;
  Metrics noise_floor;  // the reference with weights and arithmetic in floor_dtype, against itself in float64
  double predicted_error = 0, limit = 0;
  Verdict verdict = Verdict::different;
  std::optional<SelfTest> self_test;           // absent when different: then the check has caught something already
  std::optional<Divergence> first_divergence;  // only when different
};

// InputError when the two cannot be compared: other tasks, vocabularies, classes, images.
void check_comparable(const ModelFolder& reference, const ModelFolder& candidate);

// VerificationFailed when the self test misses a disturbance of 100 %: such a check proves nothing.
// Both models are run block by block; neither is ever held whole.
Verification verify(const ModelFolder& reference, const ModelFolder& candidate, std::span<const Inputs> inputs,
                    const VerifyOptions& options);

}  // namespace pare
