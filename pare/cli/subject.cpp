#include "pare/cli/subject.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "pare/arch/architecture_json.h"
#include "pare/arch/presets.h"
#include "pare/checkpoint/not_a_model.h"
#include "pare/checkpoint/pytorch_file.h"
#include "pare/cli/output.h"
#include "pare/model/device.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf.h"
#include "pare/support/json.h"
#include "pare/support/log.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

constexpr uint64_t largest_architecture_file = 16'000'000;

Architecture read_architecture_file(const std::string& path) {
  const nlohmann::json json = parse_json(read_text_file(path, largest_architecture_file), path);
  refuse_if(json.is_object() && json.contains("model_type"),
            "{}: this is the config.json of a model, not an Architecture: give its folder", path);
  return architecture_from_json(json, path);
}

[[noreturn]] void refuse_unknown(const std::string& word) {
  const std::vector<std::string> names = preset_names();
  throw InputError(fmt::format("{} is neither a file, nor a folder, nor a preset{} (presets: {}){}", quote(word),
                               did_you_mean(word, names), fmt::join(names, ", "), hub_hint(word)));
}

}  // namespace

Architecture find_architecture(const std::string& word) {
  refuse_if(is_folder(word), "{} is a folder: expected an Architecture in a JSON file, or a preset", quote(word));
  if (path_exists(word)) {
    if (other_format(word) || is_pytorch_name(word) || std::filesystem::path(word).extension() == ".safetensors") {
      refuse_not_a_model(word);
    }
    return read_architecture_file(word);
  }
  std::optional<Architecture> preset = find_preset(word);
  if (!preset) {
    refuse_unknown(word);
  }
  return *std::move(preset);
}

at::Device chosen_device(const Settings& settings) {
  const at::Device device = find_device(settings.device);
  print_warnings(take_device_warnings());
  return device;
}

void add_adapter_flag(CLI::App& command, std::string& adapter) {
  command.add_option("--adapter", adapter, "a LoRA adapter of peft, applied to the model")->type_name("FOLDER");
}

ModelFolder open_and_warn(const std::string& path, const Settings& settings, const std::string& adapter) {
  ModelFolder opened =
      open_model(path, settings.ignore_unknown_keys ? UnknownKeys::ignore : UnknownKeys::refuse, adapter);
  print_warnings(opened.warnings);
  if (opened.adapter) {
    log_info(fmt::format("adapter {}: {} of {} tensors changed", escaped(adapter),
                         with_commas(std::ssize(opened.adapted)), with_commas(std::ssize(opened.model.weights))));
  }
  return opened;
}

Subject find_subject(const std::string& word, const Settings& settings, const std::string& adapter) {
  if (is_folder(word) || find_gguf(word) || (path_exists(word) && is_pytorch_name(word))) {
    ModelFolder stored = open_and_warn(word, settings, adapter);
    return {.architecture = stored.model.architecture, .stored = std::move(stored)};
  }
  refuse_if(!adapter.empty(), "--adapter: {} is no model folder, and an adapter changes weights", quote(word));
  return {.architecture = find_architecture(word), .stored = std::nullopt};
}

}  // namespace pare
