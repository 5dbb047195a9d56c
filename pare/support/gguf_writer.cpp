#include "pare/support/gguf_writer.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace {

constexpr uint64_t data_alignment = 32;  // what the format has where general.alignment says nothing
constexpr uint32_t list_kind = 9, written_version = 3;

uint64_t padding_behind(uint64_t bytes) {
  return (data_alignment - bytes % data_alignment) % data_alignment;
}

// Bytes of a header, put one behind the other.
class HeaderText {
 public:
  template <typename Value>
  void add(Value value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    text_.append(bytes, sizeof value);
  }

  void add_string(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    text_ += text;
  }

  void add_entry(const GgufEntry& entry) {
    add_string(entry.key);
    if (!entry.value.is_array()) {
      add(static_cast<uint32_t>(entry.kind));
      add_value(entry, entry.value);
      return;
    }
    add(list_kind);
    add(static_cast<uint32_t>(entry.kind));
    add(static_cast<uint64_t>(entry.value.size()));
    for (const nlohmann::json& each : entry.value) {
      add_value(entry, each);
    }
  }

  void add_tensor(const GgufDeclared& tensor, uint64_t offset) {
    PARE_CHECK(!tensor.shape.empty() && tensor.shape.size() <= 4, "dimensions of tensor " + quote(tensor.name));
    add_string(tensor.name);
    add(static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
      add(static_cast<uint64_t>(*size));
    }
    add(static_cast<uint32_t>(tensor.type));
    add(offset);
  }

  std::string take() { return std::move(text_); }

 private:
  void add_value(const GgufEntry& entry, const nlohmann::json& value) {
    const auto refuse_unless = [&](bool fits, const char* expected) {
      refuse_if(!fits, "the metadata {} would be {}, expected {}: GGUF has no more room for it", quote(entry.key),
                json_shown(value), expected);
    };
    switch (entry.kind) {
      case GgufKind::u32:
        refuse_unless(value.is_number_integer() && value.get<int64_t>() >= 0 && value.get<uint64_t>() <= UINT32_MAX,
                      "a whole number of 32 bits");
        return add(value.get<uint32_t>());
      case GgufKind::i32:
        refuse_unless(value.is_number_integer() && std::abs(value.get<int64_t>()) <= INT32_MAX,
                      "a whole number of 32 bits");
        return add(value.get<int32_t>());
      case GgufKind::f32:
        refuse_unless(value.is_number() && std::isfinite(value.get<float>()), "a number that float32 has");
        return add(value.get<float>());
      case GgufKind::boolean:
        refuse_unless(value.is_boolean(), "true or false");
        return add(static_cast<uint8_t>(value.get<bool>() ? 1 : 0));
      case GgufKind::string:
        refuse_unless(value.is_string(), "text");
        return add_string(value.get_ref<const std::string&>());
    }
    PARE_UNREACHABLE("a kind of metadata without a writer");
  }

  std::string text_;
};

}  // namespace

uint64_t gguf_bytes(const GgufDeclared& tensor) {
  const GgufBlock* const block = gguf_block(tensor.type);
  uint64_t elements = 1;
  for (const int64_t size : tensor.shape) {
    elements *= static_cast<uint64_t>(size);
  }
  PARE_CHECK(
      block != nullptr && !tensor.shape.empty() && static_cast<uint64_t>(tensor.shape.back()) % block->elements == 0,
      "tensor " + quote(tensor.name) + " has no whole blocks");
  return elements / block->elements * block->bytes;
}

std::string gguf_header(const std::vector<GgufEntry>& metadata, const std::vector<GgufDeclared>& tensors) {
  HeaderText header;
  header.add(std::array{'G', 'G', 'U', 'F'});
  header.add(written_version);
  header.add(static_cast<uint64_t>(tensors.size()));
  header.add(static_cast<uint64_t>(metadata.size()));
  std::set<std::string> names;
  for (const GgufEntry& entry : metadata) {
    PARE_CHECK(names.insert(entry.key).second, "the metadata " + quote(entry.key) + " are there twice");
    header.add_entry(entry);
  }
  uint64_t offset = 0;
  for (const GgufDeclared& tensor : tensors) {
    PARE_CHECK(names.insert("tensor " + tensor.name).second, "tensor " + quote(tensor.name) + " is there twice");
    header.add_tensor(tensor, offset);
    const uint64_t bytes = gguf_bytes(tensor);
    offset += bytes + padding_behind(bytes);
  }
  std::string text = header.take();
  text.resize(text.size() + padding_behind(text.size()));
  return text;
}

uint64_t gguf_file_bytes(std::string_view header, const std::vector<GgufDeclared>& tensors) {
  uint64_t bytes = header.size();
  for (const GgufDeclared& tensor : tensors) {
    bytes += gguf_bytes(tensor) + padding_behind(gguf_bytes(tensor));
  }
  return bytes;
}

struct GgufWriter::State {
  OutputFile file;
  std::vector<GgufDeclared> tensors;
  size_t next = 0;
  uint64_t written = 0;  // bytes of the next tensor that are in the file already
};

GgufWriter::GgufWriter(const std::filesystem::path& path, const std::vector<GgufEntry>& metadata,
                       std::vector<GgufDeclared> tensors) {
  const std::string header = gguf_header(metadata, tensors);
  state_.reset(new State{OutputFile(path), std::move(tensors)});
  state_->file.write(std::as_bytes(std::span(header)));
}

GgufWriter::~GgufWriter() = default;

void GgufWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  check_interrupt();
  PARE_CHECK(state_->next < state_->tensors.size() && state_->tensors[state_->next].name == name,
             "tensor " + quote(name) + " is not the next one");
  const GgufDeclared& tensor = state_->tensors[state_->next];
  const uint64_t size = gguf_bytes(tensor);
  PARE_CHECK(bytes.size() <= size - state_->written, "tensor " + quote(name) + " has more data than declared");
  state_->file.write(bytes);
  state_->written += bytes.size();
  if (state_->written == size) {
    const std::vector<std::byte> padding(padding_behind(size));
    state_->file.write(padding);
    ++state_->next;
    state_->written = 0;
  }
}

void GgufWriter::finish() {
  PARE_CHECK(state_->next == state_->tensors.size(), "not every tensor was written");
  state_->file.sync();
}

}  // namespace pare
