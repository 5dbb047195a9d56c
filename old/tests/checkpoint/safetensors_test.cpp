#include "pare/checkpoint/safetensors.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;
namespace fs = std::filesystem;

namespace {

std::string length_prefix(uint64_t length) {
  return {reinterpret_cast<const char*>(&length), sizeof length};
}

std::string file_text(const std::string& header, size_t data_bytes) {
  return length_prefix(header.size()) + header + std::string(data_bytes, '\0');
}

// The refusal of a header in front of `data_bytes` bytes.
std::string refusal(const std::string& header, uint64_t data_bytes) {
  return message_of<InputError>(
      [&] { parse_safetensors_header(header, 8 + header.size() + data_bytes, "x.safetensors"); });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{" + entry("w", dtype, shape, offsets) + "}";
}

std::string file_refusal(const std::string& bytes) {
  TemporaryFolder folder;
  fs::path path = folder.write("x.safetensors", bytes);
  return message_of<InputError>([&] { SafetensorsFile file(path); });
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

TEST_CASE("a header is read: dtype, shape, place and metadata") {
  std::string header = R"({"__metadata__":{"format":"pt"},)" + entry("a", "F32", "[2,3]", "[0,24]") + "," +
                       entry("b", "BF16", "[]", "[24,26]") + "," + entry("c", "I64", "[0,5]", "[26,26]") + "}   ";
  uint64_t begin = 8 + header.size();
  SafetensorsHeader read = parse_safetensors_header(header, begin + 26, "x.safetensors");
  CHECK(read.metadata == Metadata{{"format", "pt"}});
  REQUIRE(read.tensors.size() == 3);
  CHECK(read.tensors["a"].dtype == Dtype::f32);
  CHECK(read.tensors["a"].shape == std::vector<int64_t>{2, 3});
  CHECK(read.tensors["a"].begin == begin);
  CHECK(read.tensors["b"].end == begin + 26);
  CHECK(read.tensors["b"].shape.empty());
  CHECK(read.tensors["c"].begin == read.tensors["c"].end);
}

TEST_CASE("every dtype of the format is read") {
  for (const std::string& name : dtype_names()) {
    CAPTURE(name);
    int64_t bytes = dtype_bits(*dtype_from_name(name));
    CHECK(refusal(one(name, "[8]", fmt::format("[0,{}]", bytes)), static_cast<uint64_t>(bytes)).empty());
  }
}

TEST_CASE("files that cannot be safetensors are refused by name") {
  CHECK(contains(file_refusal(""), "has 0 bytes, too few"));
  CHECK(contains(file_refusal("1234567"), "has 7 bytes, too few"));
  CHECK(contains(file_refusal(length_prefix(0)), "the header begins with ''"));
  CHECK(contains(file_refusal(length_prefix(1) + "{"), "not valid JSON"));
  CHECK(contains(file_refusal(length_prefix(3) + "{}"), "should have 3 bytes but the file has 10"));
  CHECK(contains(file_refusal(length_prefix(UINT64_MAX) + "{}"), "should have 18446744073709551615 bytes"));
  CHECK(contains(file_refusal(length_prefix(UINT64_MAX - 7) + "{}"), "should have 18446744073709551608 bytes"));
  CHECK(contains(file_refusal("PK\x03\x04 and some more of an archive"), "x.safetensors': the header should have"));
  TemporaryFolder folder;
  CHECK(contains(message_of<InputError>([&] { SafetensorsFile file(folder.path() / "no.safetensors"); }), "no such"));
  CHECK(contains(message_of<InputError>([&] { SafetensorsFile file(folder.path()); }), "is a folder"));
}

TEST_CASE("a header larger than the format allows is refused unread, in a file that is large enough") {
  TemporaryFolder folder;
  fs::path path = folder.write("x.safetensors", length_prefix(uint64_t{1} << 40) + "{}");
  fs::resize_file(path, uint64_t{1} << 41);
  CHECK(contains(message_of<InputError>([&] { SafetensorsFile file(path); }), "the format allows 100000000"));
}

TEST_CASE("a header that is not an object of tensors is refused") {
  CHECK(contains(refusal(" {}", 0), "begins with ' '"));
  CHECK(contains(refusal("[]", 0), "begins with '['"));
  CHECK(contains(refusal("{} x", 0), "not valid JSON"));
  CHECK(contains(refusal("{\"w\xff\":1}", 0), "UTF-8"));
  std::string bomb = "{\"w\":";
  CHECK(contains(refusal(bomb + std::string(1'000'000, '['), 0), "nested deeper"));
  CHECK(contains(refusal(R"({"w":3})", 0), "tensor 'w' is number, expected an object"));
  CHECK(contains(refusal(R"({"w":null})", 0), "tensor 'w' is null"));
  CHECK(contains(refusal("{" + entry("w", "U8", "[1]", "[0,1]") + "," + entry("w", "U8", "[1]", "[1,2]") + "}", 2),
                 "'w' appears twice"));
}

TEST_CASE("metadata other than strings is refused") {
  CHECK(contains(refusal(R"({"__metadata__":[]})", 0), "__metadata__ is array"));
  CHECK(contains(refusal(R"({"__metadata__":{"a":1}})", 0), "__metadata__ 'a' is number"));
  CHECK(refusal(R"({"__metadata__":null})", 0).empty());
}

TEST_CASE("fields that are missing, unknown or of the wrong kind are named") {
  CHECK(contains(refusal(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4), "tensor 'w' has no dtype"));
  CHECK(contains(refusal(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4), "tensor 'w' has no shape"));
  CHECK(contains(refusal(R"({"w":{"dtype":"F32","shape":[1]}})", 4), "tensor 'w' has no data_offsets"));
  CHECK(contains(refusal(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"scale":2}})", 4),
                 "unknown field 'scale'"));
  CHECK(contains(refusal(R"({"w":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", 4), "dtype that is number"));
  CHECK(contains(refusal(one("FP32", "[1]", "[0,4]"), 4), "unknown dtype 'FP32'; did you mean F32?"));
  CHECK(contains(refusal(one("quaternion", "[1]", "[0,4]"), 4), "unknown dtype 'quaternion'"));
  CHECK(contains(refusal(one("F32", "1", "[0,4]"), 4), "shape that is number"));
}

