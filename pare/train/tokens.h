#pragma once
// A text as one long array of tokens. Whoever can give tokens by number can be trained on: files as they are, or what
// was unpacked or made by a tokenizer and is held in memory.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "pare/train/config.h"
#include "pare/train/first_tokens.h"

namespace pare {

class Sha256;
class Tokenizer;

struct TokenFile {
  std::string path, sha256;          // of what it holds unpacked
  uint64_t bytes = 0;                // the same
  int64_t tokens = 0, largest = -1;  // the largest token in it
};

// How files become tokens: bytes, or ids as they are stored, or a text by a tokenizer.
struct TokenReading {
  DataFormat format = DataFormat::bytes;
  std::shared_ptr<Tokenizer> tokenizer;  // none: as the format says
};
TokenReading token_reading(const DataConfig& config);  // InputError where there is no such tokenizer
// What a tokenizer is made of: its file, or the names and hashes of its files, as one SHA-256.
std::string tokenizer_hash(const Tokenizer& tokenizer);
nlohmann::ordered_json tokenizer_json(const TokenReading& reading);  // path and hash; null without one
// Its files by the names that a model's folder has them under, where it is found again.
std::map<std::string, std::filesystem::path> tokenizer_files(const TokenReading& reading);

class TokenArray {
 public:
  // Fills `into` with the tokens from number `begin` on, which are all there.
  using Read = std::function<void(int64_t begin, std::span<int64_t> into)>;
  // `sha256`: of all tokens in a row, as little-endian uint32, so that it does not depend on how they are stored.
  TokenArray(std::vector<TokenFile> files, Read read, std::string sha256, TokenPlaces places = {})
      : files_(std::move(files)), read_(std::move(read)), sha256_(std::move(sha256)), places_(std::move(places)) {}

  int64_t size() const;
  at::Tensor read(int64_t begin, int64_t count) const;  // int64 [count]
  void read(int64_t begin, std::span<int64_t> into) const;
  const std::vector<TokenFile>& files() const { return files_; }
  const std::string& sha256() const { return sha256_; }
  const TokenPlaces& places() const { return places_; }

 private:
  std::vector<TokenFile> files_;
  Read read_;
  std::string sha256_;
  TokenPlaces places_;
};

// Hands out all tokens of a file, front to back, a piece at a time, and then what it is. InputError where it is
// missing, empty, damaged, or has half a token at its end.
using TakeTokens = std::function<void(std::span<const int64_t>)>;
TokenFile each_token(const std::string& path, const TokenReading& reading, const TakeTokens& take);

// Files one after another. Each is read once, for its hash and its largest token. Those that hold tokens as they are
// are then read where they are needed: by reading, not by mapping, since a file that somebody shortens would end a
// process that has it mapped. The others are held.
TokenArray open_tokens(const std::vector<std::string>& files, const TokenReading& reading);

}  // namespace pare
