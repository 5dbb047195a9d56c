#include "pare/export/onnx_wire.h"

#include <algorithm>
#include <bit>

#include "pare/support/error.h"

namespace pare {

namespace {

constexpr int wire_varint = 0, wire_eight_bytes = 1, wire_piece = 2, wire_four_bytes = 5;
constexpr uint64_t longest_wire_text = 1 << 20;
constexpr int64_t most_wire_messages = 20'000'000;

[[noreturn]] void fail_wire(const char* what) {
  throw InputError(fmt::format("is no ONNX file, or a damaged one: {}", what));
}

}  // namespace

// ---- writing

void WireWriter::varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    bytes_.push_back(static_cast<char>(value | 0x80));
  }
  bytes_.push_back(static_cast<char>(value));
}

void WireWriter::number(int field, uint64_t value) {
  varint(static_cast<uint64_t>(field) << 3 | wire_varint);
  varint(value);
}

void WireWriter::real(int field, float value) {
  varint(static_cast<uint64_t>(field) << 3 | wire_four_bytes);
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) {
    bytes_.push_back(static_cast<char>(bits >> shift));
  }
}

void WireWriter::begin_piece(int field, uint64_t size) {
  varint(static_cast<uint64_t>(field) << 3 | wire_piece);
  varint(size);
}

void WireWriter::piece(int field, std::string_view bytes) {
  begin_piece(field, bytes.size());
  bytes_ += bytes;
}

// ---- reading

uint8_t WireFile::byte(uint64_t offset) {
  constexpr size_t window = 1 << 16;
  if (offset < begin_ || offset - begin_ >= window_.size()) {
    window_.resize(window);
    window_.resize(file_.read_at(offset, window_));
    begin_ = offset;
    if (window_.empty()) {
      fail_wire("it ends in the middle of a field");
    }
  }
  return static_cast<uint8_t>(window_[offset - begin_]);
}

void WireFile::count_message() {
  if (++messages_ > most_wire_messages) {
    fail_wire("it has more nodes and tensors than any model");
  }
}

WireReader::WireReader(WireFile& file, uint64_t begin, uint64_t size) : file_(&file), at_(begin), end_(begin + size) {
  file.count_message();
}

uint64_t WireReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at_ >= end_) {
      fail_wire("a number ends in the middle");
    }
    const uint64_t byte = file_->byte(at_++);
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
  fail_wire("a number has more than 64 bits");
}

std::optional<WireField> WireReader::next() {
  if (at_ >= end_) {
    return std::nullopt;
  }
  const uint64_t key = varint();
  WireField field{.number = static_cast<int>(std::min<uint64_t>(key >> 3, INT32_MAX)), .begin = at_};
  switch (key & 7) {
    case wire_varint:
      field.value = varint();
      return field;
    case wire_piece:
      field.kind = WireField::Kind::piece;
      field.size = varint();
      field.begin = at_;
      break;
    case wire_four_bytes:
      field.kind = WireField::Kind::four_bytes;
      field.size = 4;
      break;
    case wire_eight_bytes:  // no field that is read here has them
      field.kind = WireField::Kind::piece;
      field.size = 8;
      break;
    default:
      fail_wire("a field is of no known kind");
  }
  if (field.size > end_ - at_) {
    fail_wire("a field is longer than what it lies in");
  }
  at_ += field.size;
  for (uint64_t i = 0; field.kind == WireField::Kind::four_bytes && i < 4; ++i) {
    field.value |= uint64_t{file_->byte(field.begin + i)} << (8 * i);
  }
  return field;
}

std::string WireReader::text(const WireField& field) const {
  if (field.kind != WireField::Kind::piece || field.size > longest_wire_text) {
    fail_wire("a name is no text, or longer than any");
  }
  std::string text(field.size, '\0');
  for (uint64_t i = 0; i < field.size; ++i) {
    text[i] = static_cast<char>(file_->byte(field.begin + i));
  }
  return text;
}

WireReader WireReader::inside(const WireField& field) const {
  if (field.kind != WireField::Kind::piece) {
    fail_wire("a message is expected where a number stands");
  }
  return {*file_, field};
}

uint64_t WireReader::number(const WireField& field) {
  if (field.kind != WireField::Kind::number) {
    fail_wire("a number is expected where there is none");
  }
  return field.value;
}

float WireReader::real(const WireField& field) {
  if (field.kind != WireField::Kind::four_bytes) {
    fail_wire("a float is expected where there is none");
  }
  return std::bit_cast<float>(static_cast<uint32_t>(field.value));
}

}  // namespace pare
