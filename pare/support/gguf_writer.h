#pragma once
// GGUF files, written: the header first, from what is declared, then the data of one tensor after the other.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pare/support/gguf.h"

namespace pare {

// What a value of the metadata is stored as, with the numbers of the format. Programs that read the format ask for one
// of these by name and take no other, and JSON does not say it.
enum class GgufKind : uint32_t { u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8 };

struct GgufEntry {
  std::string key;
  GgufKind kind = GgufKind::u32;  // of the values, where it is a list of them
  nlohmann::json value;
};

struct GgufDeclared {
  std::string name;
  GgufType type = GgufType::f32;
  std::vector<int64_t> shape;  // outermost first; the format writes it the other way round
};

// All that stands before the data. InputError for a number that its kind does not have.
std::string gguf_header(const std::vector<GgufEntry>& metadata, const std::vector<GgufDeclared>& tensors);
uint64_t gguf_bytes(const GgufDeclared& tensor);  // without what is left free behind it
// Of a file with this header and the data of these tensors.
uint64_t gguf_file_bytes(std::string_view header, const std::vector<GgufDeclared>& tensors);

// Never holds more than what it is given at a time; the same input gives the same bytes. Nothing but bytes is known of
// a tensor: their number is checked.
class GgufWriter {
 public:
  GgufWriter(const std::filesystem::path& path, const std::vector<GgufEntry>& metadata,
             std::vector<GgufDeclared> tensors);
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // The next of the declared tensors; may come in pieces.
  void write(const std::string& name, std::span<const std::byte> bytes);
  // Checks that everything declared was written, and syncs.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare
