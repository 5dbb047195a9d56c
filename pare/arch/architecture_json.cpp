#include "pare/arch/architecture_json.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "pare/arch/sublayer.h"
#include "pare/arch/validate.h"
#include "pare/arch/words.h"

namespace pare {

// As it is written: equal neighbours are one entry, with a number.
struct BlockEntry {
  int64_t repeat = 1;
  Block block;
};
struct WrittenArchitecture {
  Architecture architecture;  // without blocks
  std::vector<BlockEntry> entries;
};

template <class Io>
static void describe(Io& io, BlockEntry& entry) {
  Block& b = entry.block;
  io.optional("repeat", entry.repeat, int64_t{1});
  io.optional("wiring", b.wiring, Wiring::serial);
  io.required("attention", b.attention);
  io.nullable("mlp", b.mlp);
  if (b.mlp && b.wiring == Wiring::parallel) {  // one sum, one skip: the attention's
    b.mlp->skip = b.attention.skip;
  }
}

template <class Io>
static void describe(Io& io, Patch& p) {
  io.required("size", p.size);
  io.optional("channels", p.channels, int64_t{3});
  io.required("image", p.image);
  io.optional("bias", p.bias, true);
}

template <class Io>
static void describe(Io& io, MaskedTokens& m) {
  io.required("id", m.id);
  io.optional("usual", m.usual, 0.12);
}

template <class Io>
static void describe(Io& io, Embedding& e) {
  io.optional("position", e.position, Position::none);
  io.optional("position_offset", e.position_offset, int64_t{0});
  io.nullable("position_pad", e.position_pad);
  io.optional("types", e.types, int64_t{0});
  io.optional("scale", e.scale, 1.0);
  io.nullable("norm", e.norm);
  io.nullable("factor", e.factor);
  io.optional("factor_scope", e.factor_scope, FactorScope::token);
  io.optional("factor_bias", e.factor_bias, false);
  io.optional("class_token", e.class_token, false);
  io.optional("registers", e.registers, int64_t{0});
  io.optional("registers_placed", e.registers_placed, false);
  io.nullable("masked", e.masked);
  io.nullable("patch", e.patch);
}

template <class Io>
static void describe(Io& io, HeadTransform& t) {
  io.required("activation", t.activation);
  io.optional("bias", t.bias, true);
  io.nullable("norm", t.norm);
  io.nullable("width", t.width);
}

template <class Io>
static void describe(Io& io, SequenceHead& h) {
  io.required("classes", h.classes);
  io.optional("bias", h.bias, true);
  io.nullable("transform", h.transform);
}

template <class Io>
static void describe(Io& io, AttentionPool& p) {
  io.required("heads", p.heads);
  io.required("mlp_width", p.mlp_width);
  io.required("activation", p.activation);
  io.nullable("norm", p.norm);
}

template <class Io>
static void describe(Io& io, Head& h) {
  io.optional("tied", h.tied, false);
  io.optional("bias", h.bias, false);
  io.nullable("classes", h.classes);
  io.nullable("softcap", h.softcap);
  io.optional("scale", h.scale, 1.0);
  io.nullable("transform", h.transform);
  io.optional("pool", h.pool, Pool::first);
  io.nullable("pool_token", h.pool_token);
  io.nullable("attention_pool", h.attention_pool);
  io.nullable("pool_norm", h.pool_norm);
  io.nullable("sequence", h.sequence);
}

template <class Io>
static void describe(Io& io, WrittenArchitecture& w) {
  Architecture& a = w.architecture;
  io.optional("name", a.name, std::string());
  io.optional("task", a.task, Task::causal_lm);
  io.required("width", a.width);
  io.optional("vocab", a.vocab, int64_t{0});  // validate() asks for it where there are no patches
  io.required("context", a.context);
  io.optional("embedding", a.embedding, Embedding{});
  io.required("blocks", w.entries);
  io.nullable("layers", a.layers);
  io.optional("first_layer", a.first_layer, FirstLayer::dense);
  io.nullable("final_norm", a.final_norm);
  io.optional("head", a.head, Head{});
}

static std::vector<BlockEntry> folded(const std::vector<Block>& blocks) {
  std::vector<BlockEntry> entries;
  for (const Block& block : blocks) {
    if (!entries.empty() && entries.back().block == block) {
      ++entries.back().repeat;
    } else {
      entries.push_back({1, block});
    }
  }
  return entries;
}

// The blocks written out, and the entry that each came from, for what validate() says of it.
static void expand(WrittenArchitecture& written, std::vector<std::string>& paths, Problems& problems) {
  int64_t total = 0;
  for (size_t i = 0; i < written.entries.size(); ++i) {
    const int64_t repeat = written.entries[i].repeat;
    problems.add_if(repeat < 1 || repeat > most_blocks, "blocks[{}].repeat: {} is not between 1 and {}", i, repeat,
                    most_blocks);
    total += std::clamp<int64_t>(repeat, 0, most_blocks);
  }
  problems.add_if(total > most_blocks, "blocks: {} blocks are more than {}", total, most_blocks);
  if (!problems.empty()) {
    return;
  }
  for (size_t i = 0; i < written.entries.size(); ++i) {
    const auto [repeat, block] = written.entries[i];
    written.architecture.blocks.insert(written.architecture.blocks.end(), static_cast<size_t>(repeat), block);
    paths.insert(paths.end(), static_cast<size_t>(repeat), fmt::format("blocks[{}].", i));
  }
}

Architecture architecture_from_json(const nlohmann::json& json, const std::string& subject) {
  Problems problems, contradictions;
  WrittenArchitecture written;
  std::vector<std::string> paths;
  JsonReader reader(json, "", problems, contradictions);
  reader.read(json, "", written);
  if (problems.empty()) {  // on a half-read value the rest would only invent more
    expand(written, paths, problems);
  }
  if (problems.empty()) {
    validate(written.architecture, problems, paths);
  }
  for (const std::string& contradiction : contradictions.list()) {
    problems.add(contradiction);
  }
  problems.throw_if_any(subject);
  return std::move(written.architecture);
}

nlohmann::ordered_json architecture_to_json(const Architecture& architecture) {
  WrittenArchitecture written{architecture, folded(architecture.blocks)};
  return JsonWriter::write(written);
}

std::string architecture_text(const Architecture& architecture) {
  return architecture_to_json(architecture).dump(2) + "\n";
}

const char* word(Task task) {
  return word_of(task);
}
const char* word(Activation activation) {
  return word_of(activation);
}
const char* word(NormKind kind) {
  return word_of(kind);
}

void unfold_blocks(nlohmann::json& blocks) {
  if (!blocks.is_array()) {
    return;
  }
  nlohmann::json all = nlohmann::json::array();
  for (nlohmann::json entry : blocks) {
    const nlohmann::json repeat = entry.is_object() ? entry.value("repeat", nlohmann::json(1)) : nlohmann::json();
    if (!repeat.is_number_integer() || repeat < 1 || repeat > most_blocks - static_cast<int64_t>(all.size())) {
      return;
    }
    entry.erase("repeat");
    for (int64_t i = repeat.get<int64_t>(); i > 0; --i) {
      all.push_back(entry);
    }
  }
  blocks = std::move(all);
}

}  // namespace pare
