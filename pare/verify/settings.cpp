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
  differences.same(path + "qk_norm", a.qk_norm.has_value(), b.qk_norm.has_value());
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

void compare_layers(Differences& differences, const Architecture& a, const Architecture& b) {
  const std::vector<int64_t> first = layer_blocks(a), second = layer_blocks(b);
  if (first.size() != second.size()) {
    return;  // which of them belong together is not known
  }
  for (size_t layer = 0; layer < first.size(); ++layer) {
    const Block& one = a.blocks[static_cast<size_t>(first[layer])];
    const Block& other = b.blocks[static_cast<size_t>(second[layer])];
    const std::string path = fmt::format("layer {}: ", layer);
    compare_attention(differences, path + "attention.", one.attention, other.attention);
    if (one.mlp && other.mlp) {
      compare_mlp(differences, path + "mlp.", *one.mlp, *other.mlp);
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