TEST_CASE("shapes are lists of non-negative integers whose product fits") {
  for (const char* shape : {"[-1]", "[1.0]", "[1e300]", "[\"1\"]", "[null]", "[[1]]", "[9223372036854775808]",
                            "[18446744073709551615]", "[18446744073709551616]"}) {
    CAPTURE(shape);
    CHECK(contains(refusal(one("F32", shape, "[0,4]"), 4), "tensor 'w' has "));
    CHECK(contains(refusal(one("F32", shape, "[0,4]"), 4), "in its shape, expected integers"));
  }
  for (const char* shape : {"[4294967296,4294967296]", "[9223372036854775807]", "[4611686018427387904,4]",
                            "[0,4611686018427387904,4]", "[4611686018427387904,4,0]"}) {
    CAPTURE(shape);
    CHECK(contains(refusal(one("F32", shape, "[0,0]"), 0), "tensor 'w' has a shape of"));
  }
  CHECK(contains(refusal(one("F4", "[3]", "[0,2]"), 2), "does not fill whole bytes"));
}

TEST_CASE("offsets are two integers in order") {
  for (const char* offsets : {"[-4,0]", "[0,-4]", "[0.0,4]", "[0,1e300]", "[0]", "[0,2,4]", "{}", "null", "[\"0\",4]",
                              "[0,18446744073709551616]", "[true,4]"}) {
    CAPTURE(offsets);
    CHECK(contains(refusal(one("F32", "[1]", offsets), 4), "tensor 'w' has data_offsets"));
  }
  CHECK(contains(refusal(one("F32", "[1]", "[4,0]"), 4), "tensor 'w' has reversed data_offsets"));
}

