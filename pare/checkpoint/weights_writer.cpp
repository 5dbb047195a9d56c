#include <ATen/ATen.h>

#include <algorithm>

#include "pare/checkpoint/safetensors.h"
#include "pare/checkpoint/shards.h"
#include "pare/checkpoint/weights.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/mapped.h"
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

uint64_t size_of(const Shard& shard) {
  uint64_t total = 0;
  for (const auto& [name, tensor] : shard) {
    total += size_of(name, tensor);
  }
  return total;
}

void write_shard(const std::filesystem::path& path, const Shard& shard, const Weights& weights,
                 const std::map<std::string, CopiedTensor>& copied, Progress& progress) {
  // Stock loaders refuse files that do not say for which framework they were written.
  SafetensorsWriter writer(path, shard, {{"format", "pt"}});
  for (const auto& [name, declared] : shard) {
    if (const auto copy = copied.find(name); copy != copied.end()) {
      write_copy(writer, name, copy->second, size_of(name, declared));
    } else {
      write_tensor(writer, name, weights.at(name), path.filename().string());
    }
    progress.advance(size_of(name, declared));
  }
  writer.finish();
}

void write_shards(const std::filesystem::path& folder, const std::vector<Shard>& shards, const Weights& weights,
                  const std::map<std::string, CopiedTensor>& copied, const WriteShare& share) {
  uint64_t total = 0;
  for (const Shard& shard : shards) {
    total += size_of(shard);
  }
  Progress progress("writing", total, Progress::Unit::bytes);
  const PromptlyFreed promptly;  // tensors of many sizes come and go, and holes between them grew with every layer
  std::map<std::string, std::string> index;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file_name = shard_file_name("model", i, shards.size());
    if (share.of == 1 || static_cast<size_t>(share.number) == i) {
      write_shard(folder / file_name, shards[i], weights, copied, progress);
    } else if (share.load_all) {
      std::ranges::for_each(shards[i], [&](const auto& tensor) { weights.at(tensor.first).load(); });
    }
    for (const auto& [name, declared] : shards[i]) {
      index[name] = file_name;
    }
  }
  if (shards.size() > 1 && share.number == 0) {
    write_text_file(folder / weight_index_name, weight_index_text(index, total));
  }
}

}  // namespace

std::vector<std::vector<std::string>> names_by_file(const Weights& weights, int64_t files) {
  const Shard all = all_tensors(weights, {});
  const uint64_t total = size_of(all);
  std::vector<std::vector<std::string>> names;
  uint64_t before = 0;
  for (const auto& [name, tensor] : all) {
    const auto file = static_cast<size_t>(total == 0 ? 0 : before * static_cast<uint64_t>(files) / total);
    if (names.empty() || (names.size() <= file && !names.back().empty())) {
      names.emplace_back();
    }
    names.back().push_back(name);
    before += size_of(name, tensor);
  }
  return names;
}

void write_weights(const std::filesystem::path& folder, const Weights& weights, uint64_t shard_bytes,
                   const std::map<std::string, CopiedTensor>& copied) {
  write_shards(folder, plan_shards(all_tensors(weights, copied), shard_bytes), weights, copied, {});
}

void write_weights(const std::filesystem::path& folder, const Weights& weights, const WriteShare& share) {
  const Shard all = all_tensors(weights, {});
  const auto shard_of = [&all](const std::vector<std::string>& names) {
    Shard shard;
    for (const std::string& name : names) {
      shard[name] = all.at(name);
    }
    return shard;
  };
  write_shards(folder, mapped(names_by_file(weights, share.of), shard_of), weights, {}, share);
}

}  // namespace pare
