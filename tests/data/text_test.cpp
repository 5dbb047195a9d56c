#include <doctest/doctest.h>

#include <random>

#include "pare/data/text_file.h"
#include "pare/data/unicode.h"
#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;

namespace {

std::string all_of(const std::filesystem::path& path, size_t bytes) {
  TextFile file(path);
  std::string text;
  while (file.read(text, bytes)) {
  }
  return text;
}

}  // namespace

TEST_CASE("UTF-8 is what Unicode's table of byte sequences allows") {
  CHECK(!invalid_utf8("plain, schön, 字, \xF0\x9F\x91\x8D"));
  CHECK(invalid_utf8("ab\x80") == 2);
  CHECK(invalid_utf8("12345678\xC0\x80") == 8);      // overlong
  CHECK(invalid_utf8("\xE0\x9F\xBF") == 0);          // overlong
  CHECK(invalid_utf8("\xF0\x8F\xBF\xBF") == 0);      // overlong
  CHECK(invalid_utf8("x\xED\xA0\x80") == 1);         // a surrogate
  CHECK(!invalid_utf8("\xED\x9F\xBF\xEE\x80\x80"));  // its neighbours
  CHECK(invalid_utf8("\xF4\x90\x80\x80") == 0);      // above the last character
  CHECK(!invalid_utf8("\xF4\x8F\xBF\xBF"));
  CHECK(invalid_utf8("a\xE5\xAD") == 1);
  CHECK(!invalid_utf8("a\xE5\xAD", true));
  CHECK(unfinished_utf8("a\xE5\xAD") == 2);
  CHECK(unfinished_utf8("a\xE5\xAD\x97") == 0);
  CHECK(repaired_utf8("a\xE5\xAD"
                      "b\xFF\xC3\xA9") == "a\uFFFDb\uFFFD\u00E9");
}

TEST_CASE("every character survives being written and read") {
  for (char32_t c = 0; c <= highest_character; c = c == 0xD7FF ? 0xE000 : c + 1) {
    const std::string text = utf8_of(c);
    const Utf8Character read = character_at(text, 0);
    REQUIRE(read.point == c);
    REQUIRE(read.bytes == text.size());
    REQUIRE(!invalid_utf8(text));
    REQUIRE(character_before("x" + text, text.size() + 1) == c);
  }
}

TEST_CASE("normal forms: marks are ordered, Hangul computed, and exclusions stay apart") {
  CHECK(normalized("caf\u00E9", NormalForm::nfd) == "cafe\u0301");
  CHECK(normalized("cafe\u0301", NormalForm::nfc) == "caf\u00E9");
  CHECK(normalized("q\u0307\u0323", NormalForm::nfd) == "q\u0323\u0307");
  CHECK(normalized("a\u0327\u0301", NormalForm::nfc) == "\u00E1\u0327");
  CHECK(normalized("a\u0301\u0301", NormalForm::nfc) == "\u00E1\u0301");  // the second is blocked
  CHECK(normalized("\u1112\u1161\u11AB", NormalForm::nfc) == "\uD55C");
  CHECK(normalized("\uD55C", NormalForm::nfd) == "\u1112\u1161\u11AB");
  CHECK(normalized("\u0958", NormalForm::nfc) == "\u0915\u093C");  // excluded from composition
  CHECK(normalized("\uFB01\u00BD", NormalForm::nfkc) == "fi1\u20442");
  CHECK(normalized("\uFB01", NormalForm::nfc) == "\uFB01");
  CHECK(normalized("\u1E9B\u0323", NormalForm::nfkd) == "s\u0323\u0307");
}

TEST_CASE("characters are what the table says, where versions and libraries differ") {
  const UnicodeTable& table = UnicodeTable::get();
  CHECK(is_letter(U'字'));
  CHECK(is_letter(0x1C89));                                  // Unicode 16
  CHECK(!table.is(0x61D, CharacterFlag::bert_punctuation));  // Unicode 14, and BERT's classes are of 8
  CHECK(table.is(U'$', CharacterFlag::bert_punctuation));
  CHECK((table.category_bit(U'$') & UnicodeTable::categories_named("Punctuation")) == 0);
  CHECK(table.is(0x200D, CharacterFlag::rust_word));
  CHECK(!table.is(0x200D, CharacterFlag::word));
  CHECK(!table.is(U'²', CharacterFlag::rust_word));
  CHECK(table.is(U'²', CharacterFlag::word));
  CHECK(table.is(U'a', CharacterFlag::rust_word));
  CHECK(!table.is(0x180E, CharacterFlag::white));
  std::string lower;
  table.append_lower(0x130, lower);
  CHECK(lower == "i\u0307");
  CHECK(UnicodeTable::categories_named("Lx") == 0);
}