TEST_CASE("the size of the data must match shape and dtype") {
  CHECK(
      contains(refusal(one("F32", "[2]", "[0,4]"), 4), "tensor 'w' has 4 bytes of data, but its shape and dtype F32"));
  CHECK(contains(refusal(one("F32", "[0]", "[0,4]"), 4), "need 0"));
  CHECK(contains(refusal(one("F32", "[1]", "[0,9223372036854775807]"), 4), "has 9223372036854775807 bytes"));
}

TEST_CASE("data beyond the end of the file is an incomplete download") {
  std::string header = "{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[4,8]") + "," +
                       entry("c", "U8", "[4]", "[8,12]") + "}";
  uint64_t begin = 8 + header.size();
  CHECK(contains(refusal(header, 6), fmt::format("tensor 'b' ends at byte {} but the file has {}, and 1 more tensors "
                                                 "end later: an incomplete download?",
                                                 begin + 8, begin + 6)));
  CHECK(contains(file_refusal(file_text(header, 11)), "tensor 'c' ends at byte"));
  // The last offset that is no nonsense by itself: the place in the file is named without wrapping around.
  std::string far = one("F32", "[1]", "[9223372036854775803,9223372036854775807]");
  CHECK(contains(refusal(far, 4), fmt::format("tensor 'w' ends at byte {}", 9223372036854775807u + 8 + far.size())));
}

TEST_CASE("offsets that no file can have are refused as such") {
  for (const char* end : {"9223372036854775808", "9223372036854775811", "18446744073709551615"}) {
    CAPTURE(end);
    for (const char* begin : {"0", "9223372036854775807"}) {
      CHECK(contains(refusal(one("F32", "[1]", fmt::format("[{},{}]", begin, end)), 4),
                     fmt::format("tensor 'w' has data_offsets that end at {}, expected less than 2^63", end)));
    }
  }
}

TEST_CASE("the tensors must tile the data") {
  auto two = [](const char* first, const char* second) {
    return "{" + entry("a", "U8", "[4]", first) + "," + entry("b", "U8", "[4]", second) + "}";
  };
  CHECK(refusal(two("[4,8]", "[0,4]"), 8).empty());
  CHECK(contains(refusal(two("[0,4]", "[3,7]"), 7), "tensor 'b' begins at byte"));
  CHECK(contains(refusal(two("[0,4]", "[3,7]"), 7), "inside tensor 'a'"));
  CHECK(contains(refusal(two("[0,4]", "[0,4]"), 4), "inside tensor 'a'"));
  CHECK(contains(refusal(two("[0,4]", "[5,9]"), 9), "1 bytes before tensor 'b' belong to no tensor"));
  CHECK(contains(refusal(two("[2,6]", "[6,10]"), 10), "2 bytes before tensor 'a' belong to no tensor"));
  CHECK(contains(refusal(two("[0,4]", "[4,8]"), 11), "3 bytes after the last tensor"));
  CHECK(contains(refusal("{}", 1), "1 bytes after the last tensor"));
  CHECK(refusal("{}", 0).empty());
  std::string empty_inside = "{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("e", "U8", "[0]", "[2,2]") + "}";
  CHECK(contains(refusal(empty_inside, 4), "tensor 'e' begins at byte"));
}

TEST_CASE("all problems are listed at once, the first twenty in words") {
  std::string header = R"({"__metadata__":{"a":1})";
  for (int i = 0; i < 30; ++i) {
    header += "," + entry(fmt::format("w{:02}", i), "F33", "[-1]", "[3,2]");
  }
  std::string message = refusal(header + "}", 0);
  CHECK(contains(message, "x.safetensors: 91 problems"));
  CHECK(contains(message, "'w00' has the unknown dtype 'F33'"));
  CHECK(contains(message, "'w00' has -1 in its shape"));
  CHECK(contains(message, "'w00' has reversed data_offsets"));
  CHECK(contains(message, "... and 71 more"));
}

