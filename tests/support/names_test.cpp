#include "pare/support/names.h"

#include <doctest/doctest.h>
#include <fnmatch.h>

#include <nlohmann/json.hpp>
#include <random>

#include "pare/support/numbers.h"

using namespace pare;

TEST_CASE("the nearest word is a likely misspelling or nothing") {
  std::vector<std::string> commands = {"audit", "rewrite", "verify", "init"};
  CHECK(nearest("adit", commands) == "audit");
  CHECK(nearest("reiwrte", commands) == "rewrite");
  CHECK(nearest("verfiy", commands) == "verify");
  CHECK(nearest("banana", commands).empty());
  CHECK(nearest("x", commands).empty());
  CHECK(nearest("", commands).empty());
  CHECK(nearest("audit", {}).empty());
}

TEST_CASE("untrusted text is made harmless for a terminal") {
  CHECK(quote("blocks.0.weight") == "'blocks.0.weight'");
  CHECK(quote("schön") == "'schön'");
  CHECK(quote("a\x1b[31m\n\x7f") == "'a\\x1b[31m\\x0a\\x7f'");
  CHECK(quote("\xff\xc3") == "'\\xff\\xc3'");
  CHECK(quote(std::string_view("a\0b", 3)) == "'a\\x00b'");
  CHECK(quote("\xc2\x9b"
              "31m") == "'\\xc2\\x9b31m'");
  CHECK(escaped(std::string(1'000'000, 'a')).size() < 500);
}

TEST_CASE("well-formed UTF-8 is what the JSON library can write") {
  for (int lead = 0x80; lead < 0x100; ++lead) {
    for (int second = 0; second < 0x100; ++second) {
      for (const std::string_view rest : {"", "\x80", "\xBF", "\x80\xBF", "\xBF\x80", "\x80\x80\x80"}) {
        std::string text = {static_cast<char>(lead), static_cast<char>(second)};
        text += rest;
        bool written = true;
        try {
          nlohmann::json(text).dump();
        } catch (const nlohmann::json::type_error&) {
          written = false;
        }
        bool broken = false;
        for (std::string_view left = text; !left.empty() && !broken;) {
          const size_t length = utf8_length(left);
          broken = length == 0;
          left.remove_prefix(length);
        }
        CHECK_MESSAGE(written == !broken, escaped(text));
      }
    }
  }
}

TEST_CASE("numbers are written for people") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(33'554'432) == "33,554,432");
  CHECK(with_commas(-1'000) == "-1,000");
  CHECK(with_commas(-999) == "-999");
  CHECK(with_commas(INT64_MIN) == "-9,223,372,036,854,775,808");
  CHECK(human_count(999) == "999");
  CHECK(human_count(1'500) == "1.5K");
  CHECK(human_count(124'439'808) == "124M");
  CHECK(human_count(6'857'302'016) == "6.9B");
  CHECK(human_count(999'999) == "1M");
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(13'700'000'000) == "13.7 GB");
  CHECK(human_bytes(4'000) == "4 KB");
  CHECK(human_time(42.4) == "42 s");
  CHECK(human_time(185) == "3 min 05 s");
  CHECK(human_time(7620) == "2 h 07 min");
  CHECK(human_time(1e300) == "a very long time");
}

TEST_CASE("globs match whole names") {
  CHECK(glob_match("*", ""));
  CHECK(glob_match("blocks.*.scores", "blocks.3.attention.scores"));
  CHECK_FALSE(glob_match("blocks.*.scores", "blocks.3.attention.scores2"));
  CHECK(glob_match("residual.?", "residual.3"));
  CHECK_FALSE(glob_match("residual.?", "residual.12"));
  CHECK(glob_match("h.[0-2].w", "h.1.w"));
  CHECK_FALSE(glob_match("h.[!0-2].w", "h.1.w"));
  CHECK(glob_match("a[", "a["));
  CHECK(glob_match("\\*", "*"));
  CHECK_FALSE(glob_match("\\*", "a"));
  CHECK_FALSE(glob_match(std::string(50, '*') + "b", std::string(10'000, 'a')));
}

TEST_CASE("globs agree with the system's fnmatch") {
  std::mt19937 random(7);
  auto word = [&](std::string_view alphabet, size_t longest) {
    std::string text;
    for (size_t length = random() % (longest + 1); length > 0; --length) {
      text += alphabet[random() % alphabet.size()];
    }
    return text;
  };
  int matches = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string pattern = word("aab?**b[a]!-", 8), name = word("ab", 6);
    CAPTURE(pattern);
    CAPTURE(name);
    bool expected = ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    matches += expected ? 1 : 0;
    REQUIRE(glob_match(pattern, name) == expected);
  }
  CHECK(matches > 1'000);
}
