#include "pare/proof/settings.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/arch/head.h"
#include "pare/arch/norms.h"
#include "pare/arch/slots.h"

namespace pare {

namespace {

using Json = nlohmann::ordered_json;

void erase_gain(Norm& norm) {
  norm.gain = norm.bias = false;
  norm.offset = 0;
}

// The identity is a matrix too.
void erase_matrix(Projection& projection) {
  if (is<Identity>(projection)) {
    projection = Dense{};
  }
}

void erase_proved(Attention& t, bool tabled) {
  if (!tabled) {
    t.scale = absorbs_scale(t) ? std::nullopt : std::optional(scale_of(t));
    for (Projection* projection : {&t.query, &t.key, &t.value}) {
      erase_matrix(*projection);
    }
  } else {
    t.scale = scale_of(t);
  }
  erase_matrix(t.output);
  t.bias = {};
  if (t.qk_norm) {
    erase_gain(*t.qk_norm);
  }
}

// Gains, biases, identities, tied tables: what is compared as numbers, absent ones as ones and zeros.
Architecture without_what_is_proved(Architecture a) {
  a.name.clear();
  a.layers = layer_blocks(a);
  for (const PlacedNorm& placed : norms_of(a)) {
    erase_gain(*placed.norm);
  }
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    Block& block = a.blocks[n];
    erase_proved(block.attention, is_tabled(a, n));
    if (block.mlp) {
      auto [matrices, writer] = mlp_matrices(a, n);
      matrices.push_back(writer);
      for (const TensorSpec& matrix : matrices) {
        if (bool* flag = bias_flag(*block.mlp, matrix.id.module.slot)) {
          *flag = false;
        }
      }
    }
  }
  a.embedding.factor_bias = false;
  if (a.embedding.patch) {
    a.embedding.patch->bias = false;
  }
  a.head.tied = a.head.bias = false;
  if (a.head.transform) {
    a.head.transform->bias = false;
  }
  if (a.head.sequence) {
    a.head.sequence->bias = false;
    if (a.head.sequence->transform) {
      a.head.sequence->transform->bias = false;
    }
  }
  return a;
}

// A candidate that takes more than the reference takes all that the reference does.
void erase_room(const Architecture& reference, Architecture& candidate) {
  const auto room = [](int64_t needed, int64_t& found) { found = found > needed ? needed : found; };
  room(reference.context, candidate.context);
  if (reference.embedding.types > 0) {
    room(reference.embedding.types, candidate.embedding.types);
  }
  if (!is_language_model(reference) && !reference.embedding.patch) {
    room(reference.vocab, candidate.vocab);
  }
}

// Computed positions are a table too, that nobody stored.
void erase_computed_positions(Embedding& a, Embedding& b) {
  const auto is_table_of = [](const Embedding& e, const Embedding& other) {
    const bool computed = other.position == Position::sinusoidal || other.position == Position::sinusoidal_halves;
    return computed && e.position == Position::learned && e.position_offset == other.position_offset;
  };
  if (is_table_of(b, a)) {
    a.position = Position::learned;
  } else if (is_table_of(a, b)) {
    b.position = Position::learned;
  }
}

struct Compared {
  Architecture reference, candidate;
};

Compared compared(const Architecture& reference, const Architecture& candidate) {
  Compared both{without_what_is_proved(reference), without_what_is_proved(candidate)};
  erase_wide_windows(both.reference, reference.context);
  erase_wide_windows(both.candidate, reference.context);
  erase_room(both.reference, both.candidate);
  erase_computed_positions(both.reference.embedding, both.candidate.embedding);
  return both;
}

void list_differences(const Json& a, const Json& b, const std::string& path, std::vector<std::string>& found) {
  if (a == b) {
    return;
  }
  if (a.is_object() && b.is_object()) {
    Json all = a;
    all.update(b);
    for (const auto& [key, value] : all.items()) {
      list_differences(a.value(key, Json()), b.value(key, Json()), path.empty() ? key : path + "." + key, found);
    }
    return;
  }
  const auto text = [](const Json& value) { return value.is_null() ? std::string("absent") : value.dump(); };
  found.push_back(fmt::format("{}: {} in the reference, {} in the candidate", path, text(a), text(b)));
}

Json block_json(const Architecture& architecture, size_t n) {
  Architecture one = architecture;
  one.blocks = {architecture.blocks[n]};
  one.layers.reset();
  return architecture_to_json(one)["blocks"][0];
}

// One overload for each kind of MLP.
void erase_settings(DenseMlp& m) {
  m.activation = Activation::identity;
}
void erase_settings(NeuronHeads&) {}

// What decides how numbers are used, and not which numbers there are.
Architecture without_settings(Architecture a) {
  for (Block& block : a.blocks) {
    Attention& t = block.attention;
    t.rope.reset();
    t.window.reset();
    t.alibi.reset();
    t.softcap.reset();
    t.scale.reset();
    t.mask = Mask::causal;
    t.remembered = Remembered::keys_values;
    if (t.qk_norm) {
      t.qk_norm->epsilon = 0;
    }
    if (block.mlp) {
      std::visit([](auto& kind) { erase_settings(kind); }, block.mlp->kind);
    }
  }
  for (const PlacedNorm& placed : norms_of(a)) {
    placed.norm->epsilon = 0;
    placed.norm->factor = 1;
  }
  a.embedding.scale = 1;
  a.embedding.position_pad.reset();
  a.embedding.masked.reset();
  a.head.softcap.reset();
  a.head.scale = 1;
  return a;
}

}  // namespace

bool absorbs_scale(const Attention& t) {
  return t.scores == Form::factored && is_plain(t.query) && is_plain(t.key) && !is<FromKey>(t.value) && !t.qk_norm &&
         !(t.alibi && t.alibi->scaled);
}

void erase_wide_windows(Architecture& architecture, int64_t context) {
  for (Block& block : architecture.blocks) {
    std::optional<int64_t>& window = block.attention.window;
    if (window && *window >= context && !architecture.embedding.patch) {
      window.reset();
    }
  }
}

std::vector<std::string> differing_settings(const Architecture& reference, const Architecture& candidate) {
  Compared both = compared(reference, candidate);
  std::vector<std::string> found;
  if (both.reference == both.candidate) {
    return found;
  }
  if (both.reference.blocks.size() == both.candidate.blocks.size()) {
    for (size_t n = 0; n < both.reference.blocks.size(); ++n) {
      if (both.reference.blocks[n] != both.candidate.blocks[n]) {
        list_differences(block_json(both.reference, n), block_json(both.candidate, n), fmt::format("blocks[{}]", n),
                         found);
      }
    }
    both.candidate.blocks = both.reference.blocks;
  }
  list_differences(architecture_to_json(both.reference), architecture_to_json(both.candidate), "", found);
  if (found.empty()) {
    found.push_back("architecture: the two differ in something that their JSON does not show");
  }
  return found;
}

bool same_structure(const Architecture& reference, const Architecture& candidate) {
  const Compared both = compared(reference, candidate);
  return without_settings(both.reference) == without_settings(both.candidate);
}

}  // namespace pare
