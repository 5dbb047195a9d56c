#pragma once
// The tokens of a text file, a piece at a time, in memory that does not grow with the file.

#include <filesystem>
#include <string>
#include <vector>

#include "pare/data/text_file.h"
#include "pare/data/tokenizer.h"

namespace pare {

class TextTokens {
 public:
  TextTokens(const std::filesystem::path& path, Tokenizer& tokenizer, size_t piece_bytes = usual_piece);
  // Appends more tokens, the same as the whole text would give. False at the end. Where the tokenizer allows no cuts,
  // all of them come at once: InputError for more than `largest_whole` bytes.
  bool read(std::vector<TokenId>& ids);

  static constexpr size_t usual_piece = 1 << 18;
  static constexpr size_t largest_whole = 1 << 28;

 private:
  TextFile file_;
  Tokenizer& tokenizer_;
  std::string subject_;
  size_t piece_bytes_;
  std::string text_;  // read, and not yet encoded
  TextPart part_ = TextPart::begins;
  bool ended_ = false;
};

// A text as sequences of at most `longest` tokens, with what stands around each.
struct TextSequences {
  std::vector<std::vector<TokenId>> sequences;
  int64_t tokens = 0;  // of the text, without what stands around
  bool whole = true;   // false: stopped at `most_tokens`
};
TextSequences read_sequences(const std::filesystem::path& path, Tokenizer& tokenizer, int64_t longest,
                             int64_t most_tokens);

}  // namespace pare
