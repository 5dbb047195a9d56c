#include "pare/export/gguf_texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "pare/checkpoint/unused_tensors.h"
#include "pare/data/gguf_tokenizer.h"
#include "pare/data/tokens_beside.h"
#include "pare/export/gguf_vocabulary.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t largest_text_file = 64'000'000;

GgufTexts without_texts(const std::string& why) {
  return {.entries = {{"tokenizer.ggml.model", GgufKind::string, "none"}},
          .notes = {fmt::format("without a tokenizer, so llama.cpp takes and gives token ids alone: {}", why)}};
}

// ---- of another GGUF file

// llama.cpp asks for a value under these names in one kind alone.
GgufKind kind_of_value(const std::string& key, const json& value) {
  const json& first = value.is_array() && !value.empty() ? value.front() : value;
  return key == "tokenizer.ggml.scores"                                       ? GgufKind::f32
         : key == "tokenizer.ggml.token_type"                                 ? GgufKind::i32
         : first.is_string() || (value.is_array() && key.ends_with("merges")) ? GgufKind::string
         : first.is_boolean()                                                 ? GgufKind::boolean
         : first.is_number_float()                                            ? GgufKind::f32
         : first.is_number_unsigned()                                         ? GgufKind::u32
                                                                              : GgufKind::i32;
}

GgufTexts copied_texts(const fs::path& file, int64_t rows) {
  const GgufMetadata metadata = open_gguf(file).front().metadata();
  const auto model = metadata.find("tokenizer.ggml.model");
  if (model == metadata.end() || model->second == "none" || model->second == "no_vocab") {
    return without_texts(fmt::format("{} has none", quote(shown(file))));
  }
  const auto tokens = metadata.find("tokenizer.ggml.tokens");
  refuse_if(tokens == metadata.end() || !tokens->second.is_array() || std::ssize(tokens->second) != rows,
            "{}: its tokenizer has {} tokens, but the model's table has {} rows: the tokenizer of another model?",
            quote(shown(file)), tokens == metadata.end() ? 0 : tokens->second.size(), rows);
  GgufTexts texts;
  for (const auto& [key, value] : metadata) {
    const bool counted = key == "tokenizer.ggml.token_type_count";  // the model says it
    if (key.starts_with("tokenizer.") && !counted && !value.is_object() &&
        !(value.is_array() && !value.empty() && value.front().is_array())) {
      texts.entries.push_back({key, kind_of_value(key, value), value});
    }
  }
  return texts;
}

// ---- of a model's folder

// chat_template.jinja, or what tokenizer_config.json or chat_template.json have, as transformers takes it.
std::string template_text(const fs::path& folder) {
  if (path_exists(folder / "chat_template.jinja")) {
    return read_text_file(folder / "chat_template.jinja", largest_text_file);
  }
  for (const char* const name : {"tokenizer_config.json", "chat_template.json"}) {
    const json found = settings_in(folder / name).value("chat_template", json());
    for (const json& each : found.is_array() ? found : json::array()) {
      if (each.is_object() && each.value("name", json()) == json("default")) {
        return each.value("template", json()).is_string() ? each["template"].get<std::string>() : "";
      }
    }
    if (found.is_string() && !found.get<std::string>().empty()) {
      return found.get<std::string>();
    }
  }
  return "";
}

// Tokens by what they are for: those that the settings beside the tokenizer name, or else a config.json by their ids.
class NamedIds {
 public:
  NamedIds(const Tokenizer& tokenizer, const fs::path& folder, const fs::path& model, int64_t rows)
      : tokenizer_(tokenizer), names_(named_tokens(folder)), config_(settings_in(model / "config.json")), rows_(rows) {}

  // `usual`: what it is called where nothing says it.
  std::optional<TokenId> of(const std::string& kind, const std::string& usual = "") const {
    const json name = names_.value(kind + "_token", json(usual));
    const std::optional<TokenId> named =
        name.is_string() && name != "" ? tokenizer_.id_of(name.get<std::string>()) : std::nullopt;
    const json number = config_.value(kind + "_token_id", json());
    const std::optional<TokenId> id =
        named || !number.is_number_integer() ? named : std::optional(number.get<TokenId>());
    return id && *id >= 0 && *id < rows_ ? id : std::nullopt;
  }

 private:
  const Tokenizer& tokenizer_;
  json names_, config_;
  int64_t rows_;
};

void add_id(GgufTexts& texts, const char* name, std::optional<TokenId> id) {
  if (id) {
    texts.entries.push_back({fmt::format("tokenizer.ggml.{}_token_id", name), GgufKind::u32, *id});
  }
}

// What llama.cpp takes for the end of a text where a file names none.
std::optional<TokenId> assumed_end(const GgufVocabulary& vocabulary, int64_t rows) {
  const json& model = vocabulary.entries.front().value;
  const TokenId assumed = model == "gpt2" ? 11 : 2;
  return model != "bert" && assumed < rows ? std::optional(assumed) : std::nullopt;
}

