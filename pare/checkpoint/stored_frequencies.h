#pragma once
// Frequencies of RoPE that are read from the file, not computed from its base: ESM-2 was trained with numbers that had
// been rounded to float16, and they make a difference.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "pare/checkpoint/weights.h"

namespace pare {

constexpr const char* stored_frequencies_key = "stored_frequencies";

// Puts them into config.json as it is read, under that key, where the file has such tensors. InputError where those of
// the layers differ.
void add_stored_frequencies(nlohmann::json& config, const Weights& stored, const std::string& subject);

}  // namespace pare
