#pragma once
// What became of every tensor: its formula over the tensors of the source.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "pare/checkpoint/weights.h"

namespace pare {

struct Explanation {
  std::map<std::string, std::string> formulas;               // of each tensor that is new or changed
  std::vector<std::pair<std::string, std::string>> symbols;  // in the formulas, each with what it stands for
  std::vector<std::string> removed;
  std::map<std::string, std::vector<std::string>> retyped;  // by the type that they, and nothing but it, got
};

// Both under canonical names. Looks at no numbers.
Explanation explain(const Weights& source, const Weights& written);

// Blocks that are alike are said once: "blocks.0-11.mlp.down.weight = blocks.n.mlp.down.weight · Θₙ₊₁".
std::string text_of(const Explanation& explanation);
nlohmann::ordered_json to_json(const Explanation& explanation);

}  // namespace pare
