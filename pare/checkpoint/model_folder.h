#pragma once
// A model on disk: a folder with config.json and weights, native or of a Hugging Face family, or a GGUF file.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/adapter.h"
#include "pare/checkpoint/model.h"
#include "pare/checkpoint/shards.h"
#include "pare/checkpoint/unused_tensors.h"
#include "pare/support/gguf.h"

namespace pare {

struct ModelFolder {
  std::filesystem::path path;         // of the folder or the file
  std::string family;                 // "pare" for the native format
  Model model;                        // complete and of the right shapes
  Dtype dtype = Dtype::f32;           // of most of the parameters
  std::vector<std::string> warnings;  // what is odd about it, and was read all the same
  // Keys of config.json that nobody knows, in its order ("rope_scaling.KEY" within): only with UnknownKeys::ignore.
  std::vector<std::string> ignored_keys;
  // What the model was read from: nothing of it is looked up by its path again. Empty for a model that was never
  // stored.
  std::string config;  // the text of config.json, or of one that says what a GGUF file says
  Shards stored;
  std::vector<GgufFile> gguf;  // in place of those
  UnusedTensors unused;        // what lies in those files beside the model's own tensors
  // The model is what its files hold with this applied. Tensors that it changes are sums in float64; these are their
  // types in the files, by our names.
  std::optional<Adapter> adapter;
  std::map<std::string, Dtype> adapted;
  Dtype stored_dtype(const std::string& tensor) const;
};

uint64_t stored_bytes(const ModelFolder& model);  // of all files of weights

// The SHA-256 of what was read, by the file's name: config.json, the weights and their index, the adapter. Reads every
// byte of the weights, the first time. InputError where one of them was written to since it was opened: ask after all
// else was read.
std::map<std::string, std::string> file_hashes(const ModelFolder& model);

// What the blocks of a quantised GGUF model could hold beside what they do, and what they could have been made of (see
// BlockRange of gguf_blocks.h and GgufFact): by our names, of the shapes of the model's own weights. Nothing for a
// model that is stored otherwise.
struct QuantisedRange {
  Weights step, low, high, within, outside, moved, group;
};
std::optional<QuantisedRange> quantisation_of(const ModelFolder& model);
bool is_in_blocks(const ModelFolder& model);          // some of it
std::string types_of_gguf(const ModelFolder& model);  // "Q4_K 12, Q6_K 2, F32 5": of how many tensors; most first

// A key that nobody knows may change what transformers computes, so it is refused where nobody says otherwise.
enum class UnknownKeys { refuse, ignore };

// Opens and checks everything but the data: config, header, names, types, shapes, all problems listed. `path` is a
// folder, or a file of PyTorch with config.json beside it, which is then read in place of other weights. Where a tied
// head is stored a second time the two are read and compared, and the model is untied if they differ. An error brings
// along the warnings that came before it. A GGUF file, or a folder with one and without config.json, is a model too.
// `adapter`: the folder of one that is applied.
ModelFolder open_model(const std::filesystem::path& path, UnknownKeys unknown = UnknownKeys::refuse,
                       const std::filesystem::path& adapter = {});

// The Architecture of a config.json alone, from its text. Pure, for the fuzzer and the tests.
Architecture parse_config(std::string_view text, const std::string& subject);

// Writes a native model folder, whole or not at all. With `replace` another model makes room, but nothing else does.
// Hands back warnings.
std::vector<std::string> write_native_model(const std::filesystem::path& folder, const Model& model, bool replace,
                                            uint64_t shard_bytes);

}  // namespace pare
