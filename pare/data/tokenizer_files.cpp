#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "pare/data/gguf_tokenizer.h"
#include "pare/data/json_steps.h"
#include "pare/data/scored_merges.h"
#include "pare/data/tokenizer.h"
#include "pare/data/tokens_beside.h"
#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t largest_vocabulary = 1'000'000'000;
constexpr uint64_t largest_config = 64'000'000;
constexpr TokenId llama2c_end = 2;  // </s>

// Lines without their ends; one at the end of the file ends the last.
std::vector<std::string> read_lines(const fs::path& path) {
  const std::string text = read_text_file(path, largest_vocabulary);
  refuse_lfs_pointer(text, path.string());
  if (const std::optional<size_t> wrong = invalid_utf8(text)) {
    throw InputError(fmt::format("{}: the byte at {} is not UTF-8: is this a vocabulary?", path.string(), *wrong));
  }
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    while (line.ends_with('\r')) {
      line.pop_back();
    }
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

AddedToken special_token(TokenId id, const std::string& content) {
  return {.id = id, .content = content, .special = true};
}

bool add_special(TokenizerParts& parts, const std::string& content) {
  const std::optional<TokenId> id = parts.vocabulary.find(content);
  if (id) {
    parts.added.push_back(special_token(*id, content));
  }
  return id.has_value();
}

// How the classes of transformers that keep a vocabulary and merges take a text apart.
struct BpeKind {
  std::string_view words;
  bool composed = false;  // into Unicode's composed form first
};

BpeKind kind_of(const json& named, const std::string& subject) {
  std::string name = named.is_string() ? named.get<std::string>() : "";
  if (name.ends_with("Fast")) {
    name.resize(name.size() - 4);
  }
  static const std::set<std::string> as_gpt2 = {"",
                                                "GPT2Tokenizer",
                                                "RobertaTokenizer",
                                                "BartTokenizer",
                                                "LongformerTokenizer",
                                                "CodeGenTokenizer",
                                                "PreTrainedTokenizer"};
  if (as_gpt2.contains(name)) {
    return {gpt2_words};
  }
  refuse_if(name != "Qwen2Tokenizer",
            "{}: its tokenizer_config.json names {}, whose rules pare knows from a tokenizer.json only: save the "
            "tokenizer again with save_pretrained of transformers, which writes one",
            subject, quote(name));
  return {qwen2_words, true};
}

// Texts begin with that token, where there is such a one.
void add_first(TokenizerParts& parts, const std::string& content) {
  for (const AddedToken& token : parts.added) {
    if (token.content == content) {
      parts.before = {token.id};
    }
  }
}

bool has_capitals(const Vocabulary& vocabulary) {
  return std::any_of(vocabulary.all().begin(), vocabulary.all().end(), [](const auto& entry) {
    const std::string& token = entry.first;
    const bool bracketed = token.starts_with('[') && token.ends_with(']');
    return !bracketed && std::ranges::any_of(token, [](char c) { return c >= 'A' && c <= 'Z'; });
  });
}

// A little-endian value at `at`, which moves on.
template <typename Value>
Value take_value(const std::string& bytes, size_t& at, const std::string& subject) {
  refuse_if(bytes.size() - at < sizeof(Value), "{}: ends at byte {} within a token: an incomplete download?", subject,
            bytes.size());
  Value value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  at += sizeof value;
  return value;
}

std::vector<ScoredToken> read_scored(const fs::path& path) {
  const std::string subject = path.string(), bytes = read_text_file(path, largest_vocabulary);
  refuse_lfs_pointer(bytes, subject);
  size_t at = 0;
  const int32_t longest = take_value<int32_t>(bytes, at, subject);
  refuse_if(longest < 1 || longest > 4096, "{}: its longest token has {} bytes: is this a tokenizer of llama2.c?",
            subject, longest);
  std::vector<ScoredToken> tokens;
  while (at < bytes.size()) {
    const float score = take_value<float>(bytes, at, subject);
    const int32_t length = take_value<int32_t>(bytes, at, subject);
    if (!std::isfinite(score) || length < 0 || length > longest || bytes.size() - at < static_cast<size_t>(length)) {
      throw InputError(fmt::format("{}: token {} has a score of {} and {} bytes, at most {}: a damaged file?", subject,
                                   tokens.size(), score, length, longest));
    }
    tokens.push_back({bytes.substr(at, static_cast<size_t>(length)), score});
    refuse_if(invalid_utf8(tokens.back().text).has_value(), "{}: token {} is not UTF-8", subject, tokens.size() - 1);
    at += static_cast<size_t>(length);
  }
  return tokens;
}

Tokenizer open_file(const fs::path& path) {
  const std::string name = path.filename().string(), extension = path.extension().string();
  const fs::path folder = path.parent_path();
  if (name == "encoder.json" || name == "vocab.bpe") {
    return read_bpe_files(folder / "encoder.json", folder / "vocab.bpe");
  }
  if (name == "vocab.json" || name == "merges.txt") {
    return read_bpe_files(folder / "vocab.json", folder / "merges.txt");
  }
  if (extension == ".json") {
    return read_tokenizer_json(path);
  }
  if (extension == ".txt") {
    return read_vocab_txt(path);
  }
  if (extension == ".bin") {
    return read_llama2c(path);
  }
  if (find_gguf(path)) {
    return read_gguf_tokenizer(path);
  }
  throw InputError(fmt::format(
      "{}: not a kind of tokenizer that is supported: tokenizer.json, vocab.json with merges.txt, vocab.txt, "
      "tok*.bin, GGUF{}",
      path.string(),
      extension == ".model" ? ". transformers writes a tokenizer.json of a SentencePiece model with save_pretrained"
                            : ""));
}

}  // namespace

