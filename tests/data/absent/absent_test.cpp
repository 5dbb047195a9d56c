// A build without PCRE2, zlib, liblzma, libjpeg and libpng says what to install.

#include <doctest/doctest.h>

#include "pare/data/image.h"
#include "pare/data/matcher.h"
#include "pare/data/text_file.h"
#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;

TEST_CASE("what needs a library that is missing is refused, with its name") {
  TemporaryFolder folder;
  const auto file = std::make_shared<const InputFile>(folder.write("text", "x"));
  const std::string pattern = message_of<InputError>([] { ByteMatcher("[x]", "tokenizer.json: its pattern"); });
  CHECK(contains(pattern, "tokenizer.json: its pattern splits text"));
  CHECK(contains(pattern, "libpcre2-dev"));
  CHECK(contains(message_of<InputError>([&] { open_gzip(file); }), "zlib1g-dev"));
  CHECK(contains(message_of<InputError>([&] { open_xz(file); }), "liblzma-dev"));
  CHECK(contains(message_of<InputError>([] { decode_jpeg({}, {}, {}, "cat.jpg"); }), "libjpeg-dev"));
  CHECK(contains(message_of<InputError>([] { decode_png({}, {}, {}, "cat.png"); }), "libpng-dev"));
}
