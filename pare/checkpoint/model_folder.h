#pragma once
// A model on disk: a folder with config.json and safetensors, native or of a Hugging Face family.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/checkpoint/shards.h"
#include "pare/checkpoint/unused_tensors.h"

namespace pare {

struct ModelFolder {
  std::filesystem::path path;
  std::string family;                 // "pare" for the native format
  Model model;                        // complete and of the right shapes
  Dtype dtype = Dtype::f32;           // of most of the parameters
  std::vector<std::string> warnings;  // what is odd about it, and was read all the same
  // Keys of config.json that nobody knows, in its order ("rope_scaling.KEY" within): only with UnknownKeys::ignore.
  std::vector<std::string> ignored_keys;
  // What the model was read from: nothing of it is looked up by its path again. Empty for a model that was never
  // stored.
  std::string config;  // the text of config.json
  Shards stored;
  UnusedTensors unused;  // what lies in those files beside the model's own tensors
};

// The SHA-256 of what was read, by the file's name: config.json, the weights and their index. Reads every byte of the
// weights, the first time. InputError where one of them was written to since it was opened: ask after all else was
// read.
std::map<std::string, std::string> file_hashes(const ModelFolder& model);

// A key that nobody knows may change what transformers computes, so it is refused where nobody says otherwise.
enum class UnknownKeys { refuse, ignore };

// Opens and checks everything but the data: config, header, names, types, shapes, all problems listed. Where a tied
// head is stored a second time the two are read and compared, and the model is untied if they differ. An error brings
// along the warnings that came before it.
ModelFolder open_model(const std::filesystem::path& folder, UnknownKeys unknown = UnknownKeys::refuse);

// The Architecture of a config.json alone, from its text. Pure, for the fuzzer and the tests.
Architecture parse_config(std::string_view text, const std::string& subject);

// Writes a native model folder, whole or not at all. With `replace` another model makes room, but nothing else does.
// Hands back warnings.
std::vector<std::string> write_native_model(const std::filesystem::path& folder, const Model& model, bool replace,
                                            uint64_t shard_bytes);

}  // namespace pare
