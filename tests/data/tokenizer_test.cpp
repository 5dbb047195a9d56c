#include "pare/data/tokenizer.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>

#include "pare/data/text_tokens.h"
#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;
using nlohmann::json;
using Ids = std::vector<TokenId>;

namespace {

// Letters, and three merges of them.
json small_bpe() {
  json vocab;
  for (const char* token : {"<unk>", "a", "b", "c", "▁", "ab", "abc", "bc", "▁a"}) {
    vocab[token] = vocab.size();
  }
  return {{"model",
           {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"b c", "a b", "a bc", "▁ a"}}, {"unk_token", "<unk>"}}}};
}

Tokenizer made(const TemporaryFolder& folder, const json& file) {
  return open_tokenizer(folder.write("tokenizer.json", file.dump()));
}

std::string refused(const TemporaryFolder& folder, const json& file) {
  return message_of<InputError>([&] { made(folder, file); });
}

// Byte-pair encoding as its definition has it: the pair of the lowest rank, the first of equals, again and again.
Ids plain_bpe(Ids word, const std::vector<BpeMerge>& merges) {
  while (true) {
    const BpeMerge* best = nullptr;
    size_t place = 0;
    for (size_t n = 0; n + 1 < word.size(); ++n) {
      for (const BpeMerge& merge : merges) {
        if (merge.left == word[n] && merge.right == word[n + 1] && (best == nullptr || merge.rank < best->rank)) {
          best = &merge;
          place = n;
        }
      }
    }
    if (best == nullptr) {
      return word;
    }
    word[place] = best->joined;
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

std::string score_bytes(float score, std::string_view text) {
  const int32_t length = static_cast<int32_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&score), 4) +
         std::string(reinterpret_cast<const char*>(&length), 4) + std::string(text);
}

std::string llama2c_file(const std::vector<std::pair<float, std::string>>& words) {
  const int32_t longest = 6;
  std::string bytes(reinterpret_cast<const char*>(&longest), 4);
  for (const char* token : {"<unk>", "\n<s>\n", "\n</s>\n"}) {
    bytes += score_bytes(0, token);
  }
  for (int byte = 0; byte < 256; ++byte) {
    bytes += score_bytes(0, fmt::format("<0x{:02X}>", byte));
  }
  for (const auto& [score, text] : words) {
    bytes += score_bytes(score, text);
  }
  return bytes;
}

}  // namespace

TEST_CASE("merges go by rank, not by place") {
  TemporaryFolder folder;
  Tokenizer tokenizer = made(folder, small_bpe());
  CHECK(tokenizer.encode("abc") == Ids{6});  // b c first, then a bc
  CHECK(tokenizer.encode("ab") == Ids{5});
  CHECK(tokenizer.encode("aab") == Ids{1, 5});
  CHECK(tokenizer.encode("axxb") == Ids{1, 0, 0, 2});
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.decode({6, 1}) == "abc a");  // without a decoder, words
  CHECK(contains(message_of<InputError>([&] { tokenizer.decode({99}); }), "99"));
}

TEST_CASE("long and short words are merged alike, and as the definition has it") {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    Vocabulary vocabulary;
    std::vector<std::string> tokens = {"a", "b", "c"};
    for (size_t n = 0; n < tokens.size(); ++n) {
      vocabulary.add(tokens[n], static_cast<TokenId>(n));
    }
    std::vector<BpeMerge> merges;
    for (int64_t rank = 0; rank < 12; ++rank) {
      const TokenId left = static_cast<TokenId>(random() % tokens.size());
      const TokenId right = static_cast<TokenId>(random() % tokens.size());
      const std::string both = tokens[left] + tokens[right];
      if (both.size() < 12 && vocabulary.add(both, static_cast<TokenId>(tokens.size()))) {
        merges.push_back({left, right, static_cast<TokenId>(tokens.size()), rank / 2});  // some ranks are equal
        tokens.push_back(both);
      }
    }
    BpeModel model(vocabulary, merges, {}, "test");
    for (const size_t length : {2, 7, 47, 48, 49, 50, 300}) {
      std::string word;
      Ids letters;
      for (size_t n = 0; n < length; ++n) {
        letters.push_back(static_cast<TokenId>(random() % 3));
        word += tokens[letters.back()];
      }
      Ids ids;
      model.append_tokens(word, ids);
      model.append_tokens(word, ids);  // the second time from memory
      const Ids expected = plain_bpe(letters, merges);
      REQUIRE(Ids(ids.begin(), ids.begin() + std::ssize(expected)) == expected);
      REQUIRE(Ids(ids.begin() + std::ssize(expected), ids.end()) == expected);
    }
  }
}

