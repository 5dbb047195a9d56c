#pragma once
// The weight files of a folder: one file, or several with an index that says which tensor is where.
// No torch here.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/safetensors.h"

namespace pare {

// Opens model.safetensors, or every file of model.safetensors.index.json, and checks that index and files agree.
std::vector<SafetensorsFile> open_shards(const std::filesystem::path& folder);

// Tensor name to file name, from the text of an index. Pure, for the fuzzer and the tests.
std::map<std::string, std::string> parse_weight_index(std::string_view text, const std::string& subject);

// The text of an index, as Hugging Face writes it.
std::string weight_index_text(const std::map<std::string, std::string>& tensor_files, uint64_t total_bytes);

}  // namespace pare
