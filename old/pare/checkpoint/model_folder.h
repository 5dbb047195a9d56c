#pragma once
// A model on disk: a folder with config.json and safetensors, native or of a Hugging Face family.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/model.h"

namespace pare {

struct ModelFolder {
  std::filesystem::path path;
  std::string family;                 // "pare" for the native format
  Model model;                        // complete and of the right shapes
  Dtype dtype = Dtype::f32;           // of most of the parameters
  std::vector<std::string> warnings;  // what is odd about it, and was read all the same
};

// Opens and checks everything but the data: config, header, names, types, shapes, all problems listed. Where a tied
// head is stored a second time the two are read and compared, and the model is untied if they differ. An error brings
// along the warnings that came before it.
ModelFolder open_model(const std::filesystem::path& folder);

// The Architecture of a config.json alone, from its text. Pure, for the fuzzer and the tests.
Architecture parse_config(std::string_view text, const std::string& subject);

// Writes a native model folder, whole or not at all. With `replace` another model makes room, but nothing else does.
// Hands back warnings.
std::vector<std::string> write_native_model(const std::filesystem::path& folder, const Model& model, bool replace,
                                            uint64_t shard_bytes);

}  // namespace pare