TEST_CASE("a word of any length has the tokens of its definition, whether it falls into parts or not") {
  std::mt19937 random(3);
  Vocabulary vocabulary;
  const std::string letters = "abcdefg";
  for (size_t n = 0; n < letters.size(); ++n) {
    vocabulary.add(letters.substr(n, 1), static_cast<TokenId>(n));
  }
  std::vector<BpeMerge> merges;
  std::vector<std::string> texts(letters.size());
  for (size_t n = 0; n < letters.size(); ++n) {
    texts[n] = letters[n];
  }
  while (merges.size() < 12) {  // in no order: a token may be the part of one that comes before it
    const size_t left = random() % texts.size(), right = random() % texts.size();
    const std::string joined = texts[left] + texts[right];
    if (joined.size() < 7 && vocabulary.add(joined, static_cast<TokenId>(texts.size()))) {
      merges.push_back({static_cast<TokenId>(left), static_cast<TokenId>(right), static_cast<TokenId>(texts.size()),
                        static_cast<int64_t>(random() % 1000)});
      texts.push_back(joined);
    }
  }
  BpeModel model(vocabulary, merges, {}, "test");
  std::string word;
  Ids symbols;
  for (int n = 0; n < 4200; ++n) {
    symbols.push_back(static_cast<TokenId>(random() % letters.size()));
    word += letters[symbols.back()];
  }
  Ids found;
  model.append_tokens(word, found);
  CHECK(found == plain_bpe(symbols, merges));
  int64_t cuts = 0;
  for (size_t at = 1; at < 200; ++at) {  // what is said of cuts is so
    if (model.may_cut_between(word.substr(at - 1, 1), word.substr(at, 1))) {
      Ids parted;
      model.append_tokens(word.substr(0, at), parted);
      model.append_tokens(word.substr(at, 300), parted);
      const std::ptrdiff_t whole = static_cast<std::ptrdiff_t>(at) + 300;
      CHECK(parted == plain_bpe({symbols.begin(), symbols.begin() + whole}, merges));
      ++cuts;
    }
  }
  CHECK(cuts > 10);
}

TEST_CASE("a word without end is refused, not merged in memory without end") {
  const TemporaryFolder folder;
  json file = small_bpe();
  file["model"]["merges"].push_back("a a");
  file["model"]["vocab"]["aa"] = 20;
  Tokenizer tokenizer = made(folder, file);
  const std::string word((std::size_t{1} << 23) + 1, 'a');
  const std::string message = message_of<InputError>([&] { tokenizer.encode(word); });
  CHECK_MESSAGE(contains(message, "a word of more than 8,388,608 characters"), message);
  CHECK(tokenizer.encode("c" + word.substr(0, 5000) + "c").size() == 2502);
}

TEST_CASE("of one word without end no more is read than is asked for") {
  const TemporaryFolder folder;
  Tokenizer tokenizer = made(folder, small_bpe());
  std::string word;
  for (int n = 0; n < (1 << 20); ++n) {
    word += "abcac"[n % 5];  // no token has ca or ac
  }
  TextTokens text(folder.write("word", word), tokenizer);
  Ids ids;
  CHECK(text.read(ids));
  CHECK(ids.size() < word.size() / 2);
  while (text.read(ids)) {
  }
  CHECK(ids == made(folder, small_bpe()).encode(word));
}

