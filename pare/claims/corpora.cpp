#include "pare/claims/corpora.h"

#include <nlohmann/json.hpp>

#include "pare/support/files.h"

namespace pare {

std::optional<std::string> in_corpora(const std::filesystem::path& data, const std::string& name) {
  for (const char* ending : {"", ".xz", ".gz"}) {
    const std::filesystem::path path = data / (name + ending);
    if (path_exists(path)) {
      return path.string();
    }
  }
  return std::nullopt;
}

std::vector<nlohmann::json*> corpora_in(nlohmann::json& config) {
  std::vector<nlohmann::json*> names;
  for (const char* model : {"from", "teacher"}) {
    if (config.contains(model)) {
      names.push_back(&config[model]);
    }
  }
  if (!config.contains("data")) {
    return names;
  }
  nlohmann::json& data = config["data"];
  for (const char* part : {"train", "validation"}) {
    if (data.contains(part)) {
      for (nlohmann::json& file : data[part]) {
        names.push_back(&file);
      }
    }
  }
  for (const char* part : {"tokenizer", "shards"}) {
    if (data.contains(part)) {
      names.push_back(&data[part]);
    }
  }
  return names;
}

}  // namespace pare
