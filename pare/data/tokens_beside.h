#pragma once
// What lies beside a tokenizer's file and changes what it reads: tokens that were added to it, and which are special.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "pare/data/tokenizer.h"

namespace pare {

// The object in a file of settings, an empty one where there is no file; of a GGUF file, what it says of texts.
nlohmann::json settings_in(const std::filesystem::path& path);
// tokenizer_config.json beside a file.
nlohmann::json settings_beside(const std::filesystem::path& file);

// The tokens of tokenizer_config.json and added_tokens.json, or else special_tokens_map.json, that the file itself does
// not have, with the ids that transformers gives them. InputError where those are not the ids that are written there.
void add_tokens_beside(TokenizerParts& parts, const std::filesystem::path& file);

// The word of a setting such as eos_token, which is a string or an object with its content; empty: none.
std::string token_word(const nlohmann::json& setting);

// The special tokens of a folder by the names that a chat template has for them.
nlohmann::ordered_json named_tokens(const std::filesystem::path& folder);

}  // namespace pare