std::vector<fs::path> tokenizers_in(const fs::path& folder) {
  const std::optional<fs::path> gguf = find_gguf(folder);
  if (gguf && !is_folder(folder)) {
    return {*gguf};
  }
  static const std::vector<std::vector<std::string>> kinds = {
      {"tokenizer.json"}, {"encoder.json", "vocab.bpe"}, {"vocab.json", "merges.txt"}, {"vocab.txt"}};
  for (const std::vector<std::string>& names : kinds) {
    if (std::ranges::all_of(names, [&](const std::string& name) { return fs::exists(folder / name); })) {
      return {folder / names.front()};
    }
  }
  std::vector<fs::path> binaries;
  for (const fs::directory_entry& entry : entries_of(folder)) {
    if (glob_match("tok*.bin", entry.path().filename().string())) {
      binaries.push_back(entry.path());
    }
  }
  if (binaries.empty() && gguf) {
    return {*gguf};
  }
  return binaries;
}

std::string byte_tokenizer_json(int64_t vocab) {
  nlohmann::ordered_json ids = nlohmann::ordered_json::object();
  for (int64_t byte = 0; byte < std::min<int64_t>(vocab, 256); ++byte) {
    ids[visible_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  }
  const nlohmann::ordered_json level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return json_text({{"version", "1.0"},
                    {"truncation", nullptr},
                    {"padding", nullptr},
                    {"added_tokens", nlohmann::ordered_json::array()},
                    {"normalizer", nullptr},
                    {"pre_tokenizer", level},
                    {"post_processor", nullptr},
                    {"decoder", level},
                    {"model",
                     {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"vocab", ids},
                      {"merges", nlohmann::ordered_json::array()}}}});
}

bool reads_bytes(const fs::path& folder) {
  const std::vector<fs::path> found = tokenizers_in(folder);
  if (found.size() != 1 || found.front().filename() != "tokenizer.json") {
    return false;
  }
  const std::string text = read_text_file(found.front(), largest_vocabulary);
  const size_t count = parse_tokenizer_json(text, found.front().string()).vocabulary().size();
  return text == byte_tokenizer_json(static_cast<int64_t>(count));
}

std::vector<TokenId> tokens_before_texts(const fs::path& folder) {
  if (tokenizers_in(folder).size() == 1) {
    try {
      if (std::vector<TokenId> before = open_tokenizer(folder).before(); !before.empty()) {
        return before;
      }
    } catch (const InputError&) {
      // A kind that is not supported: nobody asked for it, and config.json may say as much.
    }
  }
  if (find_gguf(folder)) {
    return gguf_first_tokens(folder);
  }
  const fs::path path = folder / "config.json";
  if (!path_exists(path)) {
    return {};
  }
  const nlohmann::json json = parse_json(read_text_file(path, largest_config), path.string());
  const nlohmann::json id = json.is_object() ? json.value("bos_token_id", nlohmann::json()) : nlohmann::json();
  return id.is_number_integer() ? std::vector{id.get<TokenId>()} : std::vector<TokenId>();
}

