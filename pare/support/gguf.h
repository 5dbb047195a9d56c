#pragma once
// GGUF files: an untrusted header, checked whole before anything is believed, then data read on demand.
// Bytes in, bytes out: what the blocks of a type mean is pare/checkpoint's.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pare {

// Types of elements, with the numbers of the format. Those without a block of their own are known by name alone.
enum class GgufType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  f64 = 28,
  bf16 = 30,
  mxfp4 = 39,
};

// So many elements, side by side in a row, are stored in so many bytes.
struct GgufBlock {
  GgufType type;
  std::string_view name;
  uint64_t elements, bytes;
};

const GgufBlock* gguf_block(GgufType type);  // nullptr for a number that the format does not have

struct GgufTensor {
  GgufType type = GgufType::f32;
  std::vector<int64_t> shape;   // outermost first, as elsewhere; the format writes it the other way round
  uint64_t begin = 0, end = 0;  // bytes, from the start of the file
};

using GgufMetadata = std::map<std::string, nlohmann::json>;

struct GgufHeader {
  GgufMetadata metadata;  // a float32 is the shortest decimal number that it is the nearest of: 1e-05, as was meant
  std::map<std::string, GgufTensor> tensors;
};

// Checks the header of a file of `file_size` bytes of which these are the first. Nothing where the header goes on
// behind them. Every count is held against the bytes that are left before room is made for it. Pure, for the fuzzer and
// the tests.
std::optional<GgufHeader> parse_gguf_header(std::string_view bytes, uint64_t file_size, const std::string& subject);

class GgufFile {
 public:
  // Reads and checks the header only. Throws InputError naming the file and what is wrong.
  explicit GgufFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  uint64_t bytes() const;  // of the whole file, when it was opened
  const GgufMetadata& metadata() const;
  const std::map<std::string, GgufTensor>& tensors() const;

  // Copies bytes of a tensor's data, from `offset` within it. A file that shrank since it was opened is an InputError.
  void read(const std::string& name, uint64_t offset, std::span<std::byte> into) const;

  // As SafetensorsFile has it: of the file that was opened, read once; InputError where it was written to since.
  std::string sha256() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;  // a copy of this object shares the open file
};

// The file, or all parts of a model that was split (NAME-00001-of-00003.gguf), whichever of them is named: in order,
// and the metadata are those of the first. InputError naming those that are missing or do not belong together.
std::vector<GgufFile> open_gguf(const std::filesystem::path& path);

// The GGUF file that a path means: itself, or the one model in a folder that has no config.json; of a split one, the
// first part. Nothing for anything else, and where a folder has several.
std::optional<std::filesystem::path> find_gguf(const std::filesystem::path& path);

}  // namespace pare
