#include "pare/checkpoint/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "pare/checkpoint/not_a_model.h"
#include "pare/checkpoint/pytorch_file.h"
#include "pare/checkpoint/safetensors.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

constexpr const char* single_name = "model.safetensors";

// The names that transformers looks for, first those that it prefers.
struct Kind {
  std::string single, index;
  std::string_view ending;
};
const Kind kinds[] = {{single_name, weight_index_name, ".safetensors"},
                      {"pytorch_model.bin", "pytorch_model.bin.index.json", ".bin"}};

TensorFile open_file(const fs::path& path) {
  return path.extension() == ".safetensors" ? TensorFile(SafetensorsFile(path)) : TensorFile(PytorchFile(path));
}

// A file beside the index and nothing else. Links are followed: the Hugging Face cache consists of them.
bool is_plain_file_name(std::string_view name, std::string_view ending) {
  return name.ends_with(ending) && name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

bool is_there(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::none) {
    fail_io("examine", path, error.value());
  }
  return type != fs::file_type::not_found;
}

// The one file of torch.save in a folder without any of the usual names. What else may lie in a model's folder is
// refused, by the end of its name.
fs::path find_pytorch_file(const fs::path& folder) {
  std::vector<std::string> found, others;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (is_pytorch_name(name)) {
      found.push_back(name);
    } else if (other_format(name) || entry.path().extension() == ".safetensors") {
      others.push_back(name);
    }
  }
  if (error) {
    fail_io("list", folder, error.value());
  }
  const std::string subject = quote(shown(folder));
  std::ranges::sort(found);
  if (found.size() > 1) {
    throw InputError(
        fmt::format("{} has no {}, and {} files of PyTorch, such as {} and {}: give the path of the one to read",
                    subject, single_name, found.size(), quote(found[0]), quote(found[1])));
  }
  if (found.size() == 1) {
    return folder / found.front();
  }
  refuse_if(others.empty(), "{} has neither {} nor {}: the weights are missing, or it is not a model folder", subject,
            single_name, weight_index_name);
  std::ranges::sort(others);
  const std::string& other = others.front();
  std::string advice = other_format(other).value_or("");
  if (other.starts_with("adapter_")) {
    advice = "is an adapter, not a model: give its base model, and the adapter with --adapter";
  } else if (other.ends_with(".safetensors")) {
    advice = "is not the name that weights have there: rename it if it is the whole model";
  }
  throw InputError(fmt::format("{} has no {}; {} {}", subject, single_name, quote(other), advice));
}

// Every tensor in the one file that the index names, and in no other.
void check_against_index(const std::vector<TensorFile>& files, const std::map<std::string, std::string>& index,
                         Problems& problems) {
  std::map<std::string_view, std::string> holders;
  for (const TensorFile& file : files) {
    std::string file_name = file.path().filename().string();
    for (const auto& [name, tensor] : file.tensors()) {
      auto [holder, first] = holders.emplace(name, file_name);
      if (!first) {
        problems.add(
            fmt::format("tensor {} is in both {} and {}", quote(name), quote(holder->second), quote(file_name)));
      } else if (!index.contains(name)) {
        problems.add(fmt::format("tensor {} of {} is not in the index", quote(name), quote(file_name)));
      }
    }
  }
  for (const auto& [name, file_name] : index) {
    auto holder = holders.find(name);
    if (holder == holders.end()) {
      problems.add(fmt::format("tensor {} should be in {} but is in no file", quote(name), quote(file_name)));
    } else if (holder->second != file_name) {
      problems.add(
          fmt::format("tensor {} should be in {} but is in {}", quote(name), quote(file_name), quote(holder->second)));
    }
  }
}

}  // namespace

std::map<std::string, std::string> parse_weight_index(std::string_view text, const std::string& subject,
                                                      std::string_view ending) {
  nlohmann::json root = parse_json(text, subject);
  refuse_if(!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object(),
            "{} has no object \"weight_map\": not an index of weights?", subject);
  std::map<std::string, std::string> index;
  Problems problems;
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    if (!file.is_string()) {
      problems.add(fmt::format("tensor {} is in {}, expected a file name", quote(tensor), file.type_name()));
    } else if (!is_plain_file_name(file.get_ref<const std::string&>(), ending)) {
      problems.add(fmt::format("tensor {} is in {}, expected the name of a {} file in the same folder", quote(tensor),
                               quote(file.get_ref<const std::string&>()), ending));
    } else {
      index[tensor] = file.get<std::string>();
    }
  }
  problems.throw_if_any(subject);
  return index;
}

std::string shard_file_name(const std::string& stem, size_t number, size_t of) {
  return of == 1 ? stem + ".safetensors" : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, number + 1, of);
}

std::string weight_index_text(const std::map<std::string, std::string>& tensor_files, uint64_t total_bytes) {
  nlohmann::json root = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", tensor_files}};
  return root.dump(2) + "\n";
}

namespace {

Shards open_indexed(const fs::path& folder, const Kind& kind) {
  Shards shards;
  const fs::path index_path = folder / kind.index;
  std::string subject = quote(shown(index_path));
  shards.index = {kind.index, read_text_file(index_path, max_safetensors_header)};
  std::map<std::string, std::string> index = parse_weight_index(shards.index->text, subject, kind.ending);
  std::set<std::string> names;
  for (const auto& [tensor, file] : index) {
    names.insert(file);
  }
  Problems problems;
  for (const std::string& name : names) {
    try {
      shards.files.push_back(open_file(folder / name));
    } catch (const InputError& error) {
      problems.add(error.what());
    }
  }
  // With a file left out, its tensors would all seem missing.
  if (problems.empty()) {
    check_against_index(shards.files, index, problems);
  }
  problems.throw_if_any(subject);
  return shards;
}

}  // namespace

Shards open_shards(const fs::path& folder, const std::string& file) {
  refuse_if(!is_there(folder), "{}: no such folder", quote(shown(folder)));
  refuse_if(!fs::is_directory(folder), "{} is a file, expected a model folder", quote(folder.string()));
  if (!file.empty()) {
    return {.files = {open_file(folder / file)}};
  }
  for (const Kind& kind : kinds) {
    if (is_there(folder / kind.single)) {
      return {.files = {open_file(folder / kind.single)}};
    }
    if (is_there(folder / kind.index)) {
      return open_indexed(folder, kind);
    }
  }
  return {.files = {open_file(find_pytorch_file(folder))}};
}

}  // namespace pare
