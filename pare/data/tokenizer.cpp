#include "pare/data/tokenizer.h"

#include <algorithm>

#include "pare/data/utf8.h"
#include "pare/support/error.h"

namespace pare {

namespace {

std::vector<AddedToken> added_tokens(const TokenizerParts& parts, bool normalized) {
  std::vector<AddedToken> chosen;
  for (const AddedToken& token : parts.added) {
    if (token.normalized == normalized) {
      chosen.push_back(token);
    }
  }
  return chosen;
}

// Tokens that are looked for after the normalizer went through it themselves.
std::vector<AddedToken> normalized_tokens(TokenizerParts& parts) {
  std::vector<AddedToken> tokens = added_tokens(parts, true);
  for (AddedToken& token : tokens) {
    token.content = parts.normalizer.apply(token.content, TextPart::begins);
  }
  return tokens;
}

bool is_character_begin(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

// Whether a token found in a text could lie across a cut, or take white space from its other side. `space` and `line`
// are what a space and the end of a line are in the text where it is looked for.
bool may_lie_across(const AddedToken& token, const std::string& space, const std::string& line) {
  const std::string& content = token.content;
  if (content.empty()) {
    return false;
  }
  for (size_t at = content.find(space, 1); at != std::string::npos; at = content.find(space, at + 1)) {
    if (is_letter(character_before(content, at))) {
      return true;
    }
  }
  for (size_t at = content.find(line); at != std::string::npos; at = content.find(line, at + 1)) {
    if (at + line.size() < content.size() && is_letter(character_at(content, at + line.size()).point)) {
      return true;
    }
  }
  return token.single_word || (token.right_strip && is_letter(character_before(content, content.size()))) ||
         (token.left_strip && is_letter(character_at(content, 0).point));
}

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::move(parts)), raw_(added_tokens(parts_, false)), normalized_(normalized_tokens(parts_)) {
  PARE_CHECK(parts_.model.has_value(), "a tokenizer without a model");
  for (AddedToken& token : parts_.added) {
    if (token.normalized) {  // also where ids are made into text again
      token.content = parts_.normalizer.apply(token.content, TextPart::begins);
    }
  }
  find_safe_cuts();
  dropped_by_samples_ = dropped();
}

std::vector<TokenId> Tokenizer::encode(std::string_view text) {
  std::vector<TokenId> ids;
  encode_part(text, TextPart::begins, ids);
  return ids;
}

void Tokenizer::encode_part(std::string_view text, TextPart part, std::vector<TokenId>& ids) {
  for (const TextSection& section : raw_.split(text)) {
    if (section.id >= 0) {
      ids.push_back(section.id);
      continue;
    }
    const bool first = section.begin == 0;
    encode_section(text.substr(section.begin, section.end - section.begin),
                   {.begins_text = first, .part = first ? part : TextPart::begins}, ids);
  }
}

void Tokenizer::encode_section(std::string_view text, SectionPlace place, std::vector<TokenId>& ids) {
  std::string changed;
  if (!parts_.normalizer.changes_nothing()) {
    changed = parts_.normalizer.apply(text, place.part);
    text = changed;
  }
  if (normalized_.empty()) {
    return encode_words(text, place, ids);
  }
  for (const TextSection& section : normalized_.split(text)) {
    if (section.id >= 0) {
      ids.push_back(section.id);
      continue;
    }
    const bool first = section.begin == 0;
    encode_words(text.substr(section.begin, section.end - section.begin),
                 {.begins_text = first && place.begins_text, .part = first ? place.part : TextPart::begins}, ids);
  }
}

void Tokenizer::encode_words(std::string_view text, SectionPlace place, std::vector<TokenId>& ids) {
  for (const std::string_view word : parts_.pre_tokenizer.split(text, place)) {
    std::visit([&](auto& model) { model.append_tokens(word, ids); }, *parts_.model);
  }
}

std::vector<TokenId> Tokenizer::with_special(std::vector<TokenId> ids) const {
  ids.insert(ids.begin(), parts_.before.begin(), parts_.before.end());
  ids.insert(ids.end(), parts_.after.begin(), parts_.after.end());
  return ids;
}

std::optional<TokenId> Tokenizer::id_of(std::string_view token) const {
  for (const AddedToken& added : parts_.added) {
    if (added.content == token) {
      return added.id;
    }
  }
  return parts_.vocabulary.find(token);
}

const AddedToken* Tokenizer::added_token(TokenId id) const {
  const auto found = std::ranges::find(parts_.added, id, &AddedToken::id);
  return found == parts_.added.end() ? nullptr : &*found;
}

bool Tokenizer::has(TokenId id) const {
  return added_token(id) != nullptr || parts_.vocabulary.token(id) != nullptr;
}

std::string Tokenizer::decode(const std::vector<TokenId>& ids, bool skip_special, TextEnd end) const {
  std::vector<std::string> tokens;
  for (const TokenId id : ids) {
    if (const AddedToken* added = added_token(id)) {
      if (!skip_special || !added->special) {
        tokens.push_back(added->content);
      }
      continue;
    }
    const std::string* token = parts_.vocabulary.token(id);
    refuse_if(token == nullptr, "{}: no token has the id {}", parts_.subject, id);
    tokens.push_back(*token);
  }
  return decoded(std::move(tokens), parts_.decoder, end);
}

// Whether these two give the same tokens apart and together.
bool Tokenizer::cut_is_safe(std::string_view left, std::string_view right) {
  const std::string both = std::string(left) + std::string(right);
  std::vector<TokenId> whole, parted;
  encode_part(both, TextPart::begins, whole);
  encode_part(left, TextPart::begins, parted);
  encode_part(right, TextPart::continues, parted);
  return whole == parted;
}

void Tokenizer::find_safe_cuts() {
  const auto between = [this](std::string_view sample) {
    const std::string text = parts_.normalizer.apply(sample, TextPart::continues);
    return text.size() > 2 ? text.substr(1, text.size() - 2) : std::string();
  };
  const std::string space = between("a b"), line = between("a\nb");
  const auto across = [&](const AddedToken& token) {
    return may_lie_across(token, token.normalized ? space : " ", token.normalized ? line : "\n");
  };
  if (!parts_.normalizer.works_in_parts() || space.empty() || line.empty() ||
      std::ranges::any_of(parts_.added, across)) {
    return;
  }
  cuts_at_spaces_ = cuts_after_lines_ = true;
  cuts_anywhere_ = parts_.normalizer.changes_nothing() && parts_.pre_tokenizer.changes_nothing() &&
                   std::holds_alternative<BpeModel>(*parts_.model) &&
                   std::ranges::all_of(parts_.added, [](const AddedToken& token) { return token.content.empty(); });
  if (parts_.pre_tokenizer.splits_nothing()) {
    const auto* bpe = std::get_if<BpeModel>(&*parts_.model);
    const std::string sample = parts_.normalizer.apply("a b", TextPart::continues);
    const std::vector<std::string_view>& words =
        parts_.pre_tokenizer.split(sample, {.begins_text = false, .part = TextPart::continues});
    const bool known = bpe != nullptr && words.size() == 1 && words[0].size() > 2;
    cuts_at_spaces_ = known && bpe->may_cut_before(words[0].substr(1, words[0].size() - 2));
    cuts_after_lines_ = known && bpe->may_cut_after_lines();
  }
  // Patterns are asked: whether a cut changes anything between words of several kinds.
  for (const std::string_view left : {"word", "A", "Zwölf", "it's", "слово", "\n\n  two", "3x", "。x"}) {
    for (const std::string_view right : {" word", " A", " émile", " 字", " it's  ", " x1"}) {
      cuts_at_spaces_ = cuts_at_spaces_ && cut_is_safe(left, right);
    }
  }
  for (const std::string_view left : {"word\n", "end.\n", "!\r\n", "\n\n", " \n", "x \n", "。\n", "3\n \n"}) {
    for (const std::string_view right : {"word", "A", "émile", "字", "it's", "x 1"}) {
      cuts_after_lines_ = cuts_after_lines_ && cut_is_safe(left, right);
    }
  }
}

int64_t Tokenizer::dropped() const {
  const auto* bpe = std::get_if<BpeModel>(&*parts_.model);
  return bpe == nullptr ? 0 : bpe->dropped() - dropped_by_samples_;
}

size_t Tokenizer::last_cut(std::string_view text, size_t from) {
  for (size_t at = text.size(); at-- > std::max<size_t>(1, from);) {
    if (cuts_anywhere_ && is_character_begin(text[at])) {
      const bool bytes = parts_.pre_tokenizer.to_bytes();
      const std::string_view right = text.substr(at, bytes ? 1 : character_at(text, at).bytes);
      size_t begin = at - 1;
      while (!bytes && begin > 0 && !is_character_begin(text[begin])) {
        --begin;
      }
      if (std::get<BpeModel>(*parts_.model).may_cut_between(text.substr(begin, at - begin), right)) {
        return at;
      }
    }
    const bool space = cuts_at_spaces_ && text[at] == ' ' && at + 1 < text.size();
    const bool line = cuts_after_lines_ && text[at - 1] == '\n';
    if ((space && is_letter(character_before(text, at)) && is_letter(character_at(text, at + 1).point)) ||
        (line && is_letter(character_at(text, at).point))) {
      return at;
    }
  }
  return 0;
}

}  // namespace pare
