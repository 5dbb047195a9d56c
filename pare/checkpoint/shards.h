#pragma once
// The weight files of a folder: one file, or several with an index that says which tensor is where.
// No torch here.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/tensor_file.h"

namespace pare {

constexpr const char* weight_index_name = "model.safetensors.index.json";

struct WeightIndex {
  std::string name, text;  // as it was read
};

struct Shards {
  std::vector<TensorFile> files;     // one or more
  std::optional<WeightIndex> index;  // a single file has none
};

// Opens model.safetensors, or every file of its index, and checks that index and files agree; where there is neither,
// what torch.save wrote: pytorch_model.bin, its index, or the one .pt or .pth. With `file`, the one of that name.
Shards open_shards(const std::filesystem::path& folder, const std::string& file = "");

// Tensor name to file name, from the text of an index: files that end so, in the same folder. Pure, for the fuzzer and
// the tests.
std::map<std::string, std::string> parse_weight_index(std::string_view text, const std::string& subject,
                                                      std::string_view ending = ".safetensors");

// "model-00001-of-00003.safetensors", or "model.safetensors" where there is one; `number` from 0.
std::string shard_file_name(const std::string& stem, size_t number, size_t of);
// The text of an index, as Hugging Face writes it.
std::string weight_index_text(const std::map<std::string, std::string>& tensor_files, uint64_t total_bytes);

}  // namespace pare
