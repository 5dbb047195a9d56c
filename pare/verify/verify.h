#pragma once
// Whether two models are the same function: proved where every tensor is explained, measured row by row, set against
// the noise of storage, with the check itself checked. docs/certificates/README.md says what each verdict excludes.

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pare/checkpoint/model_folder.h"
#include "pare/model/executor.h"
#include "pare/proof/proof.h"
#include "pare/verify/answers.h"
#include "pare/verify/coverage.h"
#include "pare/verify/metrics.h"
#include "pare/verify/quantised.h"
#include "pare/verify/self_test.h"
#include "pare/verify/settings.h"
#include "pare/verify/side_by_side.h"
#include "pare/verify/tensor_costs.h"
#include "pare/verify/text_statistics.h"

namespace pare {

enum class Verdict {
  identical,     // the same numbers in the same architecture
  proved,        // every tensor explained by a symmetry that was found and checked: for all inputs
  equivalent,    // to the last digits of float64, on what was exercised
  within_noise,  // no further off than twice what storing in the candidate's types costs, on what was exercised
  quantised,     // every tensor can be the reference's in blocks, rounded, or as it is; settings are the same
  different,
};
const char* word(Verdict verdict);

struct VerifyOptions {
  Dtype dtype = Dtype::f64;  // the candidate's arithmetic; the reference is always run in float64
  uint64_t seed = 0;         // mixed with the hashes of both models, so that nobody can prepare for what it draws
  int64_t sequences = 8;     // random ones, where no inputs are given
  int64_t budget = 16384;    // tokens that may be asked besides, for what no proof covers
  int64_t layers_of = 0;     // sequences, to be compared layer by layer too, for who wants to look at it
  double predicted = 0;      // the error in float64, from who made the candidate in this process; never from a file
  bool may_quantise = true;  // else only what is the same function up to rounding is the same
  bool by_tensor = false;    // what each tensor of a quantised candidate costs alone, on the first of the given tokens
  at::Device device = at::kCPU;
  Communicator ranks = {};  // that share out what is asked; all else, such as the proof, each of them does
};

struct Verification {
  Dtype compute_dtype = Dtype::f64, floor_dtype = Dtype::f64;
  uint64_t seed = 0, drawn_seed = 0;           // as asked for, and mixed with the hashes
  std::vector<SettingDifference> differences;  // where there are any, nothing else was looked at
  std::optional<Quantisation> quantisation;  // where one model is stored in blocks: then nothing is proved or exercised
  // Where neither is: tensors that do not hold the reference's numbers, furthest first, of a candidate that is
  // different or not explained. A change of basis shows here too.
  std::vector<ComparedTensor> apart;
  std::vector<std::string> near_misses;  // of those, what neither a basis nor a rounding explains
  Proof proof;
  Coverage coverage;
  int64_t sequences = 0, tokens = 0;
  int64_t given = 0;  // sequences that the caller gave; they come first, and means are over them where there are any
  Metrics metrics;
  Metrics noise_floor;  // the reference with every weight moved by one rounding of the candidate's type
  // Of the row that comes closest to what it may differ by, or is furthest beyond: its difference over what is allowed
  // there (above 1 is too much), and that allowed relative error.
  double excess = 0, allowed = 0;
  bool by_error = true;              // else by its KL or first choice, which that relative error limits too
  std::string allowed_for;           // why so much: "twice the noise of float32"
  Rows rows, noise_rows;             // what these numbers are of, row by row
  LayerGaps layers, noise_by_layer;  // of the worst sequence and others, where it was asked for
  Verdict verdict = Verdict::different;
  std::vector<SelfTest> self_tests;            // none when identical or different
  std::optional<Divergence> first_divergence;  // only when different, and something was asked
  std::optional<TextStatistics> statistics;    // of what was given, where it has next tokens
  std::vector<TensorCost> costs;               // where they were asked for
  std::vector<std::string> warnings;           // that decide nothing
};

// InputError when there is no common question: other tasks, classes, images, widths of hidden states.
void check_comparable(const ModelFolder& reference, const ModelFolder& candidate);

// Without `given` inputs, random ones: a few. Where the proof does not cover everything, also as many as exercise all
// that it leaves open and the budget allows, whatever was given. VerificationFailed when the self test catches nothing:
// such a check proves nothing. Both models are run block by block; neither is ever held whole.
Verification verify(const ModelFolder& reference, const ModelFolder& candidate, std::span<const Inputs> given,
                    const VerifyOptions& options);

// The reference against what another program says to the same sequences, one row for each of their tokens, or for each
// sequence where that is what is answered. `dtype` is what that program computes in. At best `equivalent`, and only on
// these rows.
Verification verify_answers(const ModelFolder& reference, std::span<const Inputs> given, const GivenAnswers& answers,
                            const VerifyOptions& options);

}  // namespace pare
