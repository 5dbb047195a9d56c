#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/checkpoint/safetensors.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"

namespace pare {

// Written by hand, because the library's ordered objects search linearly and its sorted ones would sort the fields.
static std::string header_text(const std::map<std::string, SafetensorsWriter::Declared>& tensors,
                               const Metadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  }
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    std::optional<uint64_t> size = byte_size(tensor.dtype, tensor.shape);
    PARE_CHECK(size && name != "__metadata__", "tensor " + quote(name) + " cannot be stored");
    text += text.size() > 1 ? "," : "";
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", nlohmann::json(name).dump(),
                        dtype_name(tensor.dtype), nlohmann::json(tensor.shape).dump(), offset, offset + *size);
    offset += *size;
  }
  text += "}";
  // The data begins at a multiple of eight.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  PARE_CHECK(text.size() <= max_safetensors_header, "the header is larger than the format allows");
  return text;
}

struct SafetensorsWriter::State {
  OutputFile file;
  std::map<std::string, Declared> tensors;
  std::map<std::string, Declared>::const_iterator next;
  uint64_t written = 0;  // bytes of the next tensor that are in the file already
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::map<std::string, Declared> tensors,
                                     const Metadata& metadata) {
  std::string header = header_text(tensors, metadata);
  state_.reset(new State{OutputFile(path), std::move(tensors), {}});
  state_->next = state_->tensors.begin();
  uint64_t length = header.size();
  state_->file.write(std::as_bytes(std::span(&length, 1)));
  state_->file.write(std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  check_interrupt();
  PARE_CHECK(state_->next != state_->tensors.end() && state_->next->first == name,
             "tensor " + quote(name) + " is not the next in sorted order");
  const Declared& tensor = state_->next->second;
  uint64_t size = *byte_size(tensor.dtype, tensor.shape);
  PARE_CHECK(bytes.size() <= size - state_->written, "tensor " + quote(name) + " has more data than declared");
  state_->file.write(bytes);
  state_->written += bytes.size();
  if (state_->written == size) {
    ++state_->next;
    state_->written = 0;
  }
}

void SafetensorsWriter::finish() {
  PARE_CHECK(state_->next == state_->tensors.end(), "tensor " + quote(state_->next->first) + " was not written");
  state_->file.sync();
}

}  // namespace pare
