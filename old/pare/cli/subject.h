#pragma once
// What a command is about: a model folder, a preset, or an Architecture in a JSON file.

#include <optional>
#include <string>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/model_folder.h"

namespace pare {

struct Subject {
  Architecture architecture;
  std::optional<ModelFolder> stored;  // only for a model folder
};

// Opens a model folder, and prints what is odd about it.
ModelFolder open_and_warn(const std::string& folder);
// A path that exists wins over a preset of the same name.
Subject find_subject(const std::string& word);
// Without model folders: what `init` starts from.
Architecture find_architecture(const std::string& word);

}  // namespace pare