TEST_CASE("a tokenizer of bytes: every byte is its own token, in a file that others read too") {
  const TemporaryFolder folder;
  std::string text;
  for (char32_t point = 0; point < 0x800; ++point) {
    append_utf8(text, point);
  }
  Tokenizer tokenizer = open_tokenizer(folder.write("tokenizer.json", byte_tokenizer_json(1000)));
  Ids bytes;
  for (const char byte : text) {
    bytes.push_back(static_cast<unsigned char>(byte));
  }
  CHECK(tokenizer.encode(text) == bytes);
  CHECK(tokenizer.decode(bytes) == text);
  CHECK(tokenizer.vocabulary().end() == 256);
  CHECK(reads_bytes(folder.path()));
  Ids ids;  // in pieces, whatever it is made of
  TextTokens pieces(folder.write("text", text), tokenizer, 7);
  while (pieces.read(ids)) {
  }
  CHECK(ids == bytes);
  Tokenizer narrow = open_tokenizer(folder.write("tokenizer.json", byte_tokenizer_json(128)));
  CHECK(narrow.vocabulary().end() == 128);
  CHECK(narrow.dropped() == 0);
  for (int times = 1; times < 3; ++times) {
    CHECK(narrow.encode("aé") == Ids{'a'});
    CHECK(narrow.dropped() == 2 * times);
  }
  folder.write("tokenizer.json", small_bpe().dump());
  CHECK(!reads_bytes(folder.path()));
}

TEST_CASE("a cache that was full forgets, and goes on") {
  WordCache cache;
  Ids ids;
  for (TokenId n = 0; n < 100'000; ++n) {
    const std::string word = fmt::format("word{}", n);
    REQUIRE(!cache.find(word, ids));
    cache.remember(word, &n, 1);
    REQUIRE(cache.find(word, ids));
    REQUIRE(ids.back() == n);
  }
  CHECK(!cache.find("word0", ids));
  CHECK(!cache.find(std::string(1000, 'x'), ids));
}

TEST_CASE("WordPiece takes the longest piece, and a whole word or nothing") {
  Vocabulary vocabulary;
  for (const char* token : {"[UNK]", "un", "##aff", "##able", "##a", "u", "ü", "##ü"}) {
    vocabulary.add(token, static_cast<TokenId>(vocabulary.size()));
  }
  WordPieceModel model(vocabulary, {.longest_word = 9}, "test");
  const auto tokens = [&](std::string_view word) {
    Ids ids;
    model.append_tokens(word, ids);
    return ids;
  };
  CHECK(tokens("unaffable") == Ids{1, 2, 3});
  CHECK(tokens("unaffx") == Ids{0});
  CHECK(tokens("unüaff") == Ids{1, 7, 2});
  CHECK(tokens("üüüüüüüüü") == Ids{6, 7, 7, 7, 7, 7, 7, 7, 7});  // nine characters, eighteen bytes
  CHECK(tokens("üüüüüüüüüü") == Ids{0});
}

TEST_CASE("added tokens are found first, the longest of those that begin together") {
  TemporaryFolder folder;
  json file = small_bpe();
  const auto token = [](int id, const char* content) {
    return json{{"id", id}, {"content", content}, {"special", true}};
  };
  file["added_tokens"] = {token(20, "<x>"), token(21, "<x><y>"), token(22, "<m>"), token(23, "cab")};
  file["added_tokens"][2]["lstrip"] = file["added_tokens"][2]["rstrip"] = true;
  file["added_tokens"][3]["single_word"] = true;
  Tokenizer tokenizer = made(folder, file);
  CHECK(tokenizer.encode("a<x>b<x><y>") == Ids{1, 20, 2, 21});
  CHECK(tokenizer.encode("a \n<m> \tb") == Ids{1, 22, 2});
  CHECK(tokenizer.encode("<m> <m>") == Ids{22, 22});
  CHECK(tokenizer.encode("cab,cabc") == Ids{23, 0, 3, 6});
  CHECK(tokenizer.decode({1, 20, 2}) == "a b");
  CHECK(tokenizer.decode({1, 20, 2}, false) == "a <x> b");
  CHECK(tokenizer.id_of("<x>") == 20);
  file["normalizer"] = {{"type", "NFKC"}};
  file["added_tokens"] = {{{"id", 20}, {"content", "ﬀ"}, {"normalized", true}}};
  Tokenizer other = made(folder, file);
  CHECK(other.encode("aﬀff") == Ids{1, 20, 20});
  CHECK(other.decode({20}) == "ff");
}

