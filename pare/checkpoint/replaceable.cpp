#include "pare/checkpoint/replaceable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/safetensors.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/sha256.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

constexpr size_t most_named = 10;
constexpr uint64_t longest_config = 16 << 20, largest_certificate = 256 << 20;

// What save_pretrained of transformers writes beside config.json and weights.
constexpr std::string_view written_beside[] = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
};

bool is_weights_name(std::string_view name) {
  return name == "model.safetensors" ||
         glob_match("model-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].safetensors", name);
}

// What a certificate of pare is about: a model folder, or what `pare export` made for other programs.
constexpr const char* exported_names[] = {"config.json", "model.gguf", "model.onnx"};

// What a file holds that ought to be JSON; discarded where it is not.
nlohmann::json json_of(const fs::path& path, uint64_t most) {
  try {
    return parse_json(read_text_file(path, most), path.string());
  } catch (const InputError&) {
    return nlohmann::json::value_t::discarded;
  }
}

bool is_config(const fs::path& path) {
  const nlohmann::json json = json_of(path, longest_config);
  return json.is_object() && json.contains("model_type") && json.at("model_type").is_string();
}

bool is_index(const fs::path& path) {
  const nlohmann::json json = json_of(path, max_safetensors_header);
  return json.is_object() && json.contains("weight_map");
}

bool is_certificate(const nlohmann::json& json) {
  if (!json.is_object() || !json.contains("tool") || !json.at("tool").is_object()) {
    return false;
  }
  const auto name = json.at("tool").find("name");
  if (name == json.at("tool").end() || *name != "pare") {
    return false;
  }
  // One that says nothing of the model beside it frees nothing; what it says is held against the files.
  const nlohmann::json::json_pointer files("/candidate/files");
  return json.contains(files) && json.at(files).is_object() &&
         std::ranges::any_of(exported_names, [&](const char* file) { return json.at(files).contains(file); });
}

bool is_safetensors(const fs::path& path) {
  try {
    const SafetensorsFile file(path);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

// Every tensor that `run` writes ends in the number of its sequence: logits.0, residual.3.mid.7.
bool is_run_output(const fs::path& path) {
  if (!is_safetensors(path)) {
    return false;
  }
  const SafetensorsFile file(path);
  const std::map<std::string, StoredTensor>& tensors = file.tensors();
  return !tensors.empty() && std::ranges::all_of(tensors, [](const auto& entry) {
    const std::string& name = entry.first;
    const size_t dot = name.rfind('.');
    return dot != std::string::npos && dot + 1 < name.size() &&
           name.find_first_not_of("0123456789", dot + 1) == std::string::npos;
  });
}

// Why a folder may not go, name by name.
class Obstacles {
 public:
  explicit Obstacles(const fs::path& folder) : folder_(folder) {
    const nlohmann::json certificate = json_of(folder / "certificate.json", largest_certificate);
    certified_ = is_certificate(certificate);
    if (certified_) {
      record(certificate.at("candidate").at("files"));
      record(certificate.value("companions", nlohmann::json()));
    }
    is_model_ = (is_config(folder / "config.json") &&
                 (is_safetensors(folder / "model.safetensors") || is_index(folder / "model.safetensors.index.json"))) ||
                recorded_.contains("model.gguf") || recorded_.contains("model.onnx");
    walk("");
  }
  const std::vector<std::string>& names() const { return names_; }
  bool is_model() const { return is_model_; }

 private:
  void record(const nlohmann::json& hashes) {
    for (const auto& [name, hash] : hashes.items()) {
      recorded_[name] = hash.is_string() ? hash.get<std::string>() : "";
    }
  }

  void walk(const fs::path& below) {
    for (const fs::directory_entry& entry : entries_of(folder_ / below)) {
      const std::string name = (below / entry.path().filename()).string();
      std::error_code unknown;
      const bool link = entry.is_symlink(unknown);
      if (!link && entry.is_directory(unknown)) {
        if (is_model_ && holds_copies(name + "/")) {
          walk(name);
        } else {
          names_.push_back(quote(name + "/"));
        }
      } else if (!is_model_ || link || !entry.is_regular_file(unknown)) {
        names_.push_back(quote(name));
      } else if (const auto record = recorded_.find(name); record != recorded_.end()) {
        if (sha256_of_file(entry.path()) != record->second) {
          names_.push_back(quote(name) + " (changed since pare wrote it)");
        }
      } else if (!is_written(name, entry.path())) {
        names_.push_back(quote(name));
      }
    }
  }

  bool holds_copies(const std::string& prefix) const {
    const auto next = recorded_.lower_bound(prefix);
    return next != recorded_.end() && next->first.starts_with(prefix);
  }

  bool is_written(const std::string& name, const fs::path& path) const {
    if (is_weights_name(name)) {
      return is_safetensors(path);
    }
    return name == "config.json" || (name == "certificate.json" && certified_) ||
           (name == "model.safetensors.index.json" && is_index(path)) ||
           std::find(std::begin(written_beside), std::end(written_beside), name) != std::end(written_beside);
  }

  const fs::path& folder_;
  std::map<std::string, std::string> recorded_;  // what pare wrote and copied, with its hashes
  bool certified_ = false, is_model_ = false;
  std::vector<std::string> names_;
};

}  // namespace

void check_replaceable_model(const fs::path& folder) {
  const Obstacles obstacles(folder);
  std::vector<std::string> names = obstacles.names();
  if (names.empty()) {
    return;
  }
  std::string more;
  if (names.size() > most_named) {
    more = fmt::format(" and {} more", with_commas(static_cast<int64_t>(names.size() - most_named)));
    names.resize(most_named);
  }
  throw InputError(fmt::format(
      "{} is not replaced: {}. In the way: {}{}. Choose another output, or move these", quote(shown(folder)),
      obstacles.is_model() ? "it holds more than a model that pare or transformers wrote"
                           : "it is no model folder (config.json with a model_type, and safetensors)",
      fmt::join(names, ", "), more));
}

void check_replaceable_tensors(const fs::path& file) {
  std::error_code unknown;
  const bool regular = fs::is_regular_file(fs::symlink_status(file, unknown));
  if (regular && (fs::file_size(file, unknown) == 0 || is_run_output(file))) {
    return;
  }
  throw InputError(fmt::format("{} is not replaced: it is {}, and only what run wrote is. Choose another output",
                               quote(shown(file)),
                               !regular               ? "no regular file"
                               : is_safetensors(file) ? "safetensors of another kind"
                                                      : "no safetensors file"));
}

}  // namespace pare
