#include "pare/support/gguf.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;
using nlohmann::json;

namespace {

// The bytes of a file, put together by hand.
class Bytes {
 public:
  template <typename Value>
  Bytes& add(Value value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& word(std::string_view value) {
    add(uint64_t{value.size()});
    text += value;
    return *this;
  }
  Bytes& begin(uint64_t tensors, uint64_t values, uint32_t version = 3) {
    text += "GGUF";
    return add(version).add(tensors).add(values);
  }
  Bytes& key(std::string_view name, uint32_t type) { return word(name).add(type); }
  Bytes& tensor(std::string_view name, const std::vector<uint64_t>& sizes, uint32_t type, uint64_t offset) {
    word(name).add(static_cast<uint32_t>(sizes.size()));
    for (const uint64_t size : sizes) {
      add(size);
    }
    return add(type).add(offset);
  }
  // The end of the header, and so many bytes of data.
  Bytes& data(size_t count, size_t alignment = 32) {
    text.resize((text.size() + alignment - 1) / alignment * alignment);
    text.append(count, '\1');
    return *this;
  }
  std::string text;
};

constexpr uint32_t u32 = 4, f32 = 6, boolean = 7, string = 8, array = 9;

GgufHeader parsed(const Bytes& bytes) {
  return parse_gguf_header(bytes.text, bytes.text.size(), "x").value();
}

std::string refusal(const Bytes& bytes) {
  return message_of<InputError>([&] { parsed(bytes); });
}

Bytes good_header() {
  Bytes bytes;
  bytes.begin(2, 2).key("general.architecture", string).word("llama").key("llama.block_count", u32).add(uint32_t{1});
  return bytes.tensor("b", {64, 2}, 8, 0).tensor("a", {3}, 0, 160);
}

Bytes good() {
  return good_header().data(160 + 32);
}

}  // namespace

TEST_CASE("every kind of value is read") {
  Bytes bytes;
  bytes.begin(0, 14, 2);
  bytes.key("u8", 0).add(uint8_t{255}).key("i8", 1).add(int8_t{-128}).key("u16", 2).add(uint16_t{65535});
  bytes.key("i16", 3).add(int16_t{-1}).key("u32", 4).add(uint32_t{1} << 31).key("i32", 5).add(int32_t{-7});
  bytes.key("f32", f32).add(1e-5F).key("yes", boolean).add(uint8_t{1}).key("text", string).word("Zwölf");
  bytes.key("u64", 10).add(~uint64_t{0}).key("i64", 11).add(INT64_MIN).key("f64", 12).add(0.1);
  bytes.key("list", array).add(string).add(uint64_t{2}).word("a").word("");
  bytes.key("lists", array).add(array).add(uint64_t{1}).add(u32).add(uint64_t{2}).add(uint32_t{3}).add(uint32_t{4});
  const GgufMetadata found = parsed(bytes).metadata;
  CHECK(found.at("u8") == 255);
  CHECK(found.at("i8") == -128);
  CHECK(found.at("u16") == 65535);
  CHECK(found.at("i16") == -1);
  CHECK(found.at("u32") == 2147483648);
  CHECK(found.at("i32") == -7);
  CHECK(found.at("f32").get<double>() == 1e-5);  // and not 9.99999974e-06, which is the float32 itself
  CHECK(found.at("yes") == true);
  CHECK(found.at("text") == "Zwölf");
  CHECK(found.at("u64").get<uint64_t>() == ~uint64_t{0});
  CHECK(found.at("i64").get<int64_t>() == INT64_MIN);
  CHECK(found.at("f64").get<double>() == 0.1);
  CHECK((found.at("list") == json{"a", ""}));
  CHECK(found.at("lists").dump() == "[[3,4]]");
}

TEST_CASE("tensors are placed, and their shapes are turned around") {
  const std::map<std::string, GgufTensor> tensors = parsed(good()).tensors;
  CHECK((tensors.at("b").shape == std::vector<int64_t>{2, 64}));
  CHECK(tensors.at("b").end - tensors.at("b").begin == 2 * 2 * 34);
  CHECK(tensors.at("a").begin == tensors.at("b").begin + 160);
  CHECK(tensors.at("b").begin % 32 == 0);
}

TEST_CASE("a header is read from its first bytes, or asks for more") {
  const std::string all = good().text;
  for (size_t count = 0; count <= all.size(); ++count) {
    const auto some = parse_gguf_header(std::string_view(all).substr(0, count), all.size(), "x");
    CHECK(some.has_value() == (count >= good_header().text.size()));
  }
}

TEST_CASE("a file that was cut off anywhere is refused") {
  const std::string all = good().text;
  for (size_t count = 0; count + 31 < all.size(); ++count) {
    Bytes cut;
    cut.text = all.substr(0, count);
    CHECK(!refusal(cut).empty());
  }
}

TEST_CASE("counts and lengths that no file can hold are refused before anything is made of them") {
  const auto with = [](uint64_t tensors, uint64_t values) {
    Bytes bytes;
    return bytes.begin(tensors, values).data(64);
  };
  CHECK(contains(refusal(with(uint64_t{1} << 63, 0)), "a list of 9223372036854775808 tensors"));
  CHECK(contains(refusal(with(0, uint64_t{1} << 63)), "metadata of 9223372036854775808 values"));
  CHECK(contains(refusal(with(~uint64_t{0}, ~uint64_t{0})), "would take more than"));
  Bytes text;
  text.begin(0, 1).key("k", string).add(uint64_t{1} << 60).data(64);
  CHECK(contains(refusal(text), "a string of 1152921504606846976 bytes"));
  Bytes name;
  name.begin(0, 1).add(uint64_t{1} << 60).data(64);
  CHECK(contains(refusal(name), "a key of 1152921504606846976 bytes"));
  Bytes list;
  list.begin(0, 1).key("k", array).add(uint32_t{0}).add(uint64_t{1} << 62).data(64);
  CHECK(contains(refusal(list), "an array of 4611686018427387904 values"));
  Bytes deep;
  deep.begin(0, 1).key("k", array);
  for (int i = 0; i < 100; ++i) {
    deep.add(array).add(uint64_t{1});
  }
  CHECK(contains(refusal(deep), "nested deeper"));
}

TEST_CASE("what is no GGUF, or another's, is refused by name") {
  Bytes other;
  other.text = "{\"a\": 1}, and so on, as other files are";
  CHECK(contains(refusal(other), "expected 'GGUF'"));
  Bytes first, newer, big;
  CHECK(contains(refusal(first.begin(0, 0, 1)), "version 1; read are 2 and 3"));
  CHECK(contains(refusal(newer.begin(0, 0, 4)), "version 4"));
  CHECK(contains(refusal(big.begin(0, 0, 0x03000000)), "big-endian"));
}

TEST_CASE("metadata that say one thing twice, or say it in no language, are refused") {
  Bytes twice, latin, key, type, yes;
  CHECK(contains(refusal(twice.begin(0, 2).key("k", u32).add(1).key("k", u32).add(2)), "has 'k' twice"));
  CHECK(contains(refusal(latin.begin(0, 1).key("k", string).word("\xe9")), "not UTF-8"));
  CHECK(contains(refusal(key.begin(0, 1).key("\xe9", u32).add(1)), "expected 1 to 65535 bytes of UTF-8"));
  CHECK(contains(refusal(type.begin(0, 1).key("k", 13).add(uint64_t{0})), "has the type 13"));
  CHECK(contains(refusal(yes.begin(0, 1).key("k", boolean).add(uint8_t{2})), "is the byte 2"));
}

TEST_CASE("tensors that cannot be are refused") {
  const auto one = [](const std::vector<uint64_t>& sizes, uint32_t type, uint64_t offset, size_t data = 64) {
    Bytes bytes;
    return refusal(bytes.begin(1, 0).tensor("t", sizes, type, offset).data(data));
  };
  CHECK(one({16}, 0, 0).empty());
  CHECK(contains(one({}, 0, 0), "has 0 dimensions"));
  CHECK(contains(one({1, 1, 1, 1, 1}, 0, 0), "has 5 dimensions"));
  CHECK(contains(one({0}, 0, 0), "has a dimension of 0"));
  CHECK(contains(one({uint64_t{1} << 63}, 0, 0), "has a dimension of 9223372036854775808"));
  CHECK(contains(one({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0), "expected a size that a file can hold"));
  CHECK(contains(one({16}, 99, 0), "is of the type 99"));
  CHECK(contains(one({33}, 8, 0), "rows of 33 elements, expected a multiple of 32 for Q8_0"));
  CHECK(contains(one({128, 2}, 12, 0), "expected a multiple of 256 for Q4_K"));
  CHECK(contains(one({17}, 0, 0), "ends at byte"));
  CHECK(contains(one({16}, 0, uint64_t{1} << 62), "begins at byte 4611686018427387904"));
  CHECK(contains(one({8}, 0, 4), "no multiple of 32"));
  CHECK(contains(one({8}, 0, 32), "32 bytes before tensor 't' belong to no tensor"));
  CHECK(contains(one({16}, 0, 0, 97), "33 bytes after the last tensor belong to no tensor"));
  const auto two = [](const char* name, uint64_t offset) {
    Bytes bytes;
    return refusal(bytes.begin(2, 0).tensor("t", {16}, 0, 0).tensor(name, {8}, 0, offset).data(96));
  };
  CHECK(two("s", 64).empty());
  CHECK(contains(two("t", 64), "has tensor 't' twice"));
  CHECK(contains(two("s", 32), "inside the one before it"));
  CHECK(contains(two("\xff", 64), "expected UTF-8"));
}

TEST_CASE("the alignment is the file's own, and a power of two") {
  const auto with = [](uint32_t alignment) {
    Bytes bytes;
    bytes.begin(1, 1).key("general.alignment", u32).add(alignment).tensor("t", {1}, 0, 0);
    return bytes.data(4, alignment == 0 || alignment > 4096 ? 32 : alignment);
  };
  CHECK(parsed(with(64)).tensors.at("t").begin % 64 == 0);
  CHECK(parsed(with(8)).tensors.at("t").begin % 8 == 0);
  for (const uint32_t wrong : {0U, 3U, 48U, 1U << 31}) {
    CHECK(contains(refusal(with(wrong)), "general.alignment"));
  }
  Bytes text;
  text.begin(0, 1).key("general.alignment", string).word("wide");
  CHECK(contains(refusal(text), "general.alignment is \"wide\""));
}

TEST_CASE("a model in parts is opened from any of them") {
  const TemporaryFolder folder;
  const auto part = [&](const char* name, uint32_t number, const char* tensor, uint32_t count = 2) {
    Bytes bytes;
    bytes.begin(1, 2).key("split.no", 2).add(static_cast<uint16_t>(number));
    bytes.key("split.count", 2).add(static_cast<uint16_t>(count)).tensor(tensor, {8}, 0, 0);
    return folder.write(name, bytes.data(32).text);
  };
  const auto first = part("m-00001-of-00002.gguf", 0, "a");
  CHECK(contains(message_of<InputError>([&] { open_gguf(first); }), "there is no 'm-00002-of-00002.gguf'"));
  const auto second = part("m-00002-of-00002.gguf", 1, "b");
  for (const auto& path : {first, second}) {
    const std::vector<GgufFile> files = open_gguf(path);
    REQUIRE(files.size() == 2);
    CHECK(files[0].tensors().contains("a"));
    CHECK(files[1].tensors().contains("b"));
  }
  CHECK(find_gguf(folder.path()) == first);
  part("m-00002-of-00002.gguf", 1, "a");
  CHECK(contains(message_of<InputError>([&] { open_gguf(first); }), "both have tensor 'a'"));
  part("m-00002-of-00002.gguf", 0, "b");
  CHECK(contains(message_of<InputError>([&] { open_gguf(first); }), "says that it is part 1 of 2"));
  CHECK(contains(message_of<InputError>([&] { open_gguf(part("other.gguf", 1, "b")); }), "part 2 of a model in 2"));
}

TEST_CASE("a path means a GGUF file where it is one, or where a folder has one and no config.json") {
  const TemporaryFolder folder;
  CHECK(!find_gguf(folder.path()));
  CHECK(!find_gguf(folder.path() / "no.gguf"));
  const auto file = folder.write("a.gguf", good().text);
  CHECK(find_gguf(file) == file);
  CHECK(find_gguf(folder.path()) == file);
  const auto blob = folder.write("sha256-0123", good().text);
  CHECK(find_gguf(blob) == blob);
  CHECK(!find_gguf(folder.write("text.txt", "hello")));
  folder.write("config.json", "{}");
  CHECK(!find_gguf(folder.path()));
  const TemporaryFolder several;
  several.write("a.gguf", "");
  several.write("b.gguf", "");
  CHECK(!find_gguf(several.path()));
}

TEST_CASE("bytes are read where they lie, and the file is hashed") {
  const TemporaryFolder folder;
  const GgufFile file(folder.write("a.gguf", good().text));
  std::vector<std::byte> bytes(12);
  file.read("a", 0, bytes);
  CHECK(bytes.front() == std::byte{1});
  CHECK(file.sha256().size() == 64);
  folder.write("a.gguf", "shorter");
  CHECK_THROWS_AS(file.sha256(), InputError);
}
