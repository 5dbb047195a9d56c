#include "pare/verify/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/norms.h"
#include "pare/arch/sublayer.h"
#include "pare/arch/words.h"

namespace pare {

namespace {

std::string text_of(int64_t value) {
  return std::to_string(value);
}
std::string text_of(double value) {
  return fmt::format("{}", value);
}
std::string text_of(bool value) {
  return value ? "true" : "false";
}
std::string text_of(const Alibi& alibi) {
  return alibi.scaled ? "scaled" : "not scaled";
}
std::string text_of(Rope rope) {
  JsonWriter writer;
  describe(writer, rope);
  return writer.json.dump();
}
template <class Enum>
requires std::is_enum_v<Enum> std::string text_of(Enum value) {
  return word_of(value);
}
template <class Value>
std::string text_of(const std::optional<Value>& value) {
  return value ? text_of(*value) : "none";
}

class Differences {
 public:
  template <class Value>
  void same(const std::string& setting, const Value& reference, const Value& candidate) {
    if (!(reference == candidate)) {
      list.push_back({setting, text_of(reference), text_of(candidate)});
    }
  }
  void at_least(const std::string& setting, int64_t reference, int64_t candidate) {
    if (candidate < reference) {
      list.push_back({setting, text_of(reference), text_of(candidate)});
    }
  }
  std::vector<SettingDifference> list;
};

void compare_attention(Differences& differences, const std::string& path, const Attention& a, const Attention& b) {
  differences.same(path + "mask", a.mask, b.mask);
  differences.same(path + "window", a.window, b.window);
  differences.same(path + "alibi", a.alibi, b.alibi);
  differences.same(path + "rope", a.rope, b.rope);
  differences.same(path + "softcap", a.softcap, b.softcap);
  differences.same(path + "shaped", a.shaped, b.shaped);
  // One with an epsilon above 1 may be a constant, in the matrices of the other: rows and the proof tell.
  const auto normalises = [](const Attention& t) { return t.qk_norm && t.qk_norm->epsilon <= 1; };
  differences.same(path + "qk_norm", normalises(a), normalises(b));
  if (a.qk_norm && b.qk_norm) {
    differences.same(path + "qk_norm.epsilon", a.qk_norm->epsilon, b.qk_norm->epsilon);
  }
}

void compare_mlp(Differences& differences, const std::string& path, const Mlp& a, const Mlp& b) {
  const DenseMlp *first = std::get_if<DenseMlp>(&a.kind), *second = std::get_if<DenseMlp>(&b.kind);
  if (first && second) {
    differences.same(path + "activation", first->activation, second->activation);
    differences.same(path + "gated", first->gated, second->gated);
  }
}

std::vector<SettingDifference> compare_blocks(const std::string& path, const Block& a, const Block& b) {
  Differences differences;
  compare_attention(differences, path + "attention.", a.attention, b.attention);
  if (a.mlp && b.mlp) {
    compare_mlp(differences, path + "mlp.", *a.mlp, *b.mlp);
  }
  return std::move(differences.list);
}

using Layers = std::vector<const Block*>;  // one for each that runs

Layers layers_of(const Architecture& a) {
  Layers layers;
  for (const int64_t block : layer_blocks(a)) {
    layers.push_back(&a.blocks[static_cast<size_t>(block)]);
  }
  return layers;
}

// How many of the first are found in the second, in their order.
size_t found_in_order(const Layers& fewer, const Layers& more) {
  size_t found = 0;
  for (const Block* layer : more) {
    found += found < fewer.size() && compare_blocks("", *fewer[found], *layer).empty() ? 1 : 0;
  }
  return found;
}

// What sets a block apart from the one that is most like it.
std::vector<SettingDifference> nearest(const std::string& path, const std::vector<Block>& all, const Block& block) {
  std::vector<SettingDifference> least = compare_blocks(path, all.front(), block);
  for (size_t n = 1; n < all.size() && !least.empty(); ++n) {
    std::vector<SettingDifference> found = compare_blocks(path, all[n], block);
    if (found.size() < least.size()) {
      least = std::move(found);
    }
  }
  return least;
}

// One has more layers than the other, so nobody knows which belong together.
void compare_unpaired(Differences& differences, const Architecture& a, const Architecture& b) {
  bool is_known = true;
  for (size_t n = 0; n < b.blocks.size(); ++n) {
    for (SettingDifference& found : nearest(fmt::format("block {}: ", n), a.blocks, b.blocks[n])) {
      differences.list.push_back(std::move(found));
      is_known = false;
    }
  }
  const Layers first = layers_of(a), second = layers_of(b);
  const bool has_more = second.size() > first.size();
  const size_t all = std::min(first.size(), second.size());
  const size_t found = has_more ? found_in_order(first, second) : found_in_order(second, first);
  if (is_known && found < all) {
    const std::string one = fmt::format("{} layers", all),
                      other = fmt::format("nothing like layer {} in its place", found);
    differences.list.push_back({"the order of settings", has_more ? one : other, has_more ? other : one});
  }
}

void compare_layers(Differences& differences, const Architecture& a, const Architecture& b) {
  const Layers first = layers_of(a), second = layers_of(b);
  if (first.size() != second.size()) {
    compare_unpaired(differences, a, b);
    return;
  }
  for (size_t layer = 0; layer < first.size(); ++layer) {
    for (SettingDifference& found : compare_blocks(fmt::format("layer {}: ", layer), *first[layer], *second[layer])) {
      differences.list.push_back(std::move(found));
    }
  }
}

void compare_norms(Differences& differences, Architecture a, Architecture b) {
  const std::vector<PlacedNorm> first = norms_of(a), second = norms_of(b);
  for (const PlacedNorm& one : first) {
    for (const PlacedNorm& other : second) {
      if (one.module == other.module) {
        differences.same(name_of(one.module) + ".epsilon", one.norm->epsilon, other.norm->epsilon);
      }
    }
  }
}

}  // namespace

std::vector<SettingDifference> compare_settings(const Architecture& reference, const Architecture& candidate) {
  const Architecture &a = reference, &b = candidate;
  Differences differences;
  if (!a.embedding.patch) {
    differences.same("vocab", a.vocab, b.vocab);
    differences.at_least("context", a.context, b.context);
    // One type is none: all tokens have it.
    differences.at_least("embedding.types", std::max<int64_t>(1, a.embedding.types),
                         std::max<int64_t>(1, b.embedding.types));
    differences.same("embedding.position_pad", a.embedding.position_pad, b.embedding.position_pad);
  }
  differences.same("head.softcap", a.head.softcap, b.head.softcap);
  differences.same("head.pool", a.head.pool, b.head.pool);
  compare_layers(differences, a, b);
  compare_norms(differences, a, b);
  return std::move(differences.list);
}

}  // namespace pare
