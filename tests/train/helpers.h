#pragma once
// Small runs for tests.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "pare/support/error.h"
#include "pare/train/config.h"
#include "pare/train/run_folder.h"

namespace pare::test {

inline nlohmann::json sorting_json() {
  return nlohmann::json::parse(R"({"task": "sorting", "data": {"length": 5},
    "architecture": {"width": 16, "vocab": 16, "context": 32, "embedding": {"position": "learned"},
      "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 8}, "mlp": {"width": 32, "activation": "gelu"}}]}})");
}

inline Architecture no_architecture(const std::string& word) {
  throw InputError("no Architecture is called " + word);
}

inline TrainConfig sorting_config(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json json = sorting_json();
  json.merge_patch(changes);
  return train_config_from_json(json, "test", no_architecture);
}

// Whether a message has a part, which is shown where it has not.
inline bool says(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) {
    MESSAGE("found: " << text);
  }
  return found;
}

// Everything that a run measured but the time.
inline std::string curve(const std::filesystem::path& folder) {
  std::string text;
  for (nlohmann::json line : read_metrics(folder)) {
    line.erase("seconds");
    text += line.dump() + "\n";
  }
  return text;
}

}  // namespace pare::test
