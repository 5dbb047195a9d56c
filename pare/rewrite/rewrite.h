#pragma once
// The product's one promise: what is written was read back, compared with its source and found to be the same function,
// before it had its name; or, where an approximate pass and an error were asked for, to be no further off than that,
// and its certificate says so. Whatever goes wrong, nothing appears at the output, and the source is never changed.
// What somebody asks to see on the way lies elsewhere, and claims nothing.

#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/checkpoint/model_folder.h"
#include "pare/rewrite/pipeline.h"
#include "pare/rewrite/plan.h"
#include "pare/verify/questions.h"
#include "pare/verify/verify.h"

namespace pare {

// Each is a flag of `pare rewrite`, and messages call it so: --max-error is max_error.
struct RewriteOptions {
  std::optional<std::vector<PassCall>> passes;  // in order; absent: auto, whatever saves
  WrittenForm form = WrittenForm::strict;
  std::optional<Dtype> dtype;  // absent: as the source is stored
  // Absent: what storing the source in that type costs decides. What is approximate needs one.
  std::optional<double> max_error;
  bool allow_growth = false;         // also where the result has more parameters
  bool follow_links = false;         // companions that are links out of the model's folder are copied too, and named
  bool force = false;                // another model at the output makes room; nothing else ever does
  bool verify = true;                // false: kept unseen, as the certificate then says
  std::optional<Question> question;  // what both models are asked; absent: so many random sequences
  int64_t random = VerifyOptions{}.sequences;
  int64_t budget = VerifyOptions{}.budget;
  uint64_t seed = 0;  // of random sequences and of the self test
  at::Device device = at::kCPU;
  uint64_t shard_bytes = 5'000'000'000;
  // A pass's id, or "all": the model is also written after each such pass, beside the output (dump_path) and
  // unverified.
  std::string dump_after;
  // Told when `auto` measured too large an error and tries again with less. May be empty.
  std::function<void(const Verification& measured)> on_retry;
};

// OUTPUT.after-N-PASS, where N counts passes from 1.
std::filesystem::path dump_path(const std::filesystem::path& output, size_t number, std::string_view pass);

struct Rewritten {
  Pipeline pipeline;                         // what each pass does, and what `auto` left out
  Plan plan;                                 // what was written, and what was left behind
  std::optional<Verification> verification;  // absent only where none was asked for
  nlohmann::ordered_json certificate;        // as it lies beside the weights
  std::vector<std::string> warnings;
  std::vector<std::filesystem::path> dumps;  // in the order of the passes
  Dtype dtype = Dtype::f32;                  // that most of it is stored in
  std::optional<double> allowed_error;  // of an approximate rewrite: the relative error that it was asked to keep to
  double writing_seconds = 0, verifying_seconds = 0;

  double predicted_error() const;  // before it was measured
};

// Refused, with every reason, where a pass does not apply or the result would be too large or too far off;
// VerificationFailed where it turned out so; InputError and IoError for files. An error brings along the warnings that
// came before it.
Rewritten rewrite(const ModelFolder& source, const std::filesystem::path& output, const RewriteOptions& options = {});

}  // namespace pare
