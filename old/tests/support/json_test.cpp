#include "pare/support/json.h"

#include <doctest/doctest.h>

#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;

namespace {

std::string refusal(std::string_view text) {
  return message_of<InputError>([&] { parse_json(text, "config.json"); });
}

std::string nested(size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

}  // namespace

TEST_CASE("valid JSON is read") {
  nlohmann::json value = parse_json(R"({"a": [1, 2.5, "x", null, true], "b": {"a": -1}})", "config.json");
  CHECK(value["a"][1] == 2.5);
  CHECK(value["b"]["a"] == -1);
}

TEST_CASE("text that is not JSON is refused with the place") {
  CHECK(contains(refusal("{\n  \"a\": ,\n}"), "config.json is not valid JSON: parse error at line 2, column 8"));
  for (std::string_view text :
       {"", " ", "{", "[1,", "{\"a\"}", "{} {}", "nul", "\"", "[1e999]", "{\"a\":1,}", "0x10"}) {
    CAPTURE(text);
    CHECK(refusal(text).starts_with("config.json"));
  }
}

TEST_CASE("nesting is limited without recursion") {
  CHECK_NOTHROW(parse_json(nested(64), "config.json"));
  CHECK(contains(refusal(nested(65)), "nested deeper than 64"));
  CHECK(contains(refusal(nested(10'000'000)), "nested deeper than 64"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) {
    objects += "{\"a\":";
  }
  CHECK(contains(refusal(objects), "nested deeper than 64"));
}

TEST_CASE("a key that appears twice is named, in any object") {
  CHECK(contains(refusal(R"({"heads": 1, "heads": 2})"), "'heads' appears twice"));
  CHECK(contains(refusal(R"({"a": [{"b": {"c": 1, "d": 2, "c": 3}}]})"), "'c' appears twice"));
  CHECK(contains(refusal("{\"a\\u0062\": 1, \"ab\": 2}"), "'ab' appears twice"));
  CHECK_NOTHROW(parse_json(R"([{"a": 1}, {"a": {"a": 2}}])", "config.json"));
}

TEST_CASE("bytes that are not UTF-8 are refused, and escaped in the message") {
  std::string message = refusal("{\"a\xff\xfe\": 1}");
  CHECK(contains(message, "UTF-8"));
  CHECK_FALSE(contains(message, "\xff"));
  CHECK(refusal(std::string("{\"a\0\": 1}", 9)).find('\0') == std::string::npos);
}

TEST_CASE("the message about a huge token stays short") {
  CHECK(refusal("[\"" + std::string(1'000'000, 'x')).size() < 1000);
}

TEST_CASE("a hundred thousand children are no problem") {
  std::string text = "{\"0\":{}";
  for (int i = 1; i < 100'000; ++i) {
    text += ",\"" + std::to_string(i) + "\":{}";
  }
  CHECK(parse_json(text + "}", "config.json").size() == 100'000);
}
