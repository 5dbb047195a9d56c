#include "pare/data/text_stream.h"

#include <algorithm>

namespace pare {

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const TokenId> prompt) : tokenizer_(&tokenizer) {
  std::copy_if(prompt.begin(), prompt.end(), std::back_inserter(window_),
               [&](TokenId id) { return tokenizer.has(id); });
  const std::string certain = tokenizer.decode(window_, true, TextEnd::open);
  given_ = certain.size();
  pending_ = tokenizer.decode(window_).substr(given_);
}

// New text without the prompt's open end, where it begins with that. Bytes that follow may have made another text of
// it, which is then handed out whole.
std::string TextStream::without_prompt(std::string text, std::string& pending) const {
  const size_t common = std::min(text.size(), pending.size());
  const bool same = text.compare(0, common, pending, 0, common) == 0;
  pending = same ? pending.substr(common) : "";
  return same ? text.substr(common) : text;
}

std::string TextStream::add(TokenId id) {
  if (!tokenizer_->has(id)) {
    return "";
  }
  window_.push_back(id);
  const std::string certain = tokenizer_->decode(window_, true, TextEnd::open);
  if (certain.size() <= given_) {
    return "";
  }
  const std::string fresh = without_prompt(certain.substr(given_), pending_);
  given_ = certain.size();
  // Where nothing is open, what follows depends on no token before the last, unless that has no text of its own: the
  // first text of all is special, as to spaces before it.
  const std::string last = tokenizer_->decode({id});
  if (!last.empty() && pending_.empty() && tokenizer_->decode(window_) == certain) {
    window_ = {id};
    given_ = last.size();
  }
  return fresh;
}

std::string TextStream::rest() const {
  const std::string all = tokenizer_->decode(window_);
  std::string pending = pending_;
  return all.size() > given_ ? without_prompt(all.substr(given_), pending) : "";
}

}  // namespace pare
