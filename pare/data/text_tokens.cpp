#include "pare/data/text_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/support/error.h"
#include "pare/support/numbers.h"

namespace pare {

TextTokens::TextTokens(const std::filesystem::path& path, Tokenizer& tokenizer, size_t piece_bytes)
    : file_(path), tokenizer_(tokenizer), subject_(path.string()), piece_bytes_(piece_bytes) {}

bool TextTokens::read(std::vector<TokenId>& ids) {
  size_t cut = 0;
  while (!ended_ && cut == 0) {
    const size_t before = text_.size() - std::min<size_t>(text_.size(), 8);  // whose right side was not seen
    ended_ = !file_.read(text_, std::max(piece_bytes_, text_.size()));
    if (ended_) {
      break;
    }
    cut = tokenizer_.last_cut(text_, before);
    if (cut == 0 && text_.size() > largest_whole) {
      throw InputError(fmt::format(
          "{}: with the tokenizer {} this text can only be read whole, and has more than {}: split it into files",
          subject_, tokenizer_.subject(), human_bytes(largest_whole)));
    }
  }
  if (ended_) {
    cut = text_.size();
  }
  if (cut == 0) {
    return false;
  }
  tokenizer_.encode_part(std::string_view(text_).substr(0, cut), part_, ids);
  text_.erase(0, cut);
  part_ = TextPart::continues;
  return true;
}

TextSequences read_sequences(const std::filesystem::path& path, Tokenizer& tokenizer, int64_t longest,
                             int64_t most_tokens) {
  const int64_t around = std::ssize(tokenizer.before()) + std::ssize(tokenizer.after()), room = longest - around;
  refuse_if(room < 1, "{}: a context of {} has no room for text beside the {} tokens that stand around it",
            tokenizer.subject(), longest, around);
  TextSequences result;
  TextTokens text(path, tokenizer);
  std::vector<TokenId> ids;
  const auto take = [&](size_t begin, size_t count) {
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(begin);
    result.sequences.push_back(tokenizer.with_special({first, first + static_cast<std::ptrdiff_t>(count)}));
    result.tokens += static_cast<int64_t>(count);
  };
  while (result.whole && text.read(ids)) {
    if (result.tokens + std::ssize(ids) > most_tokens) {
      ids.resize(most_tokens - result.tokens);
      result.whole = false;
    }
    size_t begin = 0;
    for (; ids.size() - begin >= static_cast<size_t>(room); begin += static_cast<size_t>(room)) {
      take(begin, static_cast<size_t>(room));
    }
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  if (!ids.empty()) {
    take(0, ids.size());
  }
  refuse_if(result.sequences.empty(), "{} gives no tokens: is it empty?", path.string());
  return result;
}

}  // namespace pare
