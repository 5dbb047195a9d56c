#pragma once
// Tokens and their ids, found both ways.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pare {

using TokenId = int64_t;

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;  // moved, never copied: `tokens_` points at what one vocabulary holds
  Vocabulary& operator=(Vocabulary&&) = default;

  // False where the token or the id is there already.
  bool add(std::string token, TokenId id);
  std::optional<TokenId> find(std::string_view token) const;
  const std::string* token(TokenId id) const;  // nullptr for an id without one
  size_t size() const { return ids_.size(); }
  TokenId end() const { return static_cast<TokenId>(tokens_.size()); }  // one more than the highest id
  const std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>>& all() const { return ids_; }

 private:
  std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>> ids_;
  std::vector<const std::string*> tokens_;  // into the keys above, which do not move
};

constexpr TokenId most_tokens = 50'000'000;  // ids beyond are a damaged file

// What words became, since most come again. Forgets all when it is full, so its memory does not grow with the text.
class WordCache {
 public:
  // The ids of a word; false where it is not known.
  bool find(std::string_view word, std::vector<TokenId>& ids) const;
  void remember(std::string_view word, const TokenId* ids, size_t count);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t text = 0, text_size = 0, ids = 0, count = 0;  // text_size 0: empty
  };
  static uint64_t hash_of(std::string_view word);
  std::vector<Slot> slots_;
  size_t filled_ = 0;
  std::string texts_;
  std::vector<TokenId> ids_;
};

}  // namespace pare
