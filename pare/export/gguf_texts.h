#pragma once
// What a GGUF file says of texts: its tokenizer, the tokens that begin and end them, the chat template.

#include <filesystem>
#include <string>
#include <vector>

#include "pare/support/gguf_writer.h"

namespace pare {

struct GgufTexts {
  std::vector<GgufEntry> entries;
  std::vector<std::string> notes;
};

// Of the tokenizer in `tokenizer`, a folder or a file, for the model in `model`, whose token table has so many rows. It
// is read again as GGUF and has to give the same tokens on difficult texts. Where the model's own folder has none that
// GGUF can hold, the file goes without, and a note says why; one that was named is an InputError.
GgufTexts gguf_texts(const std::filesystem::path& tokenizer, const std::filesystem::path& model, int64_t rows);

}  // namespace pare
