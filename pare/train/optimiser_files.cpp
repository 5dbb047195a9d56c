#include "pare/train/optimiser_files.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "pare/checkpoint/bound_weights.h"
#include "pare/checkpoint/safetensors.h"
#include "pare/checkpoint/shards.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/names.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

constexpr const char* stem = "optimizer";
constexpr const char* step_key = "step";
constexpr const char* weights_key = "weights";

std::span<const std::byte> bytes_of_tensor(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// The one, or as many as it names. InputError where one of them is not there.
std::vector<fs::path> optimiser_files(const fs::path& checkpoint) {
  std::set<size_t> counts;
  for (const fs::directory_entry& entry : entries_of(checkpoint)) {
    const std::string name = entry.path().filename().string();
    const size_t place = name.rfind("-of-");
    size_t count = 0;
    if (name.starts_with(std::string(stem) + "-") && place != std::string::npos &&
        std::from_chars(name.data() + place + 4, name.data() + name.size(), count).ec == std::errc() && count > 0) {
      counts.insert(count);
    }
  }
  if (counts.size() > 1) {
    throw InputError(
        fmt::format("{} has files of the optimiser's state of {} and of {} ranks: remove those that were "
                    "put there",
                    quote(checkpoint.string()), *counts.begin(), *counts.rbegin()));
  }
  const size_t of = counts.empty() ? 1 : *counts.begin();
  std::vector<fs::path> files;
  for (size_t i = 0; i < of; ++i) {
    files.push_back(checkpoint / shard_file_name(stem, i, of));
    refuse_if(!path_exists(files.back()), "{} is missing", quote(files.back().string()));
  }
  return files;
}

// What the optimiser's state says of itself; empty where it does not. Files that lie together say the same.
std::string state_says(const fs::path& checkpoint, const char* key) {
  std::set<std::string> said;
  for (const fs::path& path : optimiser_files(checkpoint)) {
    const SafetensorsFile file(path);
    const auto found = file.metadata().find(key);
    said.insert(found == file.metadata().end() ? "" : found->second);
  }
  refuse_if(said.size() > 1, "{} has files of the optimiser's state that do not belong together: their {} is {}",
            quote(checkpoint.string()), key, fmt::join(said, " and "));
  return *said.begin();
}

}  // namespace

void write_optimiser_state(const fs::path& checkpoint, const Weights& state, int64_t step, const std::string& weights,
                           const WriteShare& share) {
  const std::vector<std::vector<std::string>> files = names_by_file(state, share.of);
  for (size_t i = 0; i < files.size(); ++i) {
    const bool own = share.number == static_cast<int64_t>(i);
    std::map<std::string, SafetensorsWriter::Declared> declared;
    for (const std::string& name : files[i]) {
      declared[name] = {state.at(name).dtype(), state.at(name).shape()};
    }
    std::optional<SafetensorsWriter> writer;
    if (own) {
      const Metadata metadata = {{"format", "pt"}, {step_key, std::to_string(step)}, {weights_key, weights}};
      writer.emplace(checkpoint / shard_file_name(stem, i, files.size()), declared, metadata);
    }
    for (const std::string& name : files[i]) {
      const at::Tensor tensor = own || share.load_all ? state.at(name).load().contiguous() : at::Tensor();
      own ? writer->write(name, bytes_of_tensor(tensor)) : void();
    }
    own ? writer->finish() : void();
  }
}

Weights optimiser_state(const fs::path& checkpoint) {
  Weights state;
  for (const fs::path& file : optimiser_files(checkpoint)) {
    state.merge(weights_of(SafetensorsFile(file)));
  }
  return state;
}

OptimiserStamp optimiser_stamp(const fs::path& checkpoint) {
  return {state_says(checkpoint, step_key), state_says(checkpoint, weights_key)};
}

}  // namespace pare