TEST_CASE("llama2.c: the pair of the highest score, bytes for what is unknown, and a space before the text") {
  TemporaryFolder folder;
  // "abc" could be ab+c (-3) or a+bc (-2).
  const std::string bytes =
      llama2c_file({{-2, "bc"}, {-3, "ab"}, {-9, "a"}, {-9, "b"}, {-9, "c"}, {-9, " "}, {-4, " a"}, {-1, "abc"}});
  Tokenizer tokenizer = open_tokenizer(folder.write("tok9.bin", bytes));
  CHECK(open_tokenizer(folder.path()).encode("b") == Ids{264, 262});
  CHECK(tokenizer.encode("abc") == Ids{264, 266});
  CHECK(tokenizer.encode("ab") == Ids{264, 260});
  CHECK(tokenizer.encode("é") == Ids{264, 0xC3 + 3, 0xA9 + 3});
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.with_special({261}) == Ids{1, 261});
  CHECK(tokenizer.decode({1, 264, 266, 0xC3 + 3, 0xA9 + 3, 2}) == "abcé");
  CHECK(tokenizer.decode({0xC3 + 3, 261}) == "\uFFFDa");
  for (size_t length : {0, 3, 9, 20, 1000}) {
    CHECK(!message_of<InputError>([&] { open_tokenizer(folder.write("tok.bin", bytes.substr(0, length))); }).empty());
  }
  CHECK(contains(message_of<InputError>([&] { open_tokenizer(folder.path()); }), "several"));
}

TEST_CASE("tokens are put together as their decoder has it") {
  const auto text = [](std::vector<std::string> tokens, DecodeStep step) { return decoded(std::move(tokens), {step}); };
  CHECK(text({"▁▁a▁c", "▁b"}, DecodeSpaces{"▁", true}) == "ac b");
  CHECK(text({"▁▁a", "▁b"}, DecodeSpaces{"▁", false}) == "  a b");
  CHECK(text({"a", "##b", "c", ".", "do", "n't"}, DecodeWordPieces{}) == "ab c. don't");
  CHECK(text({"a", "##b", "."}, DecodeWordPieces{.cleanup = false}) == "ab .");
  CHECK(text({"ab</w>", "c", "d</w>"}, DecodeSuffix{"</w>"}) == "ab cd");
  CHECK(text({"Ã", "©Ġx", "<字>", "Ã"}, DecodeVisibleBytes{}) == "é x<字>\uFFFD");
  CHECK(text({"<0xC3>", "<0xA9>", "x", "<0xC3>", "<0x41>"}, DecodeByteTokens{}) == "éx\uFFFD\uFFFD");
  CHECK(text({"  a  "}, DecodeStrip{" ", 1, 3}) == " a");
}