std::vector<TokenId> tokens_that_end_texts(const fs::path& folder) {
  if (find_gguf(folder)) {
    return gguf_last_tokens(folder);
  }
  std::error_code unknown;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const fs::path path = folder / name;
    if (!fs::exists(path, unknown)) {
      continue;
    }
    const json config = parse_json(read_text_file(path, largest_config), path.string());
    const json found = config.is_object() ? config.value("eos_token_id", json()) : json();
    if (found.is_null()) {
      continue;
    }
    const json list = found.is_array() ? found : json::array({found});
    std::vector<TokenId> ids;
    for (const json& id : list) {
      if (!id.is_number_integer()) {
        throw InputError(fmt::format("{}: eos_token_id is {}, expected a token id or a list of them", path.string(),
                                     json_shown(found)));
      }
      ids.push_back(id.get<TokenId>());
    }
    return ids;
  }
  const std::vector<fs::path> tokenizers = tokenizers_in(folder);
  if (tokenizers.size() != 1) {
    return {};
  }
  try {
    const Tokenizer tokenizer = open_tokenizer(folder);
    if (tokenizers.front().extension() == ".bin") {
      return {llama2c_end};
    }
    const std::optional<TokenId> id =
        tokenizer.id_of(token_word(settings_beside(tokenizers.front()).value("eos_token", json())));
    return id ? std::vector{*id} : std::vector<TokenId>();
  } catch (const InputError&) {
    return {};  // a kind that is not supported: nobody asked for it
  }
}

Tokenizer open_tokenizer(const fs::path& path) {
  refuse_if(!fs::exists(path), "there is no tokenizer {}", quote(path.string()));
  if (!fs::is_directory(path)) {
    return open_file(path);
  }
  const std::vector<fs::path> found = tokenizers_in(path);
  if (found.size() == 1) {
    return open_file(found.front());
  }
  refuse_if(found.size() > 1, "{} holds several tok*.bin: name one of them (--tokenizer, or data.tokenizer)",
            quote(path.string()));
  if (fs::exists(path / "tokenizer.model")) {
    return open_file(path / "tokenizer.model");
  }
  throw InputError(fmt::format(
      "{} holds no tokenizer: looked for tokenizer.json, vocab.json with merges.txt, vocab.txt and tok*.bin. Name "
      "one (--tokenizer, or data.tokenizer), or give token ids instead of text",
      quote(path.string())));
}

Tokenizer read_bpe_files(const fs::path& vocabulary, const fs::path& merges) {
  TokenizerParts parts;
  parts.subject = vocabulary.string();
  const json ids = parse_json(read_text_file(vocabulary, largest_vocabulary), parts.subject);
  refuse_if(!ids.is_object() || ids.empty(), "{}: found {}, expected an object of tokens and their ids", parts.subject,
            ids.is_object() ? "an empty object" : ids.type_name());
  for (const auto& [token, id] : ids.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= most_tokens ||
        !parts.vocabulary.add(token, id.get<TokenId>())) {
      throw InputError(fmt::format("{}: {} has the id {}, expected a number of its own", parts.subject, quote(token),
                                   json_shown(id)));
    }
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& line : read_lines(merges)) {
    if (!line.empty() && !line.starts_with("#version")) {
      pairs.push_back(split_merge(line, pairs.size(), merges.string()));
    }
  }
  const json settings = settings_beside(vocabulary);
  const BpeKind kind = kind_of(settings.value("tokenizer_class", json()), parts.subject);
  const bool prefix = settings.value("add_prefix_space", json(false)) == json(true);
  parts.normalizer = kind.composed ? Normalizer({NormalForm::nfc}, parts.subject) : Normalizer({});
  std::vector<SplitStep> steps;
  steps.emplace_back(SplitToBytes{.prefix_space = prefix, .pattern = Pattern(std::string(kind.words), parts.subject)});
  parts.pre_tokenizer = PreTokenizer(std::move(steps));
  parts.model = BpeModel(parts.vocabulary, ranked_merges(pairs, parts.vocabulary, "", merges.string()), {.bytes = true},
                         parts.subject);
  parts.decoder = {DecodeVisibleBytes{}};
  add_special(parts, "<|endoftext|>");
  const bool begins = add_special(parts, "<s>"), ends = add_special(parts, "</s>");
  add_special(parts, "<pad>");
  add_special(parts, "<unk>");
  const bool masked = add_special(parts, "<mask>");
  if (masked) {
    parts.added.back().left_strip = true;
  }
  add_tokens_beside(parts, vocabulary);
  if (masked && begins && ends) {  // RoBERTa and its kin
    parts.before = {*parts.vocabulary.find("<s>")};
    parts.after = {*parts.vocabulary.find("</s>")};
  } else if (settings.value("add_bos_token", json(false)) == json(true)) {  // OPT
    add_first(parts, token_word(settings.value("bos_token", json())));
  }
  return Tokenizer(std::move(parts));
}

