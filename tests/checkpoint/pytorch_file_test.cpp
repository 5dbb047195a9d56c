#include "pare/checkpoint/pytorch_file.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "pare/checkpoint/pickle.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "tests/support/helpers.h"

namespace pare {

namespace {

using namespace std::string_literals;

std::string pickle_refusal(const std::string& bytes) {
  return message_of<InputError>([&] { parse_pickle(bytes, "x"); });
}

std::string number(uint64_t value, size_t bytes) {
  std::string text(bytes, '\0');
  std::memcpy(text.data(), &value, std::min(bytes, sizeof(value)));
  return text;
}

// An archive of 5 GiB with one entry at its end, as torch.save writes large ones; nothing of it but the end is held.
struct LargeArchive {
  uint64_t begin = uint64_t{5} << 30, size = 3, packed = 3;
  std::string name = "archive/data.pkl";
  std::string end;  // all bytes from `begin` on

  std::map<std::string, ZipEntry> read() {
    const std::string local =
        "PK\x03\x04" + number(0, 22) + number(name.size(), 2) + number(4, 2) + name + "FB" + number(0, 2) + "abc";
    const std::string wide = number(1, 2) + number(24, 2) + number(size, 8) + number(packed, 8) + number(begin, 8);
    const std::string extra = "FB" + number(2, 2) + "ZZ" + wide;
    const std::string central = "PK\x01\x02" + number(0, 16) + number(~0u, 4) + number(~0u, 4) +
                                number(name.size(), 2) + number(extra.size(), 2) + number(0, 10) + number(~0u, 4) +
                                name + extra;
    const uint64_t directory = begin + local.size();
    const std::string end64 = "PK\x06\x06" + number(44, 8) + number(0, 12) + number(1, 8) + number(1, 8) +
                              number(central.size(), 8) + number(directory, 8);
    const std::string locator = "PK\x06\x07" + number(0, 4) + number(directory + central.size(), 8) + number(1, 4);
    end = local + central + end64 + locator + "PK\x05\x06" + number(0, 4) + number(~0u, 4) + number(~0u, 8) +
          number(0, 2);
    const PlacedBytes file{begin + end.size(), [this](uint64_t offset, std::span<std::byte> into) {
                             for (size_t i = 0; i < into.size(); ++i) {
                               into[i] = offset + i < begin ? std::byte{0}
                                                            : static_cast<std::byte>(end.at(offset + i - begin));
                             }
                           }};
    return read_zip(file, "x");
  }
};

}  // namespace

TEST_CASE("an archive of more than four gigabytes says so in 64 bits") {
  LargeArchive archive;
  const std::map<std::string, ZipEntry> entries = archive.read();
  REQUIRE(entries.size() == 1);
  CHECK(entries.begin()->first == "archive/data.pkl");
  CHECK(entries.begin()->second.size == 3);
  CHECK(archive.end.substr(entries.begin()->second.begin - archive.begin, 3) == "abc");
  const auto refusal = [](uint64_t size, uint64_t packed) {
    LargeArchive wrong{.size = size, .packed = packed};
    return message_of<InputError>([&] { wrong.read(); });
  };
  CHECK(contains(refusal(uint64_t{1} << 60, uint64_t{1} << 60), "ends beyond the data of the archive"));
  CHECK(contains(refusal(4, 4), "ends beyond the data of the archive"));
  CHECK(contains(refusal(uint64_t{1} << 60, 3), "is stored in 3 bytes but should have 1152921504606846976"));
}

TEST_CASE("plain values of a pickle are read, in every form that writers choose") {
  const Pickle pickle = parse_pickle("\x80\x02}q\x00(X\x01\x00\x00\x00"s + "aK\x07\x8c\x01"s +
                                         "bJ\xff\xff\xff\xff\x8c\x01"s + "c]q\x01(NM\x01\x02\x88"s + "e\x8c\x01"s +
                                         "dh\x01\x8c\x01"s + "e\x8a\x01\x80G12345678\x86u.rest"s,
                                     "x");
  const auto& dict = std::get<PickledDict>(pickle.at(pickle.root));
  REQUIRE(dict.entries.size() == 5);
  const auto value = [&](size_t n) -> const PickleValue& { return pickle.at(dict.entries[n].second); };
  CHECK(std::get<int64_t>(value(0)) == 7);
  CHECK(std::get<int64_t>(value(1)) == -1);
  const auto& list = std::get<PickledList>(value(2));
  REQUIRE(list.items.size() == 3);
  CHECK(std::get<int64_t>(pickle.at(list.items[1])) == 513);
  CHECK(std::get<bool>(pickle.at(list.items[2])));
  CHECK(dict.entries[3].second == dict.entries[2].second);
  CHECK(std::get<int64_t>(pickle.at(std::get<PickledTuple>(value(4)).items[0])) == -128);
  CHECK(pickle.end == 58);
}

TEST_CASE("a pickle names no other object of Python, runs nothing, and asks for no more memory than it has bytes") {
  CHECK(contains(pickle_refusal("\x80\x02"
                                "cos\nsystem\n(X\x02\x00\x00\x00lstR."s),
                 "the Python object 'os.system'"));
  CHECK(contains(pickle_refusal("\x80\x04\x8c\x08"
                                "builtins\x8c\x04"
                                "eval\x93."s),
                 "'builtins.eval'"));
  CHECK(contains(pickle_refusal("\x80\x02"
                                "ctorch\nFloatStorage\n)R."s),
                 "'torch.FloatStorage' is called, which is a type"));
  CHECK(contains(pickle_refusal("i__main__\nX\n."s), "instruction 0x69 is none that tensors need"));
  CHECK(contains(pickle_refusal("\x80\x02X\xff\xff\xff\x7f."s), "2147483647 more bytes are needed, and 1 are left"));
  CHECK(contains(pickle_refusal("\x80\x02}r\xff\xff\xff\xff."s), "number 4294967295 of the memo"));
  CHECK(contains(pickle_refusal("\x80\x02}r\x10\x00\x00\x00."s), "number 16 of the memo, expected at most 9"));
  CHECK(contains(pickle_refusal("\x80\x02h\x05."s), "the memo has no number 5"));
  CHECK(contains(pickle_refusal("\x80\x02"s), "1 more bytes are needed, and 0 are left"));
  CHECK(contains(pickle_refusal("\x80\x02NN."s), "the end leaves 2 values"));
  CHECK(contains(pickle_refusal("\x80\x02Ns."s), "2 values are needed, and 1 are there"));
  CHECK(contains(pickle_refusal("\x80\x09N."s), "protocol 9"));
  CHECK(contains(pickle_refusal("\x80\x02X\x01\x00\x00\x00\xff."s), "not UTF-8"));
}

TEST_CASE("elements with strides are gathered as a loop over their indices does it") {
  TemporaryFolder folder;
  std::mt19937 random(1);
  std::vector<uint16_t> numbers(5000);
  for (uint16_t& number : numbers) {
    number = static_cast<uint16_t>(random());
  }
  folder.write("data", std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * 2));
  using Sizes = std::vector<int64_t>;
  for (const auto& [shape, strides] : {std::pair(Sizes{7, 11}, Sizes{1, 7}),
                                       {Sizes{4, 5, 6}, Sizes{6, 200, 1}},
                                       {Sizes{4, 5, 6}, Sizes{1, 24, 4}},
                                       {Sizes{9}, Sizes{13}},
                                       {Sizes{}, Sizes{}},
                                       {Sizes{3, 4}, Sizes{9, 2}},
                                       {Sizes{2, 1, 3}, Sizes{1, 77, 2}},
                                       {Sizes{3, 3}, Sizes{0, 1}},
                                       {Sizes{60, 80}, Sizes{1, 60}}}) {
    const uint64_t count = *byte_size(Dtype::u8, shape), begin = 20;
    const TensorFile file(folder.path() / "data", [&](const InputFile&) {
      return TensorHeader{.tensors = {{"w", {Dtype::u16, shape, begin, begin + 2 * count, strides}}}};
    });
    std::vector<uint16_t> expected;
    for (uint64_t n = 0; n < count; ++n) {
      uint64_t rest = n, place = begin / 2;
      for (size_t axis = shape.size(); axis-- > 0;) {
        place += rest % static_cast<uint64_t>(shape[axis]) * static_cast<uint64_t>(strides[axis]);
        rest /= static_cast<uint64_t>(shape[axis]);
      }
      expected.push_back(numbers[place]);
    }
    for (const uint64_t from : {uint64_t{0}, count / 3, count - 1}) {
      for (const uint64_t to : {count, from + (count - from) / 2, from}) {
        std::vector<uint16_t> found(to - from);
        file.read("w", 2 * from, std::as_writable_bytes(std::span(found)));
        CHECK(std::ranges::equal(found, std::span(expected).subspan(from, to - from)));
      }
    }
  }
}

}  // namespace pare
