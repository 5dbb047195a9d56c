#pragma once
// A rewritten model on its way to disk: rounded once, in our form or in that of its source, with what belongs to it.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pare/checkpoint/model_folder.h"
#include "pare/passes/pass.h"

namespace pare {

enum class WrittenForm {
  strict,  // native: what was removed has no tensor
  compat,  // the source family's own layout, every tensor present, for any stock engine
};

struct WriteOptions {
  WrittenForm form = WrittenForm::strict;
  std::optional<Dtype> dtype;  // absent: each tensor keeps the type that it, or most of the model, was stored in
  uint64_t shard_bytes = 0;
};

// Everything but the writing: Refused where the source's family cannot express the result.
struct Prepared {
  std::string config;
  Architecture architecture;
  Weights weights;  // under the names of the form
};
Prepared prepare(const StoredModel& source, const Recipe& after, const WriteOptions& options);

// Files of the source that belong to the model whatever its weights are: tokenizer, generation, chat template, licence.
std::vector<std::filesystem::path> companions(const std::filesystem::path& folder);
// Files of the source that fit its own weights only: adapters, optimiser state.
std::vector<std::filesystem::path> left_behind(const std::filesystem::path& folder);

// Into a folder that exists.
void write_prepared(const std::filesystem::path& folder, const StoredModel& source, const Prepared& prepared,
                    uint64_t shard_bytes);

}  // namespace pare