// At tokens of these names llama.cpp ends a text, whatever a file says.
constexpr std::string_view named_ends[] = {"<|eot_id|>",
                                           "<|im_end|>",
                                           "<|end|>",
                                           "<|return|>",
                                           "<|call|>",
                                           "<|calls|>",
                                           "<|flush|>",
                                           "<end_of_turn>",
                                           "</s>",
                                           "<|eom_id|>",
                                           "<|endoftext|>",
                                           "<|end_of_text|>",
                                           "<EOT>",
                                           "_<EOT>",
                                           "[EOT]",
                                           "[EOS]",
                                           "<eos>",
                                           "<end_of_utterance>",
                                           "<turn|>",
                                           "<|tool_response>",
                                           "[e~[",
                                           "<|fim_pad|>",
                                           "<fim-pad>",
                                           "<fim_pad>",
                                           "<PAD>",
                                           "[PAD]",
                                           "<|fim_repo|>",
                                           "<|repo_name|>",
                                           "<fim-repo>",
                                           "<REPO>",
                                           "<reponame>",
                                           "<|file_sep|>",
                                           "<｜end▁of▁sentence｜>"};

void note_named_ends(const GgufVocabulary& vocabulary, const std::vector<TokenId>& ends, GgufTexts& texts) {
  const json& tokens = std::ranges::find(vocabulary.entries, "tokenizer.ggml.tokens", &GgufEntry::key)->value;
  std::vector<std::string> others;
  for (TokenId id = 0; id < std::ssize(tokens); ++id) {
    const std::string& token = tokens[static_cast<size_t>(id)].get_ref<const std::string&>();
    if (std::ranges::find(named_ends, token) != std::end(named_ends) && std::ranges::find(ends, id) == ends.end()) {
      others.push_back(fmt::format("{} ({})", quote(token), id));
    }
  }
  if (!others.empty()) {
    texts.notes.push_back(fmt::format("llama.cpp ends texts at {} too, because of the name", fmt::join(others, ", ")));
  }
}

void add_ends(const Tokenizer& tokenizer, const NamedIds& ids, std::vector<TokenId> ends, int64_t rows,
              const GgufVocabulary& vocabulary, GgufTexts& texts) {
  const std::vector<TokenId>&before = tokenizer.before(), &after = tokenizer.after();
  const bool word_pieces = vocabulary.entries.front().value == "bert";
  add_id(texts, "bos", before.empty() ? (word_pieces ? ids.of("cls", "[CLS]") : ids.of("bos")) : before.front());
  std::erase_if(ends, [rows](TokenId id) { return id < 0 || id >= rows; });
  if (!word_pieces && ends.empty() && !after.empty()) {
    ends = {after.front()};
  }
  if (word_pieces) {
    add_id(texts, "seperator", after.empty() ? ids.of("sep", "[SEP]") : after.front());  // as the format spells it
  }
  constexpr const char* names[] = {"eos", "eot", "eom"};
  for (size_t n = 0; n < std::min(ends.size(), std::size(names)); ++n) {
    add_id(texts, names[n], ends[n]);
  }
  if (ends.size() > std::size(names)) {
    texts.notes.push_back(fmt::format("GGUF names three tokens that end a text, and this model has {}: without {}",
                                      ends.size(), fmt::join(ends.begin() + 3, ends.end(), ", ")));
  }
  if (const std::optional<TokenId> assumed = assumed_end(vocabulary, rows); ends.empty() && assumed) {
    texts.notes.push_back(
        fmt::format("nothing says which token ends a text, and then llama.cpp ends one at token {}", *assumed));
  }
  if (!word_pieces) {
    note_named_ends(vocabulary, ends, texts);
  } else if (before.empty() || after.empty()) {
    texts.notes.emplace_back("llama.cpp puts [CLS] before and [SEP] after every text, this tokenizer does not");
  }
  const bool pieces = vocabulary.entries.front().value == "llama";
  add_id(texts, "unknown", ids.of("unk", word_pieces ? "[UNK]" : pieces ? "<unk>" : ""));
  add_id(texts, "padding", ids.of("pad", word_pieces ? "[PAD]" : ""));
  add_id(texts, "mask", ids.of("mask", word_pieces ? "[MASK]" : ""));
  const bool begins = !before.empty(), closes = word_pieces ? begins : !after.empty() && after == std::vector{ends[0]};
  texts.entries.push_back({"tokenizer.ggml.add_bos_token", GgufKind::boolean, begins});
  texts.entries.push_back({"tokenizer.ggml.add_eos_token", GgufKind::boolean, closes && !word_pieces});
  if (word_pieces) {
    texts.entries.push_back({"tokenizer.ggml.add_sep_token", GgufKind::boolean, closes});
  }
}

// ---- read again

