#include "pare/data/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "pare/data/bpe.h"
#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

using Pieces = std::vector<std::string>;

// No token is so long: replacements that double it, one after the other, would fill any memory.
constexpr size_t largest_piece = 1 << 26;

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  std::string result;
  size_t at = 0;
  for (size_t found = text.find(from); found != std::string::npos; found = text.find(from, at)) {
    result.append(text, at, found - at).append(to);
    at = found + from.size();
    if (result.size() > largest_piece) {
      throw InputError(
          fmt::format("the decoder of the tokenizer makes more than {} of one token: remove its Replace from "
                      "tokenizer.json",
                      human_bytes(largest_piece)));
    }
  }
  text = result.append(text, at);
}

std::string together(const Pieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) {
    text += piece;
  }
  return text;
}

// In the order in which the peer does it: one may make another.
void clean_up(std::string& text) {
  static const std::array<std::pair<std::string, std::string>, 11> changes = {{{" .", "."},
                                                                               {" ?", "?"},
                                                                               {" !", "!"},
                                                                               {" ,", ","},
                                                                               {" ' ", "'"},
                                                                               {" n't", "n't"},
                                                                               {" 'm", "'m"},
                                                                               {" do not", " don't"},
                                                                               {" 's", "'s"},
                                                                               {" 've", "'ve"},
                                                                               {" 're", "'re"}}};
  for (const auto& [from, to] : changes) {
    replace_all(text, from, to);
  }
}

int byte_token(const std::string& token) {
  int value = -1;
  if (token.size() == 6 && token.starts_with("<0x") && token.back() == '>') {
    const std::from_chars_result read = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
    return read.ec == std::errc() && read.ptr == token.data() + 5 ? value : -1;
  }
  return -1;
}

struct Decode {
  Pieces& pieces;

  void operator()(const DecodeVisibleBytes&) const {
    std::string bytes;
    for (const std::string& piece : pieces) {
      bytes += bytes_of_visible(piece).value_or(piece);  // added tokens are text already
    }
    pieces = {repaired_utf8(bytes)};
  }

  void operator()(const DecodeWordPieces& step) const {
    for (size_t n = 0; n < pieces.size(); ++n) {
      if (n > 0) {
        pieces[n] = pieces[n].starts_with(step.prefix) ? pieces[n].substr(step.prefix.size()) : " " + pieces[n];
      }
      if (step.cleanup) {
        clean_up(pieces[n]);
      }
    }
  }

  void operator()(const DecodeSpaces& step) const {
    for (size_t n = 0; n < pieces.size(); ++n) {
      replace_all(pieces[n], step.replacement, n == 0 && step.drop_first ? "" : " ");
    }
  }

  void operator()(const DecodeSuffix& step) const {
    for (size_t n = 0; n < pieces.size(); ++n) {
      replace_all(pieces[n], step.suffix, n + 1 == pieces.size() ? "" : " ");
    }
  }

  void operator()(const DecodeReplace& step) const {
    for (std::string& piece : pieces) {
      replace_all(piece, step.from, step.to);
    }
  }

  // A run of bytes that is no text becomes one U+FFFD for each byte.
  void operator()(const DecodeByteTokens&) const {
    Pieces result;
    std::string run;
    const auto end_run = [&] {
      if (!run.empty() && !invalid_utf8(run)) {
        result.push_back(run);
      } else {
        result.insert(result.end(), run.size(), "\xEF\xBF\xBD");
      }
      run.clear();
    };
    for (const std::string& piece : pieces) {
      const int byte = byte_token(piece);
      if (byte >= 0) {
        run.push_back(static_cast<char>(byte));
        continue;
      }
      end_run();
      result.push_back(piece);
    }
    end_run();
    pieces = std::move(result);
  }

  void operator()(const DecodeFuse&) const { pieces = {together(pieces)}; }

  void operator()(const DecodeStrip& step) const {
    for (std::string& piece : pieces) {
      for (size_t n = 0; n < step.start && piece.starts_with(step.character); ++n) {
        piece.erase(0, step.character.size());
      }
      for (size_t n = 0; n < step.stop && piece.ends_with(step.character); ++n) {
        piece.resize(piece.size() - step.character.size());
      }
    }
  }
};

}  // namespace

std::string decoded(std::vector<std::string> tokens, const std::vector<DecodeStep>& steps) {
  if (steps.empty()) {
    std::string text;
    for (size_t n = 0; n < tokens.size(); ++n) {
      text += (n > 0 ? " " : "") + tokens[n];
    }
    return text;
  }
  for (const DecodeStep& step : steps) {
    std::visit(Decode{tokens}, step);
  }
  return together(tokens);
}

}  // namespace pare
