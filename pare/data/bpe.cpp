#include "pare/data/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <utility>

#include "pare/data/unicode.h"
#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

constexpr size_t scanned_symbols = 48;  // beyond, a queue is faster than looking at all pairs again and again
constexpr uint64_t no_pair = ~uint64_t{0};
constexpr size_t parted_symbols = 1 << 12;  // longer words are merged in the parts that they fall into
constexpr size_t most_symbols = 1 << 23;    // of such a part: each costs some forty bytes

uint64_t pair_of(TokenId left, TokenId right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right);
}

uint64_t scattered(uint64_t key) {
  key *= 0x9E3779B97F4A7C15;
  return key ^ key >> 32;
}

// Visible bytes stand for themselves, the others for characters from 256 on.
std::array<char32_t, 256> make_visible() {
  std::array<char32_t, 256> points = {};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    points[byte] = visible ? byte : next++;
  }
  return points;
}

const std::array<char32_t, 256>& visible() {
  static const std::array<char32_t, 256> points = make_visible();
  return points;
}

}  // namespace

std::optional<std::string> bytes_of_visible(std::string_view token) {
  static const std::array<int, 512> bytes = [] {
    std::array<int, 512> result;
    result.fill(-1);
    for (size_t byte = 0; byte < 256; ++byte) {
      result[visible()[byte]] = static_cast<int>(byte);
    }
    return result;
  }();
  std::string text;
  for (size_t at = 0; at < token.size();) {
    const Utf8Character c = character_at(token, at);
    if (c.point >= bytes.size() || bytes[c.point] < 0) {
      return std::nullopt;
    }
    text.push_back(static_cast<char>(bytes[c.point]));
    at += c.bytes;
  }
  return text;
}

std::string visible_bytes(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    append_utf8(text, visible()[static_cast<unsigned char>(byte)]);
  }
  return text;
}

BpeModel::BpeModel(const Vocabulary& vocabulary, const std::vector<BpeMerge>& merges, BpeOptions options,
                   const std::string& subject)
    : options_(std::move(options)), subject_(subject) {
  if (!options_.unknown.empty()) {
    const std::optional<TokenId> id = vocabulary.find(options_.unknown);
    refuse_if(!id, "{}: unk_token is {}, which is not in the vocabulary", subject, quote(options_.unknown));
    unknown_ = *id;
  }
  for (const auto& [token, id] : vocabulary.all()) {
    std::optional<std::string> text = options_.bytes ? bytes_of_visible(token) : std::optional<std::string>(token);
    if (text) {
      texts_.emplace(std::move(*text), id);
    }
  }
  byte_tokens_.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto found = options_.bytes ? texts_.find(std::string(1, static_cast<char>(byte)))
                                      : texts_.find(fmt::format("<0x{:02X}>", byte));
    if (found != texts_.end()) {
      byte_tokens_[byte] = found->second;
    }
  }
  every_byte_ = std::ranges::find(byte_tokens_, -1) == byte_tokens_.end();
  size_t size = 16;
  while (size < 2 * merges.size()) {
    size *= 2;
  }
  pairs_.assign(size, {no_pair, {}});
  for (const BpeMerge& merge : merges) {
    const uint64_t key = pair_of(merge.left, merge.right);
    size_t place = scattered(key) & (size - 1);
    while (pairs_[place].key != no_pair && pairs_[place].key != key) {
      place = (place + 1) & (size - 1);
    }
    pairs_[place] = {key, {merge.rank, merge.joined}};  // of two alike, the last
  }
}

const BpeModel::Joined* BpeModel::find_pair(TokenId left, TokenId right) const {
  const uint64_t key = pair_of(left, right);
  for (size_t place = scattered(key) & (pairs_.size() - 1);; place = (place + 1) & (pairs_.size() - 1)) {
    if (pairs_[place].key == key) {
      return &pairs_[place].joined;
    }
    if (pairs_[place].key == no_pair) {
      return nullptr;
    }
  }
}

// Unknown characters wait, so that a run of them can become one token.
void BpeModel::add_unknown(int64_t& pending) {
  if (unknown_ < 0) {
    ++dropped_;
    return;
  }
  if (pending > 0 && !options_.fuse_unknown) {
    word_.push_back(unknown_);
  }
  pending = 1;
}

void BpeModel::begin_bytes(std::string_view word) {
  int64_t pending = 0;
  for (const char byte : word) {
    const TokenId id = byte_tokens_[static_cast<unsigned char>(byte)];
    if (id < 0) {
      add_unknown(pending);
      continue;
    }
    if (pending > 0) {
      word_.push_back(unknown_);
      pending = 0;
    }
    word_.push_back(id);
  }
  if (pending > 0) {
    word_.push_back(unknown_);
  }
}

