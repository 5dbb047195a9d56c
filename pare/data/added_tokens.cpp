#include "pare/data/added_tokens.h"

#include <algorithm>

#include "pare/data/unicode.h"
#include "pare/data/utf8.h"

namespace pare {

namespace {

bool ends_with_word(std::string_view text) {
  return !text.empty() && UnicodeTable::get().is(character_before(text, text.size()), CharacterFlag::rust_word);
}

bool begins_with_word(std::string_view text) {
  return !text.empty() && UnicodeTable::get().is(character_at(text, 0).point, CharacterFlag::rust_word);
}

// Where the white space at the end of a text begins.
size_t white_end(std::string_view text) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    at += c.bytes;
    if (!UnicodeTable::get().is(c.point, CharacterFlag::white)) {
      begin = at;
    }
  }
  return begin;
}

size_t white_begin(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Character c = character_at(text, at);
    if (!UnicodeTable::get().is(c.point, CharacterFlag::white)) {
      break;
    }
    at += c.bytes;
  }
  return at;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), by_first_byte_(256) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::ranges::stable_sort(
      tokens_, [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (size_t n = 0; n < tokens_.size(); ++n) {
    by_first_byte_[static_cast<unsigned char>(tokens_[n].content.front())].push_back(n);
  }
}

const AddedToken* AddedTokenFinder::token_at(std::string_view text, size_t at) const {
  for (const size_t n : by_first_byte_[static_cast<unsigned char>(text[at])]) {
    if (text.substr(at).starts_with(tokens_[n].content)) {
      return &tokens_[n];
    }
  }
  return nullptr;
}

std::vector<TextSection> AddedTokenFinder::split(std::string_view text) const {
  std::vector<TextSection> sections;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = tokens_.empty() ? nullptr : token_at(text, at);
    if (token == nullptr) {
      at = tokens_.empty() ? text.size() : at + 1;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->single_word && (ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end)))) {
      continue;
    }
    if (token->left_strip) {
      begin = std::max(done, done + white_end(text.substr(done, begin - std::min(begin, done))));
    }
    if (token->right_strip) {
      end += white_begin(text.substr(end));
    }
    if (begin > done) {
      sections.push_back({done, begin});
    }
    sections.push_back({begin, end, token->id});
    done = end;
    at = std::max(at, end);
  }
  if (done < text.size()) {
    sections.push_back({done, text.size()});
  }
  return sections;
}

}  // namespace pare
