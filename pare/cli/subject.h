#pragma once
// What a command is about: a model folder, a GGUF file, a preset, or an Architecture in a JSON file.

#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/cli/commands.h"

namespace pare {

struct Subject {
  Architecture architecture;
  std::optional<ModelFolder> stored;  // only for a model folder
};

// The device of --device; prints, once, what is odd about it.
at::Device chosen_device(const Settings& settings);
// --adapter, of commands that open one model.
void add_adapter_flag(CLI::App& command, std::string& adapter);
// Opens a model, with an adapter where one is named, and prints what is odd about it.
ModelFolder open_and_warn(const std::string& path, const Settings& settings, const std::string& adapter = "");
// A path that exists wins over a preset of the same name.
Subject find_subject(const std::string& word, const Settings& settings, const std::string& adapter = "");
// Without model folders: what `init` starts from.
Architecture find_architecture(const std::string& word);

}  // namespace pare
