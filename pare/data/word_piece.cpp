#include "pare/data/word_piece.h"

#include <algorithm>

#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

WordPieceModel::WordPieceModel(const Vocabulary& vocabulary, WordPieceOptions options, const std::string& subject)
    : options_(std::move(options)) {
  const std::optional<TokenId> unknown = vocabulary.find(options_.unknown);
  refuse_if(!unknown, "{}: unk_token is {}, which is not in the vocabulary", subject, quote(options_.unknown));
  unknown_ = *unknown;
  for (const auto& [token, id] : vocabulary.all()) {
    first_.emplace(token, id);
    longest_piece_ = std::max(longest_piece_, token.size());
    if (token.starts_with(options_.continuing_prefix)) {
      later_.emplace(token.substr(options_.continuing_prefix.size()), id);
    }
  }
}

bool WordPieceModel::take_pieces(std::string_view word, std::vector<TokenId>& ids) const {
  if (options_.whole_words) {
    const auto found = first_.find(word);
    if (found != first_.end()) {
      ids.push_back(found->second);
    }
    return found != first_.end();
  }
  if (word.size() > options_.longest_word && count_characters(word) > options_.longest_word) {
    return false;
  }
  for (size_t begin = 0; begin < word.size();) {
    const Pieces& pieces = begin == 0 ? first_ : later_;
    size_t length = std::min(word.size() - begin, longest_piece_);
    Pieces::const_iterator found = pieces.end();
    for (; length > 0 && found == pieces.end(); --length) {
      const bool whole = begin + length == word.size() ||
                         (static_cast<unsigned char>(word[begin + length]) & 0xC0) != 0x80;  // no character is cut
      found = whole ? pieces.find(word.substr(begin, length)) : pieces.end();
    }
    if (found == pieces.end()) {
      return false;
    }
    ids.push_back(found->second);
    begin += found->first.size();
  }
  return true;
}

void WordPieceModel::append_tokens(std::string_view word, std::vector<TokenId>& ids) {
  if (cache_.find(word, ids)) {
    return;
  }
  const size_t before = ids.size();
  if (!take_pieces(word, ids)) {
    ids.resize(before);
    ids.push_back(unknown_);
  }
  cache_.remember(word, ids.data() + before, ids.size() - before);
}

}  // namespace pare
