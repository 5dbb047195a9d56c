// The vectors of FIPS 180-2, appendix B, and what hashlib says of others. Built for both implementations.
#include "pare/support/sha256.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;

namespace {

std::string hash_in_pieces(const std::string& text, size_t piece) {
  Sha256 hash;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  for (size_t at = 0; at < bytes.size(); at += piece) {
    hash.update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
  }
  return hash.hex();
}

const std::vector<std::pair<std::string, std::string>> vectors = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {std::string(1000000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    // Around the length where the padding needs a block of its own.
    {std::string(55, 'x'), "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072"},
    {std::string(56, 'x'), "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e"},
    {std::string(63, 'x'), "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2"},
    {std::string(64, 'x'), "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c"},
};

}  // namespace

TEST_CASE("known vectors, in pieces of any size") {
  for (const auto& [text, expected] : vectors) {
    for (const size_t piece : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{1} << 20}) {
      CAPTURE(text.size());
      CAPTURE(piece);
      CHECK(hash_in_pieces(text, piece) == expected);
    }
  }
}

TEST_CASE("a file") {
  const TemporaryFolder folder;
  CHECK(sha256_of_file(folder.write("abc", "abc")) == vectors[1].second);
  CHECK(sha256_of_file(folder.write("empty", "")) == vectors[0].second);
  // Longer than what is read at once.
  CHECK(sha256_of_file(folder.write("long", std::string((4 << 20) + 1, 'y'))) ==
        "f902843f09a7281b31900e25e262d5dbb97d1c9acf53ddc02d41b9a7c12d1549");
  CHECK(contains(message_of<InputError>([&] { sha256_of_file(folder.path() / "missing"); }), "missing"));
}