TEST_CASE("damaged and unknown tokenizers are refused, by name") {
  TemporaryFolder folder;
  json file = small_bpe();
  CHECK(contains(refused(folder, {{"model", {{"type", "Unigram"}}}}), "'Unigram' is not supported; these are: BPE"));
  CHECK(contains(refused(folder, json::array()), "no 'model'"));
  CHECK(contains(message_of<InputError>([&] { open_tokenizer(folder.write("tokenizer.json", R"({"model": {)")); }),
                 "JSON"));
  const auto with = [&](const std::string& path, const json& value) {
    json changed = file;
    changed[json::json_pointer(path)] = value;
    return refused(folder, changed);
  };
  CHECK(contains(with("/normalizer", {{"type", "Precompiled"}}), "normalizer of type 'Precompiled'"));
  CHECK(contains(with("/pre_tokenizer", {{"type", "UnicodeScripts"}}), "'UnicodeScripts'"));
  CHECK(contains(with("/post_processor", {{"type", "Odd"}}), "'Odd'"));
  CHECK(contains(with("/decoder", {{"type", "CTC"}}), "'CTC'"));
  CHECK(contains(with("/model/dropout", 0.1), "dropout is 0.1"));
  CHECK(contains(with("/model/vocab/a", -1), "the id of 'a' is -1"));
  CHECK(contains(with("/model/vocab/a", 2), "two tokens have the id 2"));
  CHECK(contains(with("/model/vocab/a", 1e18), "expected a token id"));
  CHECK(contains(with("/model/vocab", json::array()), "model.vocab is array"));
  CHECK(contains(with("/model/merges/0", "a"), "merge 0 is 'a'"));
  CHECK(contains(with("/model/merges/0", "a z"), "needs the token 'z'"));
  CHECK(contains(with("/model/merges/0", 5), "merge 0 is number"));
  CHECK(contains(with("/model/merges", 5), "model.merges is number"));
  CHECK(contains(with("/model/unk_token", "<none>"), "'<none>'"));
  CHECK(contains(with("/model/fuse_unk", "yes"), "fuse_unk is string"));
  CHECK(contains(with("/added_tokens", 3), "added_tokens is number"));
  CHECK(
      contains(with("/added_tokens", {{{"id", 7}, {"content", "a"}}}), "has the id 7, but the vocabulary has it as 1"));
  CHECK(contains(with("/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}}), "empty"));
  CHECK(contains(with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "a("}}}, {"behavior", "Isolated"}}),
                 "without its"));
  CHECK(contains(with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Odd"}}),
                 "'Odd'"));
  CHECK(contains(with("/post_processor", {{"type", "TemplateProcessing"}, {"single", json::array()}}), "no place"));
  CHECK(contains(message_of<InputError>([&] { open_tokenizer(folder.path() / "nothing"); }), "there is no tokenizer"));
  CHECK(contains(message_of<InputError>([&] { open_tokenizer(folder.write("tokenizer.model", "x")); }),
                 "save_pretrained"));
  CHECK(contains(message_of<InputError>([&] { open_tokenizer(folder.write("vocab.txt", "[UNK]\na\nb\n")); }),
                 "continues a word"));
  CHECK(contains(message_of<InputError>([&] { open_tokenizer(folder.write("vocab.txt", "[UNK]\n##a\n##a\n")); }),
                 "line 3 repeats"));
  TemporaryFolder empty;
  CHECK(contains(message_of<InputError>([&] { open_tokenizer(empty.path()); }), "--tokenizer"));
}