// What tokenizers disagree on: contractions, numbers, runs of spaces and lines, other writing, what is no letter.
constexpr std::string_view difficult[] = {"Hello, world!",
                                          "I'm we've they'LL HE'D it's O'Neill 'tis",
                                          "12345 6 78,901.5 3.14e-10 1st 2nd",
                                          "a  b   c    d",
                                          "tabs\tand\t\tmore",
                                          "line\nline\n\nline\r\nline \n line",
                                          "end.  ",
                                          "x = [i**2 for i in range(10)];  // 100%",
                                          "http://example.org/a_b?c=d&e=%20",
                                          "naïve café Ångström ﬁnance ß",
                                          "Привет, мир! Ещё 3 слова.",
                                          "東京都は日本の首都です。",
                                          "你好，世界！123个",
                                          "한국어 문장입니다",
                                          "العَرَبِيَّةُ ٣٤",
                                          "हिन्दी वाक्य",
                                          "ไทยภาษา",
                                          "👨\u200d👩\u200d👧 👍🏽 🇩🇪",
                                          "①②Ⅳ½²₃",
                                          "\u00a0\u2003\u200b\u3000x",
                                          "#hash ##ing @at `code` ~tilde ^hat |bar|",
                                          "ABC AbC aBc ǅ İI",
                                          "don\u2019t \u201cquote\u201d \u2014 dash\u2026",
                                          "a\u00adb\u200dc",
                                          "\x7f\x01",
                                          "_under_score__ camelCase"};
constexpr std::string_view decomposed[] = {"cafe\u0301 A\u030angstro\u0308m", "\u1112\u1161\u11ab\u1100\u116e\u11a8",
                                           "q\u0307\u0323 が\u304b\u3099"};
constexpr std::string_view after_space[] = {" leading", "  two", "\n first", " "};

// InputError where the file's tokenizer is another one. Tokens within a text that are read otherwise are a note.
void check_read_again(Tokenizer& tokenizer, const GgufVocabulary& vocabulary, GgufTexts& texts) {
  const ScratchFolder scratch("gguf");
  const fs::path file = scratch.path() / "tokenizer.gguf";
  std::vector<GgufEntry> entries = {{"general.architecture", GgufKind::string, "llama"}};
  entries.insert(entries.end(), texts.entries.begin(), texts.entries.end());
  GgufWriter(file, entries, {}).finish();
  Tokenizer written = read_gguf_tokenizer(file);
  const auto read_there = [&](std::string_view text) {
    const bool space = vocabulary.wants_space_first && !text.starts_with(' ');
    return written.encode(space ? fmt::format(" {}", text) : std::string(text));
  };
  const auto check = [&](std::span<const std::string_view> samples) {
    for (const std::string_view sample : samples) {
      refuse_if(tokenizer.encode(sample) != read_there(sample),
                "{}: as GGUF it would read the text {} as {} tokens, not {}, or others", tokenizer.subject(),
                quote(sample), read_there(sample).size(), tokenizer.encode(sample).size());
    }
  };
  check(difficult);
  if (!vocabulary.other_when_decomposed) {
    check(decomposed);
  }
  if (!vocabulary.other_before_space) {
    check(after_space);
  }
  if (tokenizer.before() != written.before() || tokenizer.after() != written.after()) {
    texts.notes.push_back(
        fmt::format("GGUF cannot say what this tokenizer puts around a text, the tokens {} before and {} after it",
                    fmt::join(tokenizer.before(), ", "), fmt::join(tokenizer.after(), ", ")));
  }
  std::vector<std::string> others;
  constexpr size_t most_tried = 256;  // of thousands that are all alike
  for (size_t n = 0; n < std::min(vocabulary.added.size(), most_tried); ++n) {
    const std::string& content = vocabulary.added[n].content;
    for (const std::string& text : {fmt::format("a{}b", content), fmt::format("a {} b", content)}) {
      if (tokenizer.encode(text) != read_there(text) && (others.empty() || others.back() != quote(content))) {
        others.push_back(quote(content));
      }
    }
  }
  if (!others.empty()) {
    texts.notes.push_back(
        fmt::format("what stands beside these tokens within a text is read otherwise there: {}", some_names(others)));
  }
}

GgufTexts made_texts(const fs::path& path, const fs::path& model, int64_t rows) {
  Tokenizer tokenizer = open_tokenizer(path);
  const fs::path file = is_folder(path) ? tokenizers_in(path).front() : path;
  const GgufVocabulary vocabulary = gguf_vocabulary(tokenizer, file, rows);
  GgufTexts texts{.entries = vocabulary.entries, .notes = vocabulary.notes};
  std::vector<TokenId> ends = tokens_that_end_texts(is_folder(model) ? model : model.parent_path());
  if (ends.empty()) {
    ends = tokens_that_end_texts(file.parent_path());
  }
  add_ends(tokenizer, NamedIds(tokenizer, file.parent_path(), model, rows), ends, rows, vocabulary, texts);
  if (const std::string chat = template_text(file.parent_path()); !chat.empty()) {
    texts.entries.push_back({"tokenizer.chat_template", GgufKind::string, chat});
  }
  check_read_again(tokenizer, vocabulary, texts);
  return texts;
}

}  // namespace

GgufTexts gguf_texts(const fs::path& tokenizer, const fs::path& model, int64_t rows) {
  try {
    const std::optional<fs::path> gguf = find_gguf(tokenizer);
    return gguf ? copied_texts(*gguf, rows) : made_texts(tokenizer, model, rows);
  } catch (const InputError& error) {
    if (tokenizer != model) {
      throw;
    }
    return without_texts(error.what());
  }
}

}  // namespace pare
