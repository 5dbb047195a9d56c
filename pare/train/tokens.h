#pragma once
// A text as one long array of tokens. Whoever can give tokens by number can be trained on: files as they are, or what a
// tokenizer made of a text and holds in memory.

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pare/train/config.h"

namespace pare {

struct TokenFile {
  std::string path, sha256;
  uint64_t bytes = 0;
  int64_t tokens = 0, largest = 0;  // the largest token in it
};

class TokenArray {
 public:
  // Fills `into` with the tokens from number `begin` on, which are all there.
  using Read = std::function<void(int64_t begin, std::span<int64_t> into)>;
  TokenArray(std::vector<TokenFile> files, Read read) : files_(std::move(files)), read_(std::move(read)) {}

  int64_t size() const;
  at::Tensor read(int64_t begin, int64_t count) const;  // int64 [count]
  const std::vector<TokenFile>& files() const { return files_; }

 private:
  std::vector<TokenFile> files_;
  Read read_;
};

// Files one after another. Each is read once, for its hash and its largest token, and then where it is needed: by
// reading, not by mapping, since a file that somebody shortens would end a process that has it mapped. InputError where
// one is missing, empty, or has half a token at its end.
TokenArray open_tokens(const std::vector<std::string>& files, TokenFormat format);

}  // namespace pare
