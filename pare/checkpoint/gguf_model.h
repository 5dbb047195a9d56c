#pragma once
// A model in GGUF, as ggml's converter writes it, told as the Hugging Face family that it was made from: the same
// config.json, the same names, the same order of rows. What reads a model folder reads it from there.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/gguf_changes.h"
#include "pare/checkpoint/weights.h"
#include "pare/support/gguf.h"
#include "pare/support/gguf_writer.h"

namespace pare {

struct GgufRow {
  std::string_view theirs;  // "blk.{}.attn_q": a module, with a weight and perhaps a bias
  std::string_view family;  // "model.layers.{}.self_attn.q_proj"
  GgufChange change = GgufChange::none;
  std::string_view beside = {};  // only in files that have this tensor
};

// What is known of a model beside its table, for what only one family does.
struct GgufReading {
  const GgufMetadata& metadata;
  const std::map<std::string, Shape>& tensors;  // of all files, by their names there
  nlohmann::json& config;
  std::optional<int64_t> whole(std::string_view key) const;  // of the model: "attention.head_count"
  bool has(std::string_view tensor) const { return tensors.contains(std::string(tensor)); }
};

// A key of the metadata, without the architecture before it, and the key of config.json that says the same.
struct GgufKey {
  std::string_view theirs, family;
  GgufKind kind = GgufKind::u32;
};

// What llama.cpp's program for an architecture has of its own, and nothing in a file says. Only who writes asks.
struct GgufProgram {
  std::vector<std::string_view> asks_for = {}, lacks = {};  // tensors by their names: "blk.{}.attn_output.bias"
  bool own_head_width = true;  // heads may be wider or narrower than what they divide the stream into
  bool rope_factors = false;   // reads rope_freqs
};

struct GgufFamily {
  std::string_view architecture;  // general.architecture
  std::string_view model_type;    // of the family
  std::string_view model_class;   // in "architectures"
  std::vector<GgufKey> keys;
  std::vector<GgufRow> tensors;
  void (*finish)(GgufReading& reading) = nullptr;  // what follows from several keys and tensors
  std::vector<GgufEntry> constants = {};           // what all of its files say
  GgufProgram program = {};
};

// A key of our own, of a file that holds a head. True: it is the table again, since llama.cpp asks for one. False: it
// is another, where a file of the family does not say that by having one, since converters wrote the table there.
constexpr const char* gguf_tied_head = "pare.tied_head";
bool gguf_head_is_another(std::string_view model_type);  // where a file has one and says no more

const std::vector<GgufFamily>& gguf_families();

// The config.json that says what the metadata say. A key of the architecture that nobody knows stands in it under its
// own name, where reading it refuses it. InputError where the file is of a family that pare does not have.
nlohmann::json gguf_config(const GgufMetadata& metadata, const std::map<std::string, Shape>& tensors,
                           const std::string& subject);
const GgufFamily& gguf_family(const GgufMetadata& metadata, const std::string& subject);

// What is asked of the elements of a file: themselves, what BlockRange says of them, or `group`, a number in float64
// that elements have in common which share a scale. An element that is stored in no block has a group of its own and is
// itself the lowest and the highest; all else is 0 there.
enum class GgufFact { value, step, low, high, within, outside, moved, group };
std::optional<GgufFact> gguf_fact_of(std::string_view word);

// Every tensor by its name in the file. Types that are quantised are dequantised when they are loaded, to float32; that
// the floats are finite is checked there. InputError for types that pare does not read.
Weights weights_of(std::span<const GgufFile> files, GgufFact fact = GgufFact::value);

struct GgufModel {
  nlohmann::json config;        // of the family
  Weights weights;              // by the family's names
  std::vector<GgufFile> files;  // one, or all parts
};

GgufModel open_gguf_model(const std::filesystem::path& path);
// The same tensors by the same names, but of another fact.
Weights gguf_facts(std::span<const GgufFile> files, GgufFact fact);

}  // namespace pare
