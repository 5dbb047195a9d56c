#pragma once
// Logits that some program wrote, for inputs that pare is given as well.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

#include "pare/verify/questions.h"

namespace pare {

struct StoredLogits {
  at::Tensor rows;  // [tokens of all sequences in the order of the question, vocabulary]
  Dtype dtype = Dtype::f32;
  std::string sha256;  // of the file
};

// From safetensors: `logits` [sequences, tokens, vocabulary], or `logits.0`, `logits.1`, ... [tokens, vocabulary], one
// for each sequence as the file of inputs counts them, which is what `pare run` writes. InputError listing what does
// not fit.
StoredLogits read_stored_logits(const std::filesystem::path& path, const Question& question,
                                const Architecture& architecture);

}  // namespace pare
