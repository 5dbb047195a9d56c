// Text to token ids, for tests/conformance/tokenizer_ids.py and benchmarks/tokenizer_speed.py.
//   tokenize encode TOKENIZER TEXT OUT [PIECE_BYTES]   ids as int32, of a file read in pieces
//   tokenize lines TOKENIZER TEXT OUT        each line by itself, with its special tokens; -1 after each
//   tokenize decode TOKENIZER IDS OUT        int32 ids in, text out; -1 ends a text, which gets a NUL after it; token
//   by token
//                                            the text must be the same
//   tokenize time TOKENIZER TEXT ROUNDS      CPU seconds of each round in memory, without reading files

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include "pare/data/text_stream.h"
#include "pare/data/text_tokens.h"
#include "pare/support/files.h"
#include "pare/support/names.h"

namespace {

void write_ids(const std::filesystem::path& path, const std::vector<pare::TokenId>& ids) {
  const std::vector<int32_t> narrow(ids.begin(), ids.end());
  pare::OutputFile(path).write(std::as_bytes(std::span(narrow)));
}

std::string read_all(const std::filesystem::path& path) {
  pare::TextFile file(path);
  std::string text;
  while (file.read(text, 1 << 20)) {
  }
  return text;
}

void encode(pare::Tokenizer& tokenizer, const char* from, const char* to, size_t piece_bytes) {
  std::vector<pare::TokenId> ids;
  for (pare::TextTokens tokens(from, tokenizer, piece_bytes); tokens.read(ids);) {
  }
  write_ids(to, ids);
}

void encode_lines(pare::Tokenizer& tokenizer, const char* from, const char* to) {
  const std::string text = read_all(from);
  std::vector<pare::TokenId> ids;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::vector<pare::TokenId> line =
        tokenizer.with_special(tokenizer.encode(std::string_view(text).substr(begin, end - begin)));
    ids.insert(ids.end(), line.begin(), line.end());
    ids.push_back(-1);
    begin = end + 1;
  }
  write_ids(to, ids);
}

std::string streamed(const pare::Tokenizer& tokenizer, const std::vector<pare::TokenId>& ids) {
  pare::TextStream stream(tokenizer, {});
  std::string text;
  for (const pare::TokenId id : ids) {
    text += stream.add(id);
  }
  return text + stream.rest();
}

void decode(pare::Tokenizer& tokenizer, const char* from, const char* to) {
  const std::string bytes = pare::read_text_file(from, 1'000'000'000);
  std::vector<int32_t> all(bytes.size() / 4);
  std::memcpy(all.data(), bytes.data(), all.size() * 4);
  std::string text;
  std::vector<pare::TokenId> ids;
  for (const int32_t id : all) {
    if (id >= 0) {
      ids.push_back(id);
      continue;
    }
    text += tokenizer.decode(ids) + '\0';
    if (streamed(tokenizer, ids) != tokenizer.decode(ids)) {
      throw std::runtime_error(fmt::format("token by token a text is {}, but as a whole {}",
                                           pare::quote(streamed(tokenizer, ids)), pare::quote(tokenizer.decode(ids))));
    }
    ids.clear();
  }
  pare::write_text_file(to, text);
}

void measure(pare::Tokenizer& tokenizer, const char* from, int rounds) {
  const std::string text = read_all(from);
  for (int round = 0; round < rounds; ++round) {
    const std::clock_t begin = std::clock();
    const size_t count = tokenizer.encode(text).size();
    fmt::print("{} {}\n", static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, count);
  }
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count < 5) {
      fmt::print(stderr, "tokenize encode|lines|decode|time TOKENIZER FILE OUT|ROUNDS\n");
      return 1;
    }
    const std::string_view what = words[1];
    pare::Tokenizer tokenizer = pare::open_tokenizer(words[2]);
    if (what == "encode") {
      encode(tokenizer, words[3], words[4], count > 5 ? std::stoul(words[5]) : pare::TextTokens::usual_piece);
    } else if (what == "lines") {
      encode_lines(tokenizer, words[3], words[4]);
    } else if (what == "decode") {
      decode(tokenizer, words[3], words[4]);
    } else {
      measure(tokenizer, words[3], std::atoi(words[4]));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
