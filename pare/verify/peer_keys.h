#pragma once
// Keys of config.json that decide what transformers makes of the same numbers: which token speaks for a text, and what
// a class is called. They are no part of an Architecture, since who asks pare says which tokens are padding and gets
// numbers, but a model that has others answers otherwise.

#include <vector>

#include "pare/checkpoint/model_folder.h"
#include "pare/verify/settings.h"

namespace pare {

// Of two Hugging Face folders. The native format has no such keys: nothing is compared where one is native.
std::vector<SettingDifference> compare_peer_keys(const ModelFolder& reference, const ModelFolder& candidate);

}  // namespace pare
