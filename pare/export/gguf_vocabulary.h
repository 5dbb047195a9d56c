#pragma once
// The vocabulary of a tokenizer as GGUF has it: tokens with their kinds, and what joins or splits them.

#include <filesystem>
#include <string>
#include <vector>

#include "pare/data/tokenizer.h"
#include "pare/support/gguf_writer.h"

namespace pare {

struct GgufVocabulary {
  std::vector<GgufEntry> entries;
  std::vector<std::string> notes;
  // What a reader of the file is known to do otherwise, as one of the notes says: with texts that are not composed
  // (NFC), with those that begin with a space, and with those that do not, before which it would have to put one.
  bool other_when_decomposed = false, other_before_space = false, wants_space_first = false;
  std::vector<AddedToken> added;  // that are found in a text before anything else
};

// Of the tokenizer that was read from `file`, for a model with so many rows in its token table. InputError where GGUF
// has no such tokenizer.
GgufVocabulary gguf_vocabulary(const Tokenizer& tokenizer, const std::filesystem::path& file, int64_t rows);

}  // namespace pare
