#pragma once
// What attention.cpp and mlp.cpp each say of their kind of sublayer, for those who put a model together of them:
// its fields as JSON, and the rules it must obey. What it stores is declared in slots.h.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "pare/arch/architecture.h"
#include "pare/support/error.h"

namespace pare {

// Bounds on numbers that come from files: far above any model, far below what overflows.
constexpr int64_t most_of_anything = int64_t{1} << 31;

// Rules that a value must obey, each with the path of what breaks it.
class Rules {
 public:
  template <class... Args>
  void require(bool holds, const std::string& path, fmt::format_string<Args...> text, Args&&... args) {
    if (!holds) {
      problems.add(path + ": " + fmt::format(text, std::forward<Args>(args)...));
    }
  }
  void in_range(const std::string& path, int64_t value, int64_t least = 1, int64_t most = most_of_anything) {
    require(value >= least && value <= most, path, "{} is not between {} and {}", value, least, most);
  }

  Problems problems;
};

class JsonReader;
class JsonWriter;

void describe(JsonReader& io, Norm& norm);
void describe(JsonWriter& io, Norm& norm);
void describe(JsonReader& io, Rope& rope);
void describe(JsonWriter& io, Rope& rope);
void describe(JsonReader& io, Attention& attention);
void describe(JsonWriter& io, Attention& attention);
void describe(JsonReader& io, Mlp& mlp);
void describe(JsonWriter& io, Mlp& mlp);

// `path` ends in a dot: "blocks[2].attention.". `width` is the model's.
void check_norm(Rules& rules, const std::string& path, const std::optional<Norm>& norm, bool may_be_post);
void check_rope(Rules& rules, const std::string& path, const Rope& rope, int64_t head_width);
void check_attention(Rules& rules, const std::string& path, const Block& block, int64_t width);
void check_mlp(Rules& rules, const std::string& path, const Block& block);

}  // namespace pare
