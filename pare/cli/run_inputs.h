#pragma once
// What `pare run` feeds a model: token lists or tensors from a file, checked against the Architecture.

#include <filesystem>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/executor.h"

namespace pare {

struct Batch {
  Inputs inputs;
  std::vector<int64_t> sequences;  // row r is sequence number sequences[r] of the file
};

// Sequences of token ids, numbered as they come. Those of equal length go together, so nothing is padded.
std::vector<Batch> batches_of(std::vector<std::vector<int64_t>> sequences, const Architecture& architecture);

// A JSON list of lists of token ids: as they stand there, and as batches.
std::vector<std::vector<int64_t>> read_token_rows(const std::filesystem::path& path, const Architecture& architecture);
std::vector<Batch> read_token_lists(const std::filesystem::path& path, const Architecture& architecture);

// A safetensors file with input_ids, attention_mask, token_type_ids, position_ids or pixel_values, as Hugging Face
// names and shapes them; rows may be padded left or right.
std::vector<Batch> read_input_tensors(const std::filesystem::path& path, const Architecture& architecture);

}  // namespace pare
