#pragma once
// A family as a table: what all its models have, what each key of config.json sets, and what its tensors are called.
// One reader, one writer and one list of bindings work on every table, so that none of them knows what the others
// forgot. Fields that several families have are in fields.h; code is needed only for a field of one family alone.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/config.h"
#include "pare/checkpoint/family.h"

namespace pare {

// A model on its way from config.json, or back into it: one block stands for all layers.
struct Draft {
  Architecture a;  // while reading, without blocks
  Block block;
  DenseMlp mlp;  // of that block
  int64_t layers = 0;
  // What single layers have of their own, done when the block has been repeated.
  std::vector<std::function<void(int64_t layer, Block& block)>> by_layer = {};
  std::string_view width_key = {};  // for the message
  std::string uneven = {};          // that the heads do not divide the width, where nothing else says how wide one is
};

struct Key;

void write_nothing(nlohmann::ordered_json& config, const Key& key, Draft& draft);

// What a key means: how it is read into a draft, and written from one.
struct Field {
  std::function<void(Config& config, const Key& key, Draft& draft)> read;
  std::function<void(nlohmann::ordered_json& config, const Key& key, Draft& draft)> write = write_nothing;
};

struct Key {
  NameList names;  // the first is written; the others are names of the same in other files
  Field field;
  nlohmann::json fallback = nullptr;  // where the file says nothing; null: what follows from the keys before
  std::string_view name() const { return names.all.front(); }
  // What the file says, else the default.
  int64_t whole(Config& config, int64_t least, int64_t most) const {
    return config.integer(names, fallback.get<int64_t>(), least, most);
  }
  double number(Config& config, double least) const {
    return config.number(names, fallback.get<double>(), least, most::number);
  }
};

struct TensorRow {
  // {} is the number of a block, and * of a row, where each row of ours is a tensor of theirs.
  std::string theirs;
  NameList ours;  // a module or a tensor: "mlp.up" of that block, or "embed.token"
  Stored stored = Stored::plain;
  bool (*where)(const Architecture& architecture) = nullptr;  // only in files of such models
};

// A class of a family, and what it ends in.
struct ClassRow {
  std::string_view ending;  // of its name: "ForCausalLM"
  Task task = Task::encoder;
  Head head = {};                       // as all its models have it; a bare model's transform only where it is stored
  std::vector<TensorRow> tensors = {};  // the modules of the head, with their full names
};

struct Heads {
  std::vector<ClassRow> classes;    // a file that names none is of the last whose tensors it has
  bool tied = false;                // what tie_word_embeddings says where it is absent
  std::string_view tied_bias = {};  // where a tied head keeps its bias, if not beside its matrix
  std::vector<Key> keys = {};       // that are read and written before all others
};

struct FamilyTable {
  std::string_view model_type;
  std::string_view classes;      // how the names of its classes begin: "Llama" of LlamaModel
  std::string_view base_prefix;  // of all tensors but the head's; files of the bare model leave it out
  // The same in files for question answering, where it is another.
  std::string_view answers_prefix = {};
  // What all models have. Its one block is every layer's.
  Architecture model = {};
  Heads heads = {};
  std::vector<Key> keys = {};                  // in the order in which they are read and written
  std::vector<std::string_view> neutral = {};  // keys without effect, beside those of known_keys.cpp
  void (*finish)(Config&, Draft&) = nullptr;   // what is to be said about several keys, after all of them
  std::vector<TensorRow> tensors = {};         // behind the base prefix
  // As in Family.
  std::vector<std::string_view> ignored = {};
  std::vector<std::pair<std::string_view, std::string_view>> renamed = {};
};

Family make_family(FamilyTable table);

// The bindings of a table. `number` is what stands for {} in block N, where that is not N.
std::vector<Binding> bind_table(const FamilyTable& table, const Architecture& architecture,
                                const std::function<std::string(int64_t block)>& number = nullptr);

Norm layer_norm(NormPlace place = NormPlace::pre);
Norm rms_norm(double offset = 0);  // added to the stored gains

}  // namespace pare
