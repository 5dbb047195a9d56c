#include "pare/data/vocabulary.h"

#include <cstring>

namespace pare {

namespace {

constexpr size_t slot_count = 1 << 16, most_filled = slot_count / 2, longest_word = 64;

}  // namespace

bool Vocabulary::add(std::string token, TokenId id) {
  if (static_cast<size_t>(id) < tokens_.size() && tokens_[id] != nullptr) {
    return false;
  }
  const auto [place, added] = ids_.emplace(std::move(token), id);
  if (!added) {
    return false;
  }
  if (static_cast<size_t>(id) >= tokens_.size()) {
    tokens_.resize(static_cast<size_t>(id) + 1);
  }
  tokens_[id] = &place->first;
  return true;
}

std::optional<TokenId> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional<TokenId>(found->second);
}

const std::string* Vocabulary::token(TokenId id) const {
  return id < 0 || id >= end() ? nullptr : tokens_[id];
}

uint64_t WordCache::hash_of(std::string_view word) {
  uint64_t hash = word.size() * 0x9E3779B97F4A7C15;
  const auto mix = [&hash](uint64_t part) {
    hash = (hash ^ part) * 0xD6E8FEB86659FD93;
    hash ^= hash >> 32;
  };
  size_t at = 0;
  for (; at + 8 <= word.size(); at += 8) {
    uint64_t part;
    std::memcpy(&part, word.data() + at, 8);
    mix(part);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, word.data() + at, word.size() - at);
  mix(rest);
  return hash;
}

bool WordCache::find(std::string_view word, std::vector<TokenId>& ids) const {
  if (slots_.empty() || word.size() > longest_word) {
    return false;
  }
  const uint64_t hash = hash_of(word);
  for (size_t place = hash % slot_count; slots_[place].text_size != 0; place = (place + 1) % slot_count) {
    const Slot& slot = slots_[place];
    if (slot.hash == hash && slot.text_size == word.size() &&
        std::memcmp(texts_.data() + slot.text, word.data(), word.size()) == 0) {
      ids.insert(ids.end(), ids_.begin() + slot.ids, ids_.begin() + slot.ids + slot.count);
      return true;
    }
  }
  return false;
}

void WordCache::remember(std::string_view word, const TokenId* ids, size_t count) {
  if (word.size() > longest_word || word.empty()) {
    return;
  }
  if (slots_.empty() || filled_ == most_filled) {
    slots_.assign(slot_count, {});
    texts_.clear();
    ids_.clear();
    filled_ = 0;
  }
  const uint64_t hash = hash_of(word);
  size_t place = hash % slot_count;
  while (slots_[place].text_size != 0) {
    place = (place + 1) % slot_count;
  }
  slots_[place] = {.hash = hash,
                   .text = static_cast<uint32_t>(texts_.size()),
                   .text_size = static_cast<uint32_t>(word.size()),
                   .ids = static_cast<uint32_t>(ids_.size()),
                   .count = static_cast<uint32_t>(count)};
  texts_ += word;
  ids_.insert(ids_.end(), ids, ids + count);
  ++filled_;
}

}  // namespace pare
