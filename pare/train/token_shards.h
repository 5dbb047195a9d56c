#pragma once
// A text as tokens on disk, made once: a folder with shards of little-endian uint16 or uint32 and tokens.json, which
// says what is in them (docs/training.md). Training reads from them what it needs, and never holds them.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "pare/train/tokens.h"

namespace pare {

struct TokenShards {
  TokenArray train, validation;
  nlohmann::ordered_json tokenizer;  // path and SHA-256; null: there was none
  int64_t sequence = 0;              // tokens of each of the sequences that a model drew; 0: one long text
};

struct PreparedShards {
  std::string path, dtype;
  int64_t train_tokens = 0, validation_tokens = 0, shards = 0;
};

// Of a text, or of what a model draws on the device (samples.h). Appears whole or not at all. InputError where
// something stands there, and for all that training would refuse.
PreparedShards write_shards(const TrainConfig& config, const std::filesystem::path& folder,
                            at::Device device = at::kCPU, int64_t tokens_per_shard = int64_t{1} << 27);

// InputError where it is no such folder, or a shard is missing, shorter or longer than it was, or has other bytes.
TokenShards open_shards(const std::string& folder);

// Whether each token that a run reads is a byte of a text, from files or from shards.
bool learns_bytes(const TrainConfig& config);
// The tokenizer of what a run reads: the one that is named, else the one that its shards were made with, where it is
// still what it was.
TokenReading reading_of_run(const TrainConfig& config);

}  // namespace pare