TEST_CASE("names in messages are escaped") {
  CHECK(contains(refusal(R"({"\u001b[31m":3})", 0), R"(tensor '\x1b[31m' is number)"));
}

TEST_CASE("data is read from any place, aligned or not") {
  TemporaryFolder folder;
  std::string header = "{" + entry("a", "U8", "[3]", "[0,3]") + "," + entry("b", "F64", "[2]", "[3,19]") + "}";
  fs::path path = folder.write("x.safetensors", length_prefix(header.size()) + header + "abc0123456789abcdef");
  SafetensorsFile file(path);
  std::string text(5, ' ');
  file.read("b", 11, std::as_writable_bytes(std::span(text)));
  CHECK(text == "bcdef");
  CHECK_THROWS_AS(file.read("b", 12, std::as_writable_bytes(std::span(text))), InternalError);
  CHECK_THROWS_AS(file.read("c", 0, std::as_writable_bytes(std::span(text))), InternalError);
}

TEST_CASE("a file that shrinks while open is an error that names tensor and file, and no signal") {
  TemporaryFolder folder;
  fs::path path = folder.write("x.safetensors", file_text(one("F32", "[1024]", "[0,4096]"), 4096));
  SafetensorsFile file(path);
  fs::resize_file(path, 2000);
  std::string text(4096, ' ');
  std::string message = message_of<InputError>([&] { file.read("w", 0, std::as_writable_bytes(std::span(text))); });
  CHECK(contains(message, "tensor 'w' ends at byte"));
  CHECK(contains(message, "x.safetensors' is shorter now"));
}

TEST_CASE("a copy of a file outlives the original") {
  TemporaryFolder folder;
  fs::path path = folder.write("x.safetensors", file_text(one("U8", "[4]", "[0,4]"), 4));
  auto original = std::make_unique<SafetensorsFile>(path);
  SafetensorsFile copy = *original;
  original.reset();
  std::string text(4, ' ');
  copy.read("w", 0, std::as_writable_bytes(std::span(text)));
  CHECK(text == std::string(4, '\0'));
}

TEST_CASE("what is written is read back, in sorted order and with the data at a multiple of eight") {
  TemporaryFolder folder;
  fs::path path = folder.path() / "x.safetensors";
  SafetensorsWriter writer(path, {{"b", {Dtype::u8, {3}}}, {"a \"é\n", {Dtype::f16, {2, 1}}}, {"c", {Dtype::i64, {0}}}},
                           {{"format", "pt"}});
  writer.write("a \"é\n", bytes_of("01"));
  writer.write("a \"é\n", bytes_of("23"));
  writer.write("b", bytes_of("xyz"));
  writer.write("c", {});
  writer.finish();
  CHECK(
      bytes_of_file(path) ==
      length_prefix(200) +
          R"({"__metadata__":{"format":"pt"},"a \"é\n":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]},)"
          R"("b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},"c":{"dtype":"I64","shape":[0],"data_offsets":[7,7]}})"
          " 0123xyz");
  SafetensorsFile file(path);
  CHECK(file.metadata() == Metadata{{"format", "pt"}});
  CHECK(file.tensors().at("b").shape == std::vector<int64_t>{3});
}

TEST_CASE("a writer without tensors writes an empty file that is valid") {
  TemporaryFolder folder;
  SafetensorsWriter writer(folder.path() / "x.safetensors", {}, {});
  writer.finish();
  CHECK(SafetensorsFile(folder.path() / "x.safetensors").tensors().empty());
}

TEST_CASE("wrong use of the writer is a bug of ours") {
  TemporaryFolder folder;
  auto writer = [&](const std::string& name) {
    return std::make_unique<SafetensorsWriter>(
        folder.path() / name,
        std::map<std::string, SafetensorsWriter::Declared>{{"a", {Dtype::u8, {2}}}, {"b", {Dtype::u8, {2}}}},
        Metadata{});
  };
  CHECK_THROWS_AS(writer("1")->write("b", bytes_of("01")), InternalError);
  CHECK_THROWS_AS(writer("2")->write("a", bytes_of("012")), InternalError);
  CHECK_THROWS_AS(writer("3")->finish(), InternalError);
}
