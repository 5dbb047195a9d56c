#include "pare/data/decoder.h"

#include <fmt/format.h>

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

// Where a text ends, if it grows, in what may become `from`: the place where that begins.
size_t begin_of_unfinished(std::string_view text, std::string_view from) {
  const size_t most = std::min(text.size(), from.size() - 1);
  for (size_t at = text.size() - most; at < text.size(); ++at) {
    if (from.starts_with(text.substr(at))) {
      return at;
    }
  }
  return text.size();
}

// In a text that grows, without its end where that may become `from`.
void replace_all(std::string& text, const std::string& from, const std::string& to, bool grows) {
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
  const size_t end =
      grows && !from.empty() ? at + begin_of_unfinished(std::string_view(text).substr(at), from) : text.size();
  text = result.append(text, at, end - at);
}

std::string together(const Pieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) {
    text += piece;
  }
  return text;
}

// In the order in which the peer does it: one may make another.
void clean_up(std::string& text, bool grows) {
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
    replace_all(text, from, to, grows);
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
  const TextEnd end;
  bool grows = false;  // the pieces have become one, which further tokens make longer

  void operator()(const DecodeVisibleBytes&) {
    if (grows) {  // whether it is bytes, its end decides
      pieces.clear();
    }
    std::string bytes;
    for (const std::string& piece : pieces) {
      bytes += bytes_of_visible(piece).value_or(piece);  // added tokens are text already
    }
    if (end == TextEnd::open) {
      bytes.resize(bytes.size() - unfinished_utf8(bytes));
    }
    become_one(repaired_utf8(bytes));
  }

  void operator()(const DecodeWordPieces& step) {
    for (size_t n = 0; n < pieces.size(); ++n) {
      if (n > 0) {
        pieces[n] = pieces[n].starts_with(step.prefix) ? pieces[n].substr(step.prefix.size()) : " " + pieces[n];
      }
      if (step.cleanup) {
        clean_up(pieces[n], grows);
      }
    }
  }

  void operator()(const DecodeSpaces& step) {
    for (size_t n = 0; n < pieces.size(); ++n) {
      replace_all(pieces[n], step.replacement, n == 0 && step.drop_first ? "" : " ", grows);
    }
  }

  void operator()(const DecodeSuffix& step) {
    for (size_t n = 0; n < pieces.size(); ++n) {
      replace_all(pieces[n], step.suffix, n + 1 == pieces.size() ? "" : " ", grows);
    }
  }

  void operator()(const DecodeReplace& step) {
    for (std::string& piece : pieces) {
      replace_all(piece, step.from, step.to, grows);
    }
  }

  // A run of bytes that is no text becomes one U+FFFD for each byte, so that what follows decides about all of it.
  void operator()(const DecodeByteTokens&) {
    if (grows) {
      pieces.clear();
    }
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
    if (end == TextEnd::closed) {
      end_run();
    }
    pieces = std::move(result);
  }

  void operator()(const DecodeFuse&) { become_one(together(pieces)); }

  void operator()(const DecodeStrip& step) {
    for (std::string& piece : pieces) {
      for (size_t n = 0; n < step.start && piece.starts_with(step.character); ++n) {
        piece.erase(0, step.character.size());
      }
      for (size_t n = 0; n < step.stop && piece.ends_with(step.character); ++n) {
        piece.resize(piece.size() - step.character.size());
      }
    }
  }

 private:
  void become_one(std::string text) {
    pieces = {std::move(text)};
    grows = end == TextEnd::open;
  }
};

}  // namespace

std::string decoded(std::vector<std::string> tokens, const std::vector<DecodeStep>& steps, TextEnd end) {
  if (steps.empty()) {
    std::string text;
    for (size_t n = 0; n < tokens.size(); ++n) {
      text += (n > 0 ? " " : "") + tokens[n];
    }
    return text;
  }
  Decode decode{tokens, end};
  for (const DecodeStep& step : steps) {
    std::visit(decode, step);
  }
  return together(tokens);
}

}  // namespace pare
