#pragma once
// A model as other programs read it. What is written is read back from its files and compared with its source before it
// has a name, as rewrite() does it; a certificate lies beside it.

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/checkpoint/companions.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/verify/questions.h"
#include "pare/verify/verify.h"

namespace pare {

enum class ExportFormat {
  hf,    // transformers: a stock family where one can say the model, else pare's own Python beside the weights
  gguf,  // llama.cpp
  onnx,  // onnxruntime
};

// Each is a flag of `pare export`, and messages call it so.
struct ExportOptions {
  ExportFormat format = ExportFormat::hf;
  std::optional<Dtype> dtype;       // absent: as the source is stored, or the nearest that the format has
  bool q8_0 = false;                // gguf: matrices in blocks of 8 bits
  std::string family;               // hf: this one; "pare": not a stock one; empty: the first that can say the model
  std::filesystem::path tokenizer;  // gguf: of this folder; empty: the model's own
  bool follow_links = false, force = false;  // as in RewriteOptions
  std::optional<Question> question;          // what both are asked; absent: so many random sequences
  int64_t random = VerifyOptions{}.sequences;
  int64_t budget = VerifyOptions{}.budget;
  uint64_t seed = 0;
  at::Device device = at::kCPU;
  uint64_t shard_bytes = 5'000'000'000;
};

struct Exported {
  std::string reader;              // what reads it: "transformers, as a model of its family llama"
  std::vector<std::string> notes;  // what is stored or computed there that pare does without
  Companions companions;           // what went along, and what stayed behind
  Verification verification;
  nlohmann::ordered_json certificate;  // as it lies beside the weights
  std::vector<std::string> warnings;
  uint64_t source_bytes = 0, bytes = 0;  // of the weights
  double writing_seconds = 0, verifying_seconds = 0;
};

// Refused, with every reason, where the format cannot say the model; VerificationFailed where what was written is not
// the same function. Whatever goes wrong, nothing appears at the output.
Exported export_model(const ModelFolder& source, const std::filesystem::path& output, const ExportOptions& options);

}  // namespace pare
