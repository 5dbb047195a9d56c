#include "pare/data/tokens_beside.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "pare/data/gguf_tokenizer.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t largest_settings = 64'000'000;
constexpr const char* settings_name = "tokenizer_config.json";
constexpr const char* added_name = "added_tokens.json";
constexpr const char* map_name = "special_tokens_map.json";
constexpr const char* several_keys[] = {"additional_special_tokens", "extra_special_tokens"};

bool flag(const json& setting, const char* key, bool without) {
  const json found = setting.is_object() ? setting.value(key, json()) : json();
  return found.is_boolean() ? found.get<bool>() : without;
}

AddedToken token_of(const json& setting, bool special) {
  AddedToken token{.content = token_word(setting), .special = flag(setting, "special", special)};
  token.single_word = flag(setting, "single_word", false);
  token.left_strip = flag(setting, "lstrip", false);
  token.right_strip = flag(setting, "rstrip", false);
  token.normalized = flag(setting, "normalized", !token.special);
  return token;
}

// Where a list of added tokens is given, the map beside it is not read, as in transformers. Else the map wins.
json settings_with_map(const fs::path& folder) {
  if (find_gguf(folder)) {
    return settings_in(folder);
  }
  json settings = settings_in(folder / settings_name);
  if (!settings.contains("added_tokens_decoder")) {
    settings.update(settings_in(folder / map_name));
  }
  return settings;
}

// Settings such as eos_token and image_token, and lists and tables of further ones.
std::map<std::string, json> named_settings(const json& settings) {
  std::map<std::string, json> found;
  for (const auto& [key, value] : settings.items()) {
    if (key.ends_with("_token") && !token_word(value).empty()) {
      found[key] = value;
    }
  }
  for (const char* key : several_keys) {
    const json several = settings.value(key, json());
    if (several.is_object()) {
      for (const auto& [name, value] : several.items()) {
        found[name] = value;
      }
    }
  }
  return found;
}

struct Beside {
  AddedToken token;
  std::optional<TokenId> id;  // that a file gives it
};

TokenId id_of_text(const std::string& text, const std::string& subject) {
  TokenId id = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), id);
  refuse_if(problem != std::errc() || end != text.data() + text.size() || id < 0 || id >= most_tokens,
            "{}: {} is no token id", subject, quote(text));
  return id;
}

// In the order of their ids, in which they were added.
std::map<TokenId, Beside> numbered(const fs::path& folder, const json& settings, const std::set<std::string>& special) {
  std::map<TokenId, Beside> found;
  const json decoder = settings.value("added_tokens_decoder", json());
  if (decoder.is_object()) {
    const std::string subject = (folder / settings_name).string() + ": added_tokens_decoder";
    for (const auto& [id, token] : decoder.items()) {
      const TokenId number = id_of_text(id, subject);
      found[number] = {token_of(token, false), number};
    }
    return found;
  }
  const json added = settings_in(folder / added_name);
  for (const auto& [content, id] : added.items()) {
    refuse_if(!id.is_number_unsigned() || id.get<uint64_t>() >= most_tokens, "{}: {} has the id {}, expected a number",
              (folder / added_name).string(), quote(content), json_shown(id));
    found[id.get<TokenId>()] = {token_of(content, special.contains(content)), id.get<TokenId>()};
  }
  return found;
}

}  // namespace

json settings_in(const fs::path& path) {
  if (find_gguf(path)) {
    return gguf_text_settings(path);
  }
  if (!path_exists(path)) {
    return json::object();
  }
  json read = parse_json(read_text_file(path, largest_settings), path.string());
  return read.is_object() ? read : json::object();
}

json settings_beside(const fs::path& file) {
  return settings_in(file.parent_path() / settings_name);
}

std::string token_word(const json& setting) {
  const json content = setting.is_object() ? setting.value("content", json()) : setting;
  return content.is_string() ? content.get<std::string>() : "";
}

void add_tokens_beside(TokenizerParts& parts, const fs::path& file) {
  const fs::path folder = file.parent_path();
  const json settings = settings_with_map(folder);
  std::vector<AddedToken> named;
  std::set<std::string> special;
  const auto name = [&](const json& setting) {
    named.push_back(token_of(setting, true));
    special.insert(named.back().content);
  };
  for (const auto& [key, setting] : named_settings(settings)) {
    name(setting);
  }
  for (const char* key : several_keys) {
    const json several = settings.value(key, json());
    for (const json& each : several.is_array() ? several : json::array()) {
      name(each);
    }
  }
  std::vector<Beside> all;
  for (auto& [id, token] : numbered(folder, settings, special)) {
    all.push_back(std::move(token));
  }
  for (AddedToken& token : named) {
    all.push_back({std::move(token), std::nullopt});
  }
  // As the tokenizers package counts: behind the vocabulary, and behind what was added before.
  TokenId next = static_cast<TokenId>(parts.vocabulary.size());
  for (const AddedToken& token : parts.added) {
    next = std::max(next, token.id + 1);
  }
  for (Beside& each : all) {
    const std::string& content = each.token.content;
    const bool known = std::ranges::any_of(parts.added, [&](const AddedToken& a) { return a.content == content; });
    if (content.empty() || known) {
      continue;
    }
    const std::optional<TokenId> in_vocabulary = parts.vocabulary.find(content);
    each.token.id = in_vocabulary.value_or(next);
    if (each.id && *each.id != each.token.id) {
      throw InputError(fmt::format(
          "{}: the token {}, added to {}, has the id {} there, but {} by what it is added to: save the tokenizer again "
          "with save_pretrained of transformers, which writes one tokenizer.json",
          (folder / (settings.contains("added_tokens_decoder") ? settings_name : added_name)).string(), quote(content),
          quote(file.filename().string()), *each.id, each.token.id));
    }
    next += in_vocabulary ? 0 : 1;
    parts.added.push_back(std::move(each.token));
  }
}

nlohmann::ordered_json named_tokens(const fs::path& folder) {
  nlohmann::ordered_json tokens = nlohmann::ordered_json::object();
  for (const auto& [key, setting] : named_settings(settings_with_map(folder))) {
    tokens[key] = token_word(setting);
  }
  return tokens;
}

}  // namespace pare
