#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/checkpoint/safetensors.h"
#include "pare/checkpoint/shards.h"
#include "pare/checkpoint/weights.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/progress.h"
#include "pare/support/text.h"

namespace pare {

namespace {

using Shard = std::map<std::string, SafetensorsWriter::Declared>;

uint64_t size_of(const std::string& name, const Weight& weight) {
  std::optional<uint64_t> size = byte_size(weight.dtype, weight.shape);
  PARE_CHECK(size, "tensor " + quote(name) + " cannot be stored");
  return *size;
}

// Sorted, each file filled as far as it goes.
std::vector<Shard> plan_shards(const Weights& weights, uint64_t shard_bytes) {
  std::vector<Shard> shards(1);
  uint64_t filled = 0;
  for (const auto& [name, weight] : weights) {
    uint64_t size = size_of(name, weight);
    if (!shards.back().empty() && filled + size > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back()[name] = {weight.dtype, weight.shape};
    filled += size;
  }
  return shards;
}

void write_tensor(SafetensorsWriter& writer, const std::string& name, const Weight& weight,
                  const std::string& file_name) {
  at::Tensor tensor = weight.load().contiguous();
  PARE_CHECK(tensor.scalar_type() == scalar_type(weight.dtype) && tensor.sizes() == at::IntArrayRef(weight.shape),
             "tensor " + quote(name) + " is not what was declared");
  check_finite(tensor, name, quote(file_name));
  writer.write(name, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
}

}  // namespace

void write_weights(const std::filesystem::path& folder, const Weights& weights, uint64_t shard_bytes) {
  std::vector<Shard> shards = plan_shards(weights, shard_bytes);
  uint64_t total = 0;
  for (const auto& [name, weight] : weights) {
    total += size_of(name, weight);
  }
  Progress progress("writing", total, Progress::Unit::bytes);
  std::map<std::string, std::string> index;
  for (size_t i = 0; i < shards.size(); ++i) {
    std::string file_name = shards.size() == 1 ? "model.safetensors"
                                               : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    // Stock loaders refuse files that do not say for which framework they were written.
    SafetensorsWriter writer(folder / file_name, shards[i], {{"format", "pt"}});
    for (const auto& [name, declared] : shards[i]) {
      write_tensor(writer, name, weights.at(name), file_name);
      progress.advance(size_of(name, weights.at(name)));
      index[name] = file_name;
    }
    writer.finish();
  }
  if (shards.size() > 1) {
    write_text_file(folder / "model.safetensors.index.json", weight_index_text(index, total));
  }
}

}  // namespace pare
