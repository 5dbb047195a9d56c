#include "pare/export/gguf_described.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "pare/data/json_steps.h"
#include "pare/data/tokens_beside.h"
#include "pare/support/files.h"
#include "pare/support/json.h"

namespace pare {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t largest_tokenizer = 1'000'000'000;

std::vector<json> flat_steps(const json& value, const char* list) {
  if (value.is_null()) {
    return {};
  }
  if (step_text(value, "type") != "Sequence") {
    return {value};
  }
  std::vector<json> steps;
  for (const json& each : value.value(list, json::array())) {
    const std::vector<json> inner = flat_steps(each, list);
    steps.insert(steps.end(), inner.begin(), inner.end());
  }
  return steps;
}

void add_token(DescribedTokenizer& described, const AddedToken& token) {
  const auto same = [&](const AddedToken& other) { return other.id == token.id; };
  if (std::ranges::none_of(described.added, same)) {
    described.added.push_back(token);
  }
}

void take_json(const fs::path& file, DescribedTokenizer& described) {
  described.parts = parse_json(read_text_file(file, largest_tokenizer), described.subject);
  for (const json& each : described.parts.value("added_tokens", json::array())) {
    const bool special = step_flag(each, "special", false);
    add_token(described, {.id = each.value("id", TokenId{-1}),
                          .content = step_text(each, "content"),
                          .special = special,
                          .single_word = step_flag(each, "single_word", false),
                          .left_strip = step_flag(each, "lstrip", false),
                          .right_strip = step_flag(each, "rstrip", false),
                          .normalized = step_flag(each, "normalized", !special)});
  }
  json& model = described.parts["model"];
  for (const json& merge : model.value("merges", json::array())) {
    if (merge.is_string()) {
      described.merges.push_back(split_merge(merge.get<std::string>(), described.merges.size(), described.subject));
    } else {
      described.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    }
  }
  model.erase("merges");
  model.erase("vocab");
}

// vocab.json with merges.txt, or encoder.json with vocab.bpe: what their classes of transformers do with a text, as
// read_bpe_files() has it.
void take_merges(const fs::path& file, DescribedTokenizer& described) {
  const bool older = file.filename() == "encoder.json" || file.filename() == "vocab.bpe";
  const fs::path merges = file.parent_path() / (older ? "vocab.bpe" : "merges.txt");
  const std::string text = read_text_file(merges, largest_tokenizer);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    line.erase(line.find_last_not_of('\r') + 1);
    if (!line.empty() && !line.starts_with("#version")) {
      described.merges.push_back(split_merge(line, described.merges.size(), merges.string()));
    }
    begin = end + 1;
  }
  const json settings = settings_beside(file);
  const bool qwen = settings.value("tokenizer_class", json()) == json("Qwen2Tokenizer") ||
                    settings.value("tokenizer_class", json()) == json("Qwen2TokenizerFast");
  const bool prefix = settings.value("add_prefix_space", json(false)) == json(true);
  described.parts = {{"normalizer", qwen ? json{{"type", "NFC"}} : json()}, {"model", {{"type", "BPE"}}}};
  json& steps = described.parts["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", json::array()}};
  if (qwen) {
    steps["pretokenizers"].push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", qwen2_words}}}, {"behavior", "Isolated"}});
  }
  steps["pretokenizers"].push_back({{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"use_regex", !qwen}});
}

void take_words(const fs::path& file, DescribedTokenizer& described) {
  const json settings = settings_beside(file);
  json text = {{"type", "BertNormalizer"}};
  for (const auto& [theirs, ours] :
       {std::pair("do_lower_case", "lowercase"), std::pair("strip_accents", "strip_accents"),
        std::pair("tokenize_chinese_chars", "handle_chinese_chars")}) {
    if (const json value = settings.value(theirs, json()); value.is_boolean()) {
      text[ours] = value;
    }
  }
  if (!text.contains("lowercase")) {
    const auto is_capital = [](char c) { return c >= 'A' && c <= 'Z'; };
    text["lowercase"] = std::ranges::none_of(described.tokens, [&](const std::string& token) {
      return !(token.starts_with('[') && token.ends_with(']')) && std::ranges::any_of(token, is_capital);
    });
  }
  described.parts = {
      {"normalizer", text}, {"pre_tokenizer", {{"type", "BertPreTokenizer"}}}, {"model", {{"type", "WordPiece"}}}};
}

// llama2.c's: a length, then a score and a text for each token. They were checked when the tokenizer was read.
void take_scores(const fs::path& file, DescribedTokenizer& described) {
  const std::string bytes = read_text_file(file, largest_tokenizer);
  for (size_t at = sizeof(int32_t); at + 2 * sizeof(int32_t) <= bytes.size();) {
    float score = 0;
    int32_t length = 0;
    std::memcpy(&score, bytes.data() + at, sizeof score);
    std::memcpy(&length, bytes.data() + at + sizeof score, sizeof length);
    described.scores.push_back(score);
    at += sizeof score + sizeof length + static_cast<size_t>(length);
  }
}

}  // namespace

DescribedTokenizer described_tokenizer(const Tokenizer& tokenizer, const fs::path& file) {
  DescribedTokenizer described{.subject = tokenizer.subject()};
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  for (TokenId id = 0; id < vocabulary.end(); ++id) {
    const std::string* const token = vocabulary.token(id);
    described.tokens.push_back(token != nullptr ? *token : "");
  }
  const std::string extension = file.extension().string(), name = file.filename().string();
  if (extension == ".bin") {
    take_scores(file, described);
    return described;
  }
  const bool merges = name == "vocab.json" || name == "merges.txt" || name == "encoder.json" || name == "vocab.bpe";
  const bool whole = !merges && extension != ".txt";
  merges ? take_merges(file, described) : whole ? take_json(file, described) : take_words(file, described);
  // Tokens that a vocabulary alone does not mark: left out when text is made of ids again.
  for (TokenId id = 0; !whole && id < vocabulary.end(); ++id) {
    if (vocabulary.token(id) != nullptr && tokenizer.decode({id}).empty() && !tokenizer.decode({id}, false).empty()) {
      add_token(described, {.id = id, .content = *vocabulary.token(id), .special = true});
    }
  }
  TokenizerParts parts{.subject = described.subject, .added = described.added};
  for (TokenId id = 0; id < vocabulary.end(); ++id) {
    if (vocabulary.token(id) != nullptr) {
      parts.vocabulary.add(*vocabulary.token(id), id);
    }
  }
  add_tokens_beside(parts, file);
  described.added = std::move(parts.added);
  return described;
}

std::vector<json> described_steps(const json& parts, const char* part, const char* list) {
  return flat_steps(parts.value(part, json()), list);
}

std::string step_text(const json& step, const char* key, const std::string& without) {
  const json found = step.is_object() ? step.value(key, json()) : json();
  return found.is_string() ? found.get<std::string>() : without;
}

bool step_flag(const json& step, const char* key, bool without) {
  const json found = step.is_object() ? step.value(key, json()) : json();
  return found.is_boolean() ? found.get<bool>() : without;
}

}  // namespace pare
