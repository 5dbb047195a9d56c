#include "pare/data/gguf_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "pare/data/json_steps.h"
#include "pare/data/scored_merges.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// tokenizer.ggml.token_type
enum class Kind : int64_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

constexpr std::string_view space = "\u2581";  // how SentencePiece writes one

constexpr std::string_view llama3_words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view tekken_words =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string known_splittings() {
  std::vector<std::string_view> names;
  for (const GgufSplitting& each : gguf_splittings()) {
    names.insert(names.end(), each.names.begin(), each.names.end());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// The metadata of a file that are about texts.
class Texts {
 public:
  explicit Texts(const fs::path& path)
      : subject(path.string()), metadata_(open_gguf(find_gguf(path).value_or(path)).front().metadata()) {}

  const std::string subject;

  const json& at(std::string_view key) const {
    static const json none;
    const auto found = metadata_.find(fmt::format("tokenizer.{}", key));
    return found == metadata_.end() ? none : found->second;
  }

  std::string text(std::string_view key, const std::string& without) const {
    const json& value = at(key);
    return value.is_null() ? without : checked(key, value, value.is_string(), "a string").get<std::string>();
  }

  bool flag(std::string_view key, bool without) const {
    const json& value = at(key);
    return value.is_null() ? without : checked(key, value, value.is_boolean(), "true or false").get<bool>();
  }

  std::optional<TokenId> id(std::string_view key) const {
    const json& value = at(key);
    if (value.is_null()) {
      return std::nullopt;
    }
    const bool fits =
        value.is_number_integer() && value.get<int64_t>() >= -1 && value.get<uint64_t>() <= uint64_t{UINT32_MAX};
    const auto number = checked(key, value, fits, "a token id").get<int64_t>();
    const bool none = number < 0 || number == int64_t{UINT32_MAX};
    return none ? std::nullopt : std::optional<TokenId>(number);
  }

  const json& list(std::string_view key, size_t least = 1) const {
    const json& value = at(key);
    return checked(key, value, value.is_array() && value.size() >= least, "a list");
  }

  // As many as there are tokens, or none.
  const json& beside_tokens(std::string_view key) const {
    const json& value = at(key);
    const size_t tokens = list("ggml.tokens").size();
    checked(key, value, value.is_null() || (value.is_array() && value.size() == tokens), "one for each token, or none");
    return value;
  }

  Kind kind(const json& kinds, size_t n) const {
    if (kinds.is_null()) {
      return Kind::normal;
    }
    checked("ggml.token_type", kinds[n], kinds[n].is_number_integer(), "whole numbers");
    return static_cast<Kind>(kinds[n].get<int64_t>());
  }

  std::string token(size_t n) const {
    const json& token = list("ggml.tokens")[n];
    return checked("ggml.tokens", token, token.is_string(), "strings").get<std::string>();
  }

 private:
  const json& checked(std::string_view key, const json& value, bool right, std::string_view expected) const {
    if (!right) {
      const std::string found = value.is_null()    ? "not there"
                                : value.is_array() ? fmt::format("a list of {}", value.size())
                                                   : json_shown(value);
      throw InputError(fmt::format("{}: tokenizer.{} is {}, expected {}", subject, key, found, expected));
    }
    return value;
  }

  GgufMetadata metadata_;
};

// A vocabulary, with the tokens that are found in a text before anything else. Their texts may be written otherwise
// than in the file.
void add_tokens(const Texts& texts, TokenizerParts& parts,
                const std::function<std::string(std::string, Kind)>& written = nullptr) {
  const json& kinds = texts.beside_tokens("ggml.token_type");
  const size_t count = texts.list("ggml.tokens").size();
  const std::optional<TokenId> first = texts.id("ggml.bos_token_id"), last = texts.id("ggml.eos_token_id");
  for (size_t n = 0; n < count; ++n) {
    const auto id = static_cast<TokenId>(n);
    Kind kind = texts.kind(kinds, n);
    if (kinds.is_null() && (id == first || id == last)) {
      kind = Kind::control;
    }
    std::string token = written ? written(texts.token(n), kind) : texts.token(n);
    if (kind == Kind::control || kind == Kind::unknown || kind == Kind::user_defined) {
      parts.added.push_back({.id = id, .content = token, .special = kind != Kind::user_defined});
    }
    refuse_if(!parts.vocabulary.add(token, id), "{}: token {} repeats {}", texts.subject, n, quote(token));
  }
}

void check_id(const Texts& texts, const TokenizerParts& parts, TokenId id) {
  refuse_if(parts.vocabulary.token(id) == nullptr, "{}: its metadata name the token {}, but there are {} tokens",
            texts.subject, id, parts.vocabulary.size());
}

void add_ends(const Texts& texts, TokenizerParts& parts, bool begins) {
  const std::optional<TokenId> first = texts.id("ggml.bos_token_id"), last = texts.id("ggml.eos_token_id");
  if (first && texts.flag("ggml.add_bos_token", begins)) {
    check_id(texts, parts, *first);
    parts.before = {*first};
  }
  if (last && texts.flag("ggml.add_eos_token", false)) {
    check_id(texts, parts, *last);
    parts.after = {*last};
  }
}

const GgufSplitting& splitting_of(const Texts& texts) {
  const std::string name = texts.text("ggml.pre", "");
  refuse_if(name.empty() || name == "default",
            "{}: tokenizer.ggml.pre {}, so how its texts are split into words would be a guess: name its tokenizer "
            "(--tokenizer PATH), or give token ids instead of text",
            texts.subject, name.empty() ? "is not there" : "is 'default'");
  for (const GgufSplitting& each : gguf_splittings()) {
    if (std::ranges::find(each.names, name) != each.names.end()) {
      return each;
    }
  }
  throw InputError(fmt::format(
      "{}: tokenizer.ggml.pre is {}, a way to split texts that pare does not have; it has {}. Name the tokenizer of "
      "the model (--tokenizer PATH), or give token ids instead of text",
      texts.subject, quote(name), known_splittings()));
}

void read_byte_pairs(const Texts& texts, TokenizerParts& parts) {
  const GgufSplitting& splitting = splitting_of(texts);
  add_tokens(texts, parts);
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const json& merge : texts.list("ggml.merges", 0)) {
    refuse_if(!merge.is_string(), "{}: tokenizer.ggml.merges has {}, expected strings", texts.subject,
              merge.type_name());
    pairs.push_back(split_merge(merge.get<std::string>(), pairs.size(), texts.subject));
  }
  if (splitting.composed) {
    parts.normalizer = Normalizer({NormalForm::nfc}, texts.subject);
  }
  std::vector<SplitStep> steps;
  for (const std::string_view pattern : splitting.patterns) {
    steps.emplace_back(SplitByPattern{.pattern = Pattern(pattern, texts.subject)});
  }
  steps.emplace_back(SplitToBytes{});  // llama.cpp puts no space first here, whatever add_space_prefix says
  parts.pre_tokenizer = PreTokenizer(std::move(steps));
  parts.model = BpeModel(parts.vocabulary, ranked_merges(pairs, parts.vocabulary, "", texts.subject),
                         {.whole_words_first = splitting.whole_words_first, .bytes = true}, texts.subject);
  parts.decoder = {DecodeVisibleBytes{}};
  add_ends(texts, parts, splitting.begins);
}

void read_sentence_pieces(const Texts& texts, TokenizerParts& parts) {
  add_tokens(texts, parts);
  const json &kinds = texts.beside_tokens("ggml.token_type"), &scores = texts.list("ggml.scores");
  texts.beside_tokens("ggml.scores");
  std::vector<ScoredToken> tokens;
  std::string unknown;
  for (size_t n = 0; n < scores.size(); ++n) {
    const Kind kind = texts.kind(kinds, n);
    refuse_if(!scores[n].is_number(), "{}: tokenizer.ggml.scores has {}, expected numbers", texts.subject,
              scores[n].type_name());
    tokens.push_back({.text = texts.token(n),
                      .score = scores[n].get<float>(),
                      .joins = kind == Kind::normal || kind == Kind::user_defined || kind == Kind::unused});
    unknown = unknown.empty() && kind == Kind::unknown ? tokens.back().text : unknown;
  }
  const bool prefix = texts.flag("ggml.add_space_prefix", true);
  std::vector<NormalStep> steps;
  if (prefix) {
    steps.emplace_back(PrependText{std::string(space)});
  }
  steps.emplace_back(ReplaceString{" ", std::string(space)});
  parts.normalizer = Normalizer(std::move(steps), texts.subject);
  parts.model = BpeModel(parts.vocabulary, scored_merges(tokens, parts.vocabulary),
                         {.unknown = unknown, .fuse_unknown = true, .byte_fallback = true}, texts.subject);
  parts.decoder = {DecodeReplace{std::string(space), " "}, DecodeByteTokens{}, DecodeFuse{}};
  if (prefix) {
    parts.decoder.emplace_back(DecodeStrip{" ", 1, 0});
  }
  add_ends(texts, parts, true);
}

// The file has words with a sign before those that begin one, and BERT's own writing has one before those that do not.
void read_word_pieces(const Texts& texts, TokenizerParts& parts) {
  bool capitals = false;
  add_tokens(texts, parts, [&](const std::string& token, Kind kind) {
    if (kind != Kind::normal || (token.starts_with('[') && token.ends_with(']'))) {
      return token;
    }
    capitals = capitals || std::ranges::any_of(token, [](char c) { return c >= 'A' && c <= 'Z'; });
    return token.starts_with(space) ? token.substr(space.size()) : "##" + token;
  });
  const bool lower = !capitals;
  parts.normalizer = Normalizer({BertText{.accents = lower, .lowercase = lower}});
  parts.pre_tokenizer = PreTokenizer({SplitForBert{}});
  const std::optional<TokenId> unknown = texts.id("ggml.unknown_token_id");
  const std::string* const named = unknown ? parts.vocabulary.token(*unknown) : nullptr;
  parts.model = WordPieceModel(parts.vocabulary, {.unknown = named != nullptr ? *named : "[UNK]"}, texts.subject);
  parts.decoder = {DecodeWordPieces{}};
  const auto found = [&](std::initializer_list<const char*> keys, const char* token) {
    for (const char* const key : keys) {
      if (const std::optional<TokenId> id = texts.id(key)) {
        check_id(texts, parts, *id);
        return id;
      }
    }
    return parts.vocabulary.find(token);
  };
  const std::optional<TokenId> first = found({"ggml.cls_token_id", "ggml.bos_token_id"}, "[CLS]"),
                               last = found({"ggml.seperator_token_id", "ggml.eos_token_id"}, "[SEP]");
  if (first && last && texts.flag("ggml.add_bos_token", true)) {
    parts.before = {*first};
    parts.after = {*last};
  }
}

}  // namespace