void BpeModel::begin_word(std::string_view word) {
  const bool plain = options_.continuing_prefix.empty() && options_.word_suffix.empty();
  int64_t pending = 0;
  std::string decorated;
  for (size_t at = 0; at < word.size();) {
    const size_t bytes = character_at(word, at).bytes;
    std::string_view character = word.substr(at, bytes);
    if (!plain) {
      decorated = (at > 0 ? options_.continuing_prefix : "") + std::string(character) +
                  (at + bytes == word.size() ? options_.word_suffix : "");
      character = decorated;
    }
    at += bytes;
    const auto found = texts_.find(character);
    if (found != texts_.end()) {
      if (pending > 0) {
        word_.push_back(unknown_);
        pending = 0;
      }
      word_.push_back(found->second);
      continue;
    }
    const auto known = [this](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)] >= 0; };
    if (options_.byte_fallback && std::ranges::all_of(character, known)) {
      for (const char byte : character) {
        word_.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
      }
    } else {
      add_unknown(pending);
    }
  }
  if (pending > 0) {
    word_.push_back(unknown_);
  }
}

// Joins the best pair, the first of equals, and looks again.
void BpeModel::merge_by_scanning() {
  std::array<const Joined*, scanned_symbols> pairs;
  for (size_t n = 0; n + 1 < word_.size(); ++n) {
    pairs[n] = find_pair(word_[n], word_[n + 1]);
  }
  while (word_.size() > 1) {
    size_t best = word_.size();
    for (size_t n = 0; n + 1 < word_.size(); ++n) {
      if (pairs[n] != nullptr && (best == word_.size() || pairs[n]->rank < pairs[best]->rank)) {
        best = n;
      }
    }
    if (best == word_.size()) {
      return;
    }
    word_[best] = pairs[best]->id;
    word_.erase(word_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::copy(pairs.begin() + best + 1, pairs.begin() + word_.size(), pairs.begin() + best);
    if (best + 1 < word_.size()) {
      pairs[best] = find_pair(word_[best], word_[best + 1]);
    }
    if (best > 0) {
      pairs[best - 1] = find_pair(word_[best - 1], word_[best]);
    }
  }
}

// The same for long words: pairs wait in a queue, and those that have changed meanwhile are passed over.
void BpeModel::merge_by_queue() {
  struct Waiting {
    int32_t rank, place, id;
    bool operator>(const Waiting& other) const { return rank != other.rank ? rank > other.rank : place > other.place; }
  };
  std::vector<Waiting> room;
  room.reserve(word_.size());
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> queue(std::greater<>(), std::move(room));
  symbols_.clear();
  symbols_.reserve(word_.size());
  const int32_t count = static_cast<int32_t>(word_.size());
  for (int32_t n = 0; n < count; ++n) {
    symbols_.push_back({static_cast<int32_t>(word_[n]), n - 1, n + 1 < count ? n + 1 : -1});
  }
  const auto symbol = [this](int32_t place) -> Symbol& { return symbols_[place]; };
  const auto look = [&](int32_t place) {
    if (place < 0 || symbol(place).next < 0) {
      return;
    }
    const Joined* joined = find_pair(symbol(place).id, symbol(symbol(place).next).id);
    if (joined != nullptr) {
      queue.push({static_cast<int32_t>(joined->rank), place, static_cast<int32_t>(joined->id)});
    }
  };
  for (int32_t n = 0; n + 1 < count; ++n) {
    look(n);
  }
  while (!queue.empty()) {
    const Waiting best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.place);
    if (left.id < 0 || left.next < 0) {
      continue;
    }
    Symbol& right = symbol(left.next);
    const Joined* joined = find_pair(left.id, right.id);
    if (joined == nullptr || joined->id != best.id) {
      continue;
    }
    left.id = best.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) {
      symbol(left.next).previous = best.place;
    }
    look(left.previous);
    look(best.place);
  }
  word_.clear();
  for (int32_t n = 0; n >= 0; n = symbol(n).next) {
    word_.push_back(symbol(n).id);
  }
}

