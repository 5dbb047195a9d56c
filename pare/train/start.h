#pragma once
// Where a run starts from: drawn numbers, or a stored model where it has tensors of the same names and shapes.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pare/checkpoint/model_folder.h"
#include "pare/model/inputs.h"
#include "pare/train/config.h"

namespace pare {

struct Start {
  Model model;
  // start.json: "from" with the files' SHA-256, what was taken and what was not; empty where all is drawn.
  nlohmann::ordered_json manifest = nlohmann::ordered_json::object();
  std::string note;  // a line for people; empty where there is nothing to say
  std::vector<std::string> warnings;
};

// InputError where the folder is no model, or nothing of it fits.
Start start_of_run(const TrainConfig& config, const Inputs& sample);

// The files of a model with their SHA-256, as manifests have them.
nlohmann::ordered_json source_manifest(const std::string& path, const ModelFolder& folder);

}  // namespace pare