const std::vector<GgufSplitting>& gguf_splittings() {
  static const std::vector<GgufSplitting> all = {
      {{"gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais"}, {gpt2_words}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"},
       {llama3_words},
       /*whole_words_first=*/true,
       /*begins=*/true},
      {{"smaug-bpe", "dbrx"}, {llama3_words}},
      {{"qwen2", "deepseek-r1-qwen"}, {qwen2_words}, false, false, /*composed=*/true},
      {{"tekken"}, {tekken_words}, true, true},
      {{"starcoder", "smollm", "refact", "command-r", "codeshell"}, {R"(\p{N})", gpt2_words}},
      {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", gpt2_words, "[0-9][0-9][0-9]"}},
      {{"deepseek-coder"}, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"}},
  };
  return all;
}

Tokenizer read_gguf_tokenizer(const fs::path& path) {
  const Texts texts(path);
  TokenizerParts parts;
  parts.subject = texts.subject;
  const std::string model = texts.text("ggml.model", "");
  if (model == "gpt2") {
    read_byte_pairs(texts, parts);
  } else if (model == "llama") {
    read_sentence_pieces(texts, parts);
  } else if (model == "bert") {
    read_word_pieces(texts, parts);
  } else {
    throw InputError(
        fmt::format("{}: {}; read are gpt2 (byte-pair encoding), llama (SentencePiece) and bert (WordPiece). Name "
                    "another tokenizer (--tokenizer PATH), or give token ids instead of text",
                    texts.subject,
                    model.empty() || model == "none" || model == "no_vocab"
                        ? "the file holds no tokenizer"
                        : fmt::format("tokenizer.ggml.model is {}, which pare does not have", quote(model))));
  }
  return Tokenizer(std::move(parts));
}

json gguf_text_settings(const fs::path& path) {
  const Texts texts(path);
  json settings = json::object();
  if (const std::string chat = texts.text("chat_template", ""); !chat.empty()) {
    settings["chat_template"] = chat;
  }
  const json& tokens = texts.at("ggml.tokens");
  constexpr std::array<std::pair<const char*, const char*>, 7> kinds = {{{"bos", "bos"},
                                                                         {"eos", "eos"},
                                                                         {"unknown", "unk"},
                                                                         {"seperator", "sep"},  // as the format has it
                                                                         {"padding", "pad"},
                                                                         {"cls", "cls"},
                                                                         {"mask", "mask"}}};
  for (const auto& [theirs, ours] : kinds) {
    const std::optional<TokenId> id = texts.id(fmt::format("ggml.{}_token_id", theirs));
    if (id && tokens.is_array() && *id < std::ssize(tokens)) {
      settings[fmt::format("{}_token", ours)] = tokens[static_cast<size_t>(*id)];
    }
  }
  return settings;
}

std::vector<TokenId> gguf_first_tokens(const fs::path& path) {
  const std::optional<TokenId> id = Texts(path).id("ggml.bos_token_id");
  return id ? std::vector{*id} : std::vector<TokenId>();
}

std::vector<TokenId> gguf_last_tokens(const fs::path& path) {
  const Texts texts(path);
  std::vector<TokenId> ids;
  for (const char* const key : {"ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id"}) {
    const std::optional<TokenId> id = texts.id(key);
    if (id && std::ranges::find(ids, *id) == ids.end()) {
      ids.push_back(*id);
    }
  }
  return ids;
}

}  // namespace pare
