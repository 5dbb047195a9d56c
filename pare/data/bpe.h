#pragma once
// Byte-pair encoding: a word begins as characters (or bytes), and the best pair of neighbours is joined until none is
// left that may be.

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "pare/data/vocabulary.h"

namespace pare {

struct BpeOptions {
  std::string unknown;             // the token of what the vocabulary has not; empty: dropped
  std::string continuing_prefix;   // before every character but the first of a word
  std::string word_suffix;         // after the last
  bool fuse_unknown = false;       // one token for a run of them
  bool byte_fallback = false;      // unknown characters become tokens such as <0x0A>
  bool whole_words_first = false;  // a word of the vocabulary is taken without merges
  bool bytes = false;              // words are bytes, and tokens are written in GPT-2's alphabet for them
};

// A pair of tokens, the better the lower its rank.
struct BpeMerge {
  TokenId left, right, joined;
  int64_t rank;
};

class BpeModel {
 public:
  // InputError where the options name tokens that the vocabulary has not. `subject` is the file.
  BpeModel(const Vocabulary& vocabulary, const std::vector<BpeMerge>& merges, BpeOptions options,
           const std::string& subject);

  // InputError for a word of millions of characters that no merge can be kept from joining.
  void append_tokens(std::string_view word, std::vector<TokenId>& ids);
  int64_t dropped() const { return dropped_; }  // characters, or bytes, that became no token

  // Whether a text that is one single word may be cut: between a letter and the `space` that follows it, or between the
  // end of a line and a letter. No token lies across.
  bool may_cut_before(std::string_view space) const;
  bool may_cut_after_lines() const;
  // Whether one that ends so and one that begins so have the same tokens apart and together.
  bool may_cut_between(std::string_view left, std::string_view right);

 private:
  struct Joined {
    int64_t rank;
    TokenId id;
  };
  struct PairSlot {
    uint64_t key;
    Joined joined;
  };
  struct Symbol {
    int32_t id, previous, next;  // -1: none
  };
  const Joined* find_pair(TokenId left, TokenId right) const;
  void add_unknown(int64_t& pending);
  void begin_word(std::string_view word);
  void begin_bytes(std::string_view word);
  void find_joints();
  bool may_join(TokenId left, TokenId right);
  TokenId symbol_of(std::string_view character) const;
  void merge_word();
  void merge_by_scanning();
  void merge_by_queue();

  BpeOptions options_;
  std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>> texts_;  // tokens in the form that words have
  std::vector<PairSlot> pairs_;                                                  // open addressing, a power of two
  std::array<TokenId, 256> byte_tokens_;  // of single bytes, or of <0x00> to <0xFF>; -1: none
  bool every_byte_ = false;
  TokenId unknown_ = -1;
  // Of what words begin as, the neighbours over which some merge reaches. Between others a word falls apart by itself.
  std::unordered_set<uint64_t> joints_;
  bool joints_known_ = false;
  int64_t dropped_ = 0;
  std::string subject_;
  WordCache cache_;
  std::vector<TokenId> word_;  // what is being merged
  std::vector<Symbol> symbols_;
};

// GPT-2's alphabet: each byte as a character that can be seen. The text that such a token stands for; nothing where it
// has other characters.
std::optional<std::string> bytes_of_visible(std::string_view token);
std::string visible_bytes(std::string_view bytes);

}  // namespace pare