Tokenizer read_vocab_txt(const fs::path& path) {
  TokenizerParts parts;
  parts.subject = path.string();
  const std::vector<std::string> lines = read_lines(path);
  bool continuing = false;
  for (size_t n = 0; n < lines.size(); ++n) {
    if (!parts.vocabulary.add(lines[n], static_cast<TokenId>(n))) {
      throw InputError(fmt::format("{}: line {} repeats the token {}", parts.subject, n + 1, quote(lines[n])));
    }
    continuing = continuing || lines[n].starts_with("##");
  }
  refuse_if(!continuing || !parts.vocabulary.find("[UNK]"),
            "{}: {}, so this is no WordPiece vocabulary as BERT has it: another tokenizer's? Give token ids "
            "instead of text",
            parts.subject, continuing ? "it has no [UNK]" : "no token continues a word ('##...')");
  const json settings = settings_beside(path);
  const auto setting = [&settings](const char* key, bool without) {
    const json value = settings.value(key, json());
    return value.is_boolean() ? value.get<bool>() : without;
  };
  const bool lower = setting("do_lower_case", !has_capitals(parts.vocabulary));
  parts.normalizer = Normalizer({BertText{.clean = true,
                                          .chinese = setting("tokenize_chinese_chars", true),
                                          .accents = setting("strip_accents", lower),
                                          .lowercase = lower}});
  parts.pre_tokenizer = PreTokenizer({SplitForBert{}});
  parts.model = WordPieceModel(parts.vocabulary, {}, parts.subject);
  parts.decoder = {DecodeWordPieces{}};
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    add_special(parts, token);
  }
  const std::optional<TokenId> first = parts.vocabulary.find("[CLS]"), last = parts.vocabulary.find("[SEP]");
  if (first && last) {
    parts.before = {*first};
    parts.after = {*last};
  }
  return Tokenizer(std::move(parts));
}

// Its own encoder begins a text with <s> and a space, takes characters that it does not know as bytes, and joins the
// pair of the highest score.
Tokenizer read_llama2c(const fs::path& path) {
  TokenizerParts parts;
  parts.subject = path.string();
  const std::vector<ScoredToken> tokens = read_scored(path);
  for (size_t n = 0; n < tokens.size(); ++n) {
    if (!parts.vocabulary.add(tokens[n].text, static_cast<TokenId>(n))) {
      throw InputError(fmt::format("{}: token {} repeats {}", parts.subject, n, quote(tokens[n].text)));
    }
  }
  constexpr TokenId begin = 1, first_byte = 3;
  for (TokenId byte = 0; byte < 256; ++byte) {
    refuse_if(parts.vocabulary.find(fmt::format("<0x{:02X}>", byte)) != first_byte + byte,
              "{}: token {} is not <0x{:02X}>: is this a tokenizer of llama2.c?", parts.subject, first_byte + byte,
              byte);
  }
  parts.normalizer = Normalizer({PrependText{" "}});
  parts.model =
      BpeModel(parts.vocabulary, scored_merges(tokens, parts.vocabulary), {.byte_fallback = true}, parts.subject);
  parts.added = {special_token(begin, ""), special_token(llama2c_end, "")};  // never read from text
  parts.before = {begin};
  parts.decoder = {DecodeByteTokens{}, DecodeFuse{}, DecodeStrip{" ", 1, 0}};
  return Tokenizer(std::move(parts));
}

}  // namespace pare
