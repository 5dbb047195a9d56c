#pragma once
// Protocol buffers as bytes: a message is a row of fields, each a number, four bytes, or a piece that may be a message.
//
// ONNX is ten messages with some forty fields, and has not changed what they mean in years. The library for it would
// bring libprotobuf, a code generator and a schema along, and the one that Debian has does not know half of today's
// operators. So this is written by hand.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pare/support/files.h"

namespace pare {

class WireWriter {
 public:
  void number(int field, uint64_t value);
  void real(int field, float value);
  void piece(int field, std::string_view bytes);  // a text, or a message that is complete
  void piece(int field, const WireWriter& message) { piece(field, message.bytes()); }
  void begin_piece(int field, uint64_t size);  // whoever calls writes so many bytes behind this
  void append(const WireWriter& fields) { bytes_ += fields.bytes_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value);
  std::string bytes_;
};

// A file, a window of which is held: what lies in it may be larger than memory.
class WireFile {
 public:
  explicit WireFile(const std::filesystem::path& path) : file_(path) {}
  const InputFile& file() const { return file_; }
  uint8_t byte(uint64_t offset);  // InputError past the end
  // How many messages a file may have: each takes more memory than the two bytes that an empty one takes there.
  void count_message();

 private:
  InputFile file_;
  std::vector<std::byte> window_;
  uint64_t begin_ = 0;
  int64_t messages_ = 0;
};

struct WireField {
  enum class Kind { number, four_bytes, piece };
  int number = 0;
  Kind kind = Kind::number;
  uint64_t value = 0;            // of a number, or of four bytes
  uint64_t begin = 0, size = 0;  // of a piece: where it lies in the file
};

// One message of an untrusted file. No size is believed that does not fit into what it lies in.
class WireReader {
 public:
  explicit WireReader(WireFile& file) : WireReader(file, 0, file.file().size()) {}
  WireReader(WireFile& file, const WireField& message) : WireReader(file, message.begin, message.size) {}

  std::optional<WireField> next();
  std::string text(const WireField& field) const;  // InputError where it is no short text
  WireReader inside(const WireField& field) const;
  static uint64_t number(const WireField& field);
  static float real(const WireField& field);

 private:
  WireReader(WireFile& file, uint64_t begin, uint64_t size);
  uint64_t varint();
  WireFile* file_;
  uint64_t at_, end_;
};

}  // namespace pare
