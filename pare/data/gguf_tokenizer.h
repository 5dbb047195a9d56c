#pragma once
// The tokenizer inside a GGUF file, and what else its metadata say of texts.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "pare/data/tokenizer.h"

namespace pare {

// How a name in tokenizer.ggml.pre splits texts, and what goes with it.
struct GgufSplitting {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;  // one after the other, each within what the ones before left
  bool whole_words_first = false, begins = false, composed = false;
};
const std::vector<GgufSplitting>& gguf_splittings();

// InputError for kinds that pare does not have, by name, and where the file does not say how words are split.
Tokenizer read_gguf_tokenizer(const std::filesystem::path& path);

// The same as a tokenizer_config.json would say it: chat_template, and bos_token and its kin.
nlohmann::json gguf_text_settings(const std::filesystem::path& path);

// By the metadata alone: what a text begins with where its tokenizer puts nothing there, and what ends one.
std::vector<TokenId> gguf_first_tokens(const std::filesystem::path& path);
std::vector<TokenId> gguf_last_tokens(const std::filesystem::path& path);

}  // namespace pare
