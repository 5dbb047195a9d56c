#pragma once
// What two models say of themselves, compared directly: settings that no rewrite may change, and that random inputs
// might not tell apart.

#include <optional>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/model_folder.h"

namespace pare {

struct SettingDifference {
  std::string setting;  // "blocks.3.attention.window"
  std::string reference, candidate;
};

// What the candidate cannot take of all that the reference can (context, vocabulary, token types), and what decides who
// sees whom, which positions there are, and where numbers are capped. Layers are compared one by one where both models
// have the same number of them. Else nobody knows which belong together: then the layers of the one with fewer have to
// be among the other's, in their order, and the candidate has none with settings that no layer of the reference has.
std::vector<SettingDifference> compare_settings(const Architecture& reference, const Architecture& candidate);

// A number of GGUF's metadata is a float32, read as the shortest decimal that it stands for. Where the other model,
// which is no GGUF, says another decimal that it stands for as well, that one is meant. Nothing where there is none.
std::optional<ModelFolder> with_settings_meant(const ModelFolder& gguf, const ModelFolder& other);

// Keys of config.json that decide what transformers makes of the same numbers: which token speaks for a text, and what
// a class is called. They are no part of an Architecture, since who asks pare says which tokens are padding and gets
// numbers, but a model that has others answers otherwise. Of two Hugging Face folders: the native format has no such
// keys, and nothing is compared where one is native.
std::vector<SettingDifference> compare_peer_keys(const ModelFolder& reference, const ModelFolder& candidate);

}  // namespace pare