// What a token can have begun as, at its one end and at its other, and from that every pair over which two may be
// joined. A token may have come about in several ways.
void BpeModel::find_joints() {
  joints_known_ = true;
  std::unordered_map<TokenId, std::vector<TokenId>> first, last;
  const auto add = [](std::vector<TokenId>& into, TokenId id) {
    const bool known = std::ranges::find(into, id) != into.end();
    known ? void() : into.push_back(id);
    return !known;
  };
  const auto begin_as = [&](TokenId id) {
    add(first[id], id);
    add(last[id], id);
  };
  for (const auto& [text, id] : texts_) {
    if (options_.bytes ? text.size() == 1 : !text.empty() && character_at(text, 0).bytes == text.size()) {
      begin_as(id);
    }
  }
  for (const TokenId id : byte_tokens_) {
    id >= 0 ? begin_as(id) : void();
  }
  begin_as(unknown_);
  for (bool grew = true; grew;) {  // until nothing is added: merges need not come in the order of their making
    grew = false;
    for (const PairSlot& slot : pairs_) {
      if (slot.key == no_pair) {
        continue;
      }
      const TokenId left = static_cast<TokenId>(slot.key >> 32), right = static_cast<TokenId>(slot.key & 0xFFFFFFFF);
      for (const TokenId id : std::vector(first[left])) {
        grew = add(first[slot.joined.id], id) || grew;
      }
      for (const TokenId id : std::vector(last[right])) {
        grew = add(last[slot.joined.id], id) || grew;
      }
    }
  }
  for (const PairSlot& slot : pairs_) {
    if (slot.key == no_pair) {
      continue;
    }
    for (const TokenId left : last[static_cast<TokenId>(slot.key >> 32)]) {
      for (const TokenId right : first[static_cast<TokenId>(slot.key & 0xFFFFFFFF)]) {
        joints_.insert(pair_of(left, right));
      }
    }
  }
}

bool BpeModel::may_join(TokenId left, TokenId right) {
  if (!joints_known_) {
    find_joints();
  }
  return joints_.contains(pair_of(left, right));
}

// What a character of a text without decoration begins as; -1 where that takes more than one token, or none.
TokenId BpeModel::symbol_of(std::string_view character) const {
  if (options_.bytes) {
    return character.size() == 1 ? byte_tokens_[static_cast<unsigned char>(character[0])] : -1;
  }
  const auto found = texts_.find(character);
  return found == texts_.end() ? -1 : found->second;
}

bool BpeModel::may_cut_between(std::string_view left, std::string_view right) {
  if (!options_.continuing_prefix.empty() || !options_.word_suffix.empty() || options_.whole_words_first) {
    return false;
  }
  const TokenId before = symbol_of(left), after = symbol_of(right);
  return before >= 0 && after >= 0 && !may_join(before, after);
}

void BpeModel::merge_word() {
  if (word_.size() > most_symbols) {
    throw InputError(
        fmt::format("{}: the text has a word of more than {} characters that might become one token: is it text? Part "
                    "it, by spaces or lines",
                    subject_, with_commas(static_cast<int64_t>(most_symbols))));
  }
  if (word_.size() > scanned_symbols) {
    merge_by_queue();
  } else if (word_.size() > 1) {
    merge_by_scanning();
  }
}

void BpeModel::append_tokens(std::string_view word, std::vector<TokenId>& ids) {
  if (cache_.find(word, ids)) {
    return;
  }
  word_.clear();
  const int64_t dropped = dropped_;
  const auto whole = options_.whole_words_first ? texts_.find(word) : texts_.end();
  if (whole != texts_.end()) {
    word_.push_back(whole->second);
  } else {
    options_.bytes ? begin_bytes(word) : begin_word(word);
    if (word_.size() > parted_symbols && options_.continuing_prefix.empty() && options_.word_suffix.empty()) {
      const std::vector<TokenId> symbols = std::exchange(word_, {});
      for (size_t begin = 0, end = 1; end <= symbols.size(); ++end) {
        if (end == symbols.size() || !may_join(symbols[end - 1], symbols[end])) {
          word_.assign(symbols.begin() + static_cast<std::ptrdiff_t>(begin),
                       symbols.begin() + static_cast<std::ptrdiff_t>(end));
          merge_word();
          ids.insert(ids.end(), word_.begin(), word_.end());
          begin = end;
        }
      }
      return;
    }
    merge_word();
  }
  if (dropped == dropped_) {  // what lost something is to be counted each time
    cache_.remember(word, word_.data(), word_.size());
  }
  ids.insert(ids.end(), word_.begin(), word_.end());
}

bool BpeModel::may_cut_before(std::string_view space) const {
  if (options_.bytes || !texts_.contains(space)) {
    return false;
  }
  return std::ranges::none_of(texts_, [&](const auto& entry) {
    const std::string& text = entry.first;
    for (size_t at = text.find(space, 1); at != std::string::npos; at = text.find(space, at + 1)) {
      if (is_letter(character_before(text, at))) {
        return true;
      }
    }
    return false;
  });
}

bool BpeModel::may_cut_after_lines() const {
  if (options_.bytes || !(texts_.contains("\n") || (options_.byte_fallback && every_byte_))) {
    return false;
  }
  return std::ranges::none_of(texts_, [](const auto& entry) {
    const std::string& text = entry.first;
    for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1)) {
      if (at + 1 < text.size() && is_letter(character_at(text, at + 1).point)) {
        return true;
      }
    }
    return false;
  });
}

}  // namespace pare
