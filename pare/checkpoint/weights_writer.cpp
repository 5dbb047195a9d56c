#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/checkpoint/safetensors.h"
#include "pare/checkpoint/shards.h"
#include "pare/checkpoint/weights.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/memory.h"
#include "pare/support/names.h"
#include "pare/support/progress.h"

namespace pare {

namespace {

using Shard = std::map<std::string, SafetensorsWriter::Declared>;

uint64_t size_of(const std::string& name, const SafetensorsWriter::Declared& tensor) {
  std::optional<uint64_t> size = byte_size(tensor.dtype, tensor.shape);
  PARE_CHECK(size, "tensor " + quote(name) + " cannot be stored");
  return *size;
}

Shard all_tensors(const Weights& weights, const std::map<std::string, CopiedTensor>& copied) {
  Shard all;
  for (const auto& [name, weight] : weights) {
    all[name] = {weight.dtype(), weight.shape()};
  }
  for (const auto& [name, copy] : copied) {
    const StoredTensor& tensor = copy.file.tensors().at(copy.name);
    PARE_CHECK(all.emplace(name, SafetensorsWriter::Declared{tensor.dtype, tensor.shape}).second,
               "tensor " + quote(name) + " is there twice");
  }
  return all;
}

// Sorted, each file filled as far as it goes.
std::vector<Shard> plan_shards(const Shard& all, uint64_t shard_bytes) {
  std::vector<Shard> shards(1);
  uint64_t filled = 0;
  for (const auto& [name, tensor] : all) {
    uint64_t size = size_of(name, tensor);
    if (!shards.back().empty() && filled + size > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back()[name] = tensor;
    filled += size;
  }
  return shards;
}

void write_piece(SafetensorsWriter& writer, const std::string& name, const Weight& weight, at::Tensor tensor,
                 const Shape& shape, const std::string& file_name) {
  tensor = tensor.contiguous();
  PARE_CHECK(tensor.scalar_type() == scalar_type(weight.dtype()) && tensor.sizes() == at::IntArrayRef(shape),
             "tensor " + quote(name) + " is not what was declared");
  check_finite(tensor, name, quote(file_name));
  writer.write(name, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
}

// A tensor whose rows can be had alone is never held whole: tables are the largest tensors of most models.
void write_tensor(SafetensorsWriter& writer, const std::string& name, const Weight& weight,
                  const std::string& file_name) {
  constexpr uint64_t piece_bytes = 8 << 20;  // in float64, with what a change of basis needs beside it, ten times that
  const uint64_t bytes = size_of(name, {weight.dtype(), weight.shape()});
  if (!weight.can_load_rows() || bytes <= piece_bytes) {
    write_piece(writer, name, weight, weight.load(), weight.shape(), file_name);
    return;
  }
  const uint64_t row_bytes = bytes / static_cast<uint64_t>(weight.shape()[0]);
  const int64_t step = static_cast<int64_t>(std::max<uint64_t>(1, piece_bytes / row_bytes));
  Shape shape = weight.shape();
  for (int64_t row = 0; row < weight.shape()[0]; row += step) {
    shape[0] = std::min(step, weight.shape()[0] - row);
    write_piece(writer, name, weight, weight.load_rows(row, shape[0]), shape, file_name);
  }
}

void write_copy(SafetensorsWriter& writer, const std::string& name, const CopiedTensor& copy, uint64_t size) {
  std::vector<std::byte> piece(static_cast<size_t>(std::min<uint64_t>(size, 1 << 20)));
  uint64_t offset = 0;
  do {  // also where it is empty
    const std::span<std::byte> part = std::span(piece).first(std::min<uint64_t>(piece.size(), size - offset));
    copy.file.read(copy.name, offset, part);
    writer.write(name, part);
    offset += part.size();
  } while (offset < size);
}

}  // namespace

void write_weights(const std::filesystem::path& folder, const Weights& weights, uint64_t shard_bytes,
                   const std::map<std::string, CopiedTensor>& copied) {
  const Shard all = all_tensors(weights, copied);
  std::vector<Shard> shards = plan_shards(all, shard_bytes);
  uint64_t total = 0;
  for (const auto& [name, tensor] : all) {
    total += size_of(name, tensor);
  }
  Progress progress("writing", total, Progress::Unit::bytes);
  const PromptlyFreed promptly;  // tensors of many sizes come and go, and holes between them grew with every layer
  std::map<std::string, std::string> index;
  for (size_t i = 0; i < shards.size(); ++i) {
    std::string file_name = shards.size() == 1 ? "model.safetensors"
                                               : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    // Stock loaders refuse files that do not say for which framework they were written.
    SafetensorsWriter writer(folder / file_name, shards[i], {{"format", "pt"}});
    for (const auto& [name, declared] : shards[i]) {
      if (const auto copy = copied.find(name); copy != copied.end()) {
        write_copy(writer, name, copy->second, size_of(name, declared));
      } else {
        write_tensor(writer, name, weights.at(name), file_name);
      }
      progress.advance(size_of(name, declared));
      index[name] = file_name;
    }
    writer.finish();
  }
  if (shards.size() > 1) {
    write_text_file(folder / weight_index_name, weight_index_text(index, total));
  }
}

}  // namespace pare