TEST_CASE("a tokenizer that makes too much of a text is refused before it does") {
  TemporaryFolder folder;
  const json doubling = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  for (const size_t steps : {4, 60}) {
    json file = small_bpe();
    file["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::vector<json>(steps, doubling)}};
    Tokenizer tokenizer = made(folder, file.at("normalizer").at("normalizers").size() == 4 ? file : small_bpe());
    if (steps == 4) {
      CHECK(tokenizer.encode("ab").size() >= 8);  // what somebody may want
      continue;
    }
    // The file itself is asked for its cuts, which already takes it too far.
    CHECK(contains(refused(folder, file), "makes more than"));
    CHECK(contains(refused(folder, file), "tokenizer.json"));
  }
  json pattern = small_bpe();
  const json by_pattern = {{"type", "Replace"}, {"pattern", {{"Regex", "[a-z]"}}}, {"content", std::string(2000, 'a')}};
  pattern["normalizer"] = {{"type", "Sequence"}, {"normalizers", {by_pattern, by_pattern, by_pattern}}};
  CHECK(contains(refused(folder, pattern), "makes more than"));
  json decoding = small_bpe();
  decoding["decoder"] = {{"type", "Sequence"}, {"decoders", std::vector<json>(60, doubling)}};
  Tokenizer tokenizer = made(folder, decoding);
  CHECK(contains(message_of<InputError>([&] { tokenizer.decode(tokenizer.encode("a")); }), "of one token"));
}

TEST_CASE("a text in pieces gives the tokens of the whole, and sequences fit the context") {
  TemporaryFolder folder;
  json file = small_bpe();
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "Prepend"}, {"prepend", "▁"}},
                          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}};
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"SpecialToken", {{"id", "<unk>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                            {"special_tokens", {{"<unk>", {{"ids", {0}}}}}}};
  Tokenizer tokenizer = made(folder, file);
  std::string text;
  for (int n = 0; n < 500; ++n) {
    text += n % 7 == 0 ? "cab " : n % 5 == 0 ? "abc\n" : "a b";
  }
  const Ids whole = tokenizer.encode(text);
  const std::filesystem::path path = folder.write("text", text);
  for (const size_t piece : {1, 10, 100, 10'000}) {
    Ids ids;
    size_t reads = 0;
    for (TextTokens tokens(path, tokenizer, piece); tokens.read(ids); ++reads) {
    }
    CHECK(ids == whole);
    CHECK((reads > 2) == (piece < 1000));  // the last cut, and the end
  }
  const TextSequences split = read_sequences(path, tokenizer, 10, 1'000'000);
  Ids joined;
  for (const Ids& sequence : split.sequences) {
    CHECK(sequence.size() <= 10);
    CHECK(sequence.front() == 0);
    joined.insert(joined.end(), sequence.begin() + 1, sequence.end());
  }
  CHECK(joined == whole);
  CHECK(split.tokens == std::ssize(whole));
  CHECK(split.whole);
  const TextSequences some = read_sequences(path, tokenizer, 10, 20);
  CHECK(some.tokens == 20);
  CHECK(some.sequences.size() == 3);
  CHECK(!some.whole);
  CHECK(contains(message_of<InputError>([&] { read_sequences(folder.write("none", ""), tokenizer, 10, 100); }),
                 "no tokens"));
  CHECK(contains(message_of<InputError>([&] { read_sequences(path, tokenizer, 1, 100); }), "no room"));
}

TEST_CASE("text is cut only where nothing lies across") {
  TemporaryFolder folder;
  json file = small_bpe();
  Tokenizer free = made(folder, file);
  CHECK(free.last_cut("ab ab") == 0);   // one word, and no token for a space
  CHECK(free.last_cut("ab cab") == 4);  // but none with ca either
  file["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  Tokenizer words = made(folder, file);
  CHECK(words.last_cut("ab cab") == 2);
  CHECK(words.last_cut("ab  cab") == 0);
  CHECK(words.last_cut("ab.\ncab!") == 4);
  file["added_tokens"] = {{{"id", 30}, {"content", "ab cab"}}};
  CHECK(made(folder, file).last_cut("ab cab") == 0);
  // A token that is looked for where spaces are other characters already.
  file["added_tokens"] = {{{"id", 30}, {"content", "b▁c"}, {"normalized", true}}};
  CHECK(made(folder, file).last_cut("ab cab") == 2);
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  CHECK(made(folder, file).last_cut("ab cab") == 0);
  // A token that joins across lines, in a text that is one word.
  file = small_bpe();
  file["model"]["vocab"]["\n"] = 9;
  file["model"]["vocab"]["\na"] = 10;
  CHECK(made(folder, file).last_cut("ab\nab") == 3);  // no merge makes it
  file["model"]["merges"].push_back("\n a");
  CHECK(made(folder, file).last_cut("ab\nab") == 2);
  file["model"]["vocab"]["b\n"] = 11;
  file["model"]["merges"].push_back("b \n");
  CHECK(made(folder, file).last_cut("ab\nab") == 0);
}