TEST_CASE("a normal form is its own, whatever the text") {
  std::mt19937 random(5);
  const std::u32string drawn = U"ae\u0301\u0323\u0327\u1100\u1161\u11A8\uAC00\u0345\u0958\u093C \u00C5\u212B\uFB01";
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int n = 0; n < 8; ++n) {
      append_utf8(text, drawn[random() % drawn.size()]);
    }
    const std::string composed = normalized(text, NormalForm::nfc), apart = normalized(text, NormalForm::nfd);
    REQUIRE(normalized(composed, NormalForm::nfc) == composed);
    REQUIRE(normalized(apart, NormalForm::nfd) == apart);
    REQUIRE(normalized(composed, NormalForm::nfd) == apart);
    REQUIRE(normalized(apart, NormalForm::nfc) == composed);
  }
}

TEST_CASE("text files: pieces end with whole characters, and wrong bytes have a place") {
  TemporaryFolder folder;
  const std::string text = "schön 字 \xF0\x9F\x91\x8D und mehr";
  const std::filesystem::path path = folder.write("text", text);
  for (size_t bytes = 1; bytes < 40; ++bytes) {
    REQUIRE(all_of(path, bytes) == text);
  }
  CHECK(all_of(folder.write("empty", ""), 10).empty());
  std::string wrong(3000, 'x');
  wrong[2500] = '\xFF';
  for (size_t bytes : {7, 1024, 5000}) {
    const std::string said = message_of<InputError>([&] { all_of(folder.write("wrong", wrong), bytes); });
    CHECK(contains(said, "0xFF at 2,500"));
  }
  CHECK(contains(message_of<InputError>([&] { all_of(folder.write("cut", "abc\xE5\xAD"), 4); }), "0xE5 at 3"));
  CHECK(contains(message_of<InputError>([&] { all_of(folder.path() / "none", 4); }), "none"));
}

TEST_CASE("damaged and cut archives are said to be so") {
  TemporaryFolder folder;
  const std::string gzip = std::string("\x1F\x8B\x08\x00\x00\x00\x00\x00\x00\x03", 10);
  CHECK(contains(message_of<InputError>([&] { all_of(folder.write("a.gz", gzip), 100); }), "incomplete download"));
  CHECK(contains(message_of<InputError>([&] { all_of(folder.write("b.gz", gzip + "\xFF\xFF\xFF"), 100); }), "damaged"));
  const std::string xz(
      "\xFD"
      "7zXZ\0",
      6);
  CHECK(contains(message_of<InputError>([&] { all_of(folder.write("a.xz", xz), 100); }), "a.xz"));
  CHECK(contains(message_of<InputError>([&] { all_of(folder.write("b.bz2", "BZh9xyz"), 100); }), "bzip2"));
  CHECK(contains(message_of<InputError>([&] {
                   all_of(folder.write("lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n"), 100);
                 }),
                 "Git LFS"));
}

TEST_CASE("other encodings of Unicode are refused by name, also without a mark") {
  TemporaryFolder folder;
  using namespace std::string_literals;
  const std::string line = "The cat sat on the mat, and thought of \u00E9.\n";
  const auto encoded = [&line](size_t width, bool little) {
    std::string bytes;
    for (const char32_t c : characters_of(line)) {
      for (size_t i = 0; i < width; ++i) {
        bytes.push_back(static_cast<char>(c >> (8 * (little ? i : width - 1 - i)) & 0xFF));
      }
    }
    return bytes;
  };
  const auto said = [&folder](const std::string& bytes) {
    return message_of<InputError>([&] { all_of(folder.write("text", bytes), 1000); });
  };
  CHECK(contains(said("\xFF\xFE"s + encoded(2, true)), "UTF-16LE"));
  CHECK(contains(said("\xFE\xFF"s + encoded(2, false)), "UTF-16BE"));
  CHECK(contains(said("\xFF\xFE\0\0"s + encoded(4, true)), "UTF-32LE"));
  CHECK(contains(said("\0\0\xFE\xFF"s + encoded(4, false)), "UTF-32BE"));
  CHECK(contains(said(encoded(2, true)), "iconv -f UTF-16LE -t UTF-8"));
  CHECK(contains(said(encoded(2, false)), "iconv -f UTF-16BE -t UTF-8"));
  CHECK(contains(said(encoded(4, true)), "UTF-32LE"));
  CHECK(contains(said(encoded(4, false)), "UTF-32BE"));
  // Text with a few zeros is text.
  const std::string zeros = "one\0two\0three, and so on"s;
  CHECK(all_of(folder.write("text", zeros), 1000) == zeros);
  CHECK(all_of(folder.write("text", "\0"s), 1000) == "\0"s);
}
