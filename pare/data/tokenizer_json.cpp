#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pare/data/json_steps.h"
#include "pare/data/tokenizer.h"
#include "pare/data/tokens_beside.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;

constexpr uint64_t largest_file = 1'000'000'000;

TokenId read_id(const json& value, const std::string& what) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= most_tokens) {
    throw InputError(fmt::format("{} is {}, expected a token id", what, json_shown(value)));
  }
  return value.get<TokenId>();
}

Vocabulary read_vocabulary(const json& model, const std::string& subject) {
  const json vocab = model.value("vocab", json());
  refuse_if(!vocab.is_object() || vocab.empty(), "{}: model.vocab is {}, expected an object of tokens and their ids",
            subject, vocab.is_object() ? "empty" : vocab.type_name());
  Vocabulary vocabulary;
  for (const auto& [token, id] : vocab.items()) {
    const TokenId number = read_id(id, fmt::format("{}: the id of {}", subject, quote(token)));
    if (!vocabulary.add(token, number)) {
      throw InputError(fmt::format("{}: two tokens have the id {}, one of them {}", subject, number, quote(token)));
    }
  }
  return vocabulary;
}

// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_pair(const json& merge, size_t number, const std::string& subject) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    return split_merge(merge.get<std::string>(), number, subject);
  }
  throw InputError(fmt::format("{}: merge {} is {}, expected two tokens", subject, number, merge.type_name()));
}

BpeModel read_bpe(const json& model, const Vocabulary& vocabulary, bool bytes, const std::string& subject) {
  const JsonStep step(model, subject, "model");
  if (model.contains("dropout") && model["dropout"].is_number() && model["dropout"].get<double>() != 0) {
    throw InputError(fmt::format("{}: model.dropout is {}: tokens drawn at random are not supported", subject,
                                 model["dropout"].get<double>()));
  }
  BpeOptions options{.unknown = step.text("unk_token", ""),
                     .continuing_prefix = step.text("continuing_subword_prefix", ""),
                     .word_suffix = step.text("end_of_word_suffix", ""),
                     .fuse_unknown = step.flag("fuse_unk", false),
                     .byte_fallback = step.flag("byte_fallback", false),
                     .whole_words_first = step.flag("ignore_merges", false),
                     .bytes = bytes};
  refuse_if(bytes && !(options.continuing_prefix + options.word_suffix).empty(),
            "{}: continuing_subword_prefix and end_of_word_suffix are not supported with ByteLevel", subject);
  const json merges = model.value("merges", json());
  refuse_if(!merges.is_array(), "{}: model.merges is {}, expected a list", subject, merges.type_name());
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t n = 0; n < merges.size(); ++n) {
    pairs.push_back(read_pair(merges[n], n, subject));
  }
  const std::vector<BpeMerge> ranked = ranked_merges(pairs, vocabulary, options.continuing_prefix, subject);
  return BpeModel(vocabulary, ranked, std::move(options), subject);
}

std::vector<AddedToken> read_added(const json& file, const Vocabulary& vocabulary, const std::string& subject) {
  std::vector<AddedToken> tokens;
  const json list = file.value("added_tokens", json::array());
  refuse_if(!list.is_array(), "{}: added_tokens is {}, expected a list", subject, list.type_name());
  for (size_t n = 0; n < list.size(); ++n) {
    const std::string what = fmt::format("added_tokens[{}]", n);
    const JsonStep step(list[n], subject, what);
    AddedToken token;
    token.id = read_id(list[n].value("id", json()), fmt::format("{}: {}.id", subject, what));
    token.content = step.text("content");
    token.special = step.flag("special", false);
    token.single_word = step.flag("single_word", false);
    token.left_strip = step.flag("lstrip", false);
    token.right_strip = step.flag("rstrip", false);
    token.normalized = step.flag("normalized", !token.special);
    const std::optional<TokenId> known = vocabulary.find(token.content);
    if (known && *known != token.id) {
      throw InputError(fmt::format("{}: the added token {} has the id {}, but the vocabulary has it as {}", subject,
                                   quote(token.content), token.id, *known));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

TokenId special_id(const json& special, const std::string& name, const std::string& subject) {
  const json ids = special.is_object() ? special.value(name, json::object()).value("ids", json()) : json();
  refuse_if(!ids.is_array() || ids.size() != 1, "{}: post_processor: the special token {} has no single id", subject,
            quote(name));
  return read_id(ids[0], fmt::format("{}: post_processor: the id of {}", subject, quote(name)));
}

// [word, id] of BertProcessing and RobertaProcessing.
TokenId paired_id(const json& value, const std::string& subject) {
  if (!value.is_array() || value.size() != 2) {
    throw InputError(
        fmt::format("{}: post_processor: expected a token and its id, found {}", subject, json_shown(value)));
  }
  return read_id(value[1], fmt::format("{}: post_processor", subject));
}

void read_template(const json& processor, TokenizerParts& parts) {
  const json single = processor.value("single", json());
  bool seen = false;
  for (const json& item : single.is_array() ? single : json::array()) {
    if (item.is_object() && item.contains("Sequence")) {
      refuse_if(seen, "{}: post_processor.single has the text twice", parts.subject);
      seen = true;
    } else if (item.is_object() && item.contains("SpecialToken")) {
      const JsonStep step(item["SpecialToken"], parts.subject, "post_processor.single");
      std::vector<TokenId>& side = seen ? parts.after : parts.before;
      side.push_back(special_id(processor.value("special_tokens", json()), step.text("id"), parts.subject));
    }
  }
  refuse_if(!seen, "{}: post_processor.single has no place for the text", parts.subject);
}

void read_post_processor(const json& processor, TokenizerParts& parts) {
  if (processor.is_null()) {
    return;
  }
  const JsonStep step(processor, parts.subject, "post_processor");
  const std::string type = step.text("type");
  if (type == "Sequence") {
    for (const json& part : step.list("processors")) {
      read_post_processor(part, parts);
    }
  } else if (type == "TemplateProcessing") {
    read_template(processor, parts);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    parts.before.push_back(paired_id(processor.value("cls", json()), parts.subject));
    parts.after.push_back(paired_id(processor.value("sep", json()), parts.subject));
  } else if (type != "ByteLevel") {  // which only moves offsets
    step.refuse_type(type, {"TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel", "Sequence"});
  }
}

void read_model(const json& model, TokenizerParts& parts) {
  const JsonStep step(model, parts.subject, "model");
  const std::string type = step.text("type", model.contains("merges") ? "BPE" : "WordPiece");
  const bool bytes = parts.pre_tokenizer.to_bytes();
  const std::vector<std::string> known = {"BPE", "WordPiece", "WordLevel"};
  if (std::ranges::find(known, type) == known.end()) {
    step.refuse_type(type, known);
  }
  parts.vocabulary = read_vocabulary(model, parts.subject);
  if (type == "BPE") {
    parts.model = read_bpe(model, parts.vocabulary, bytes, parts.subject);
    return;
  }
  refuse_if(bytes, "{}: the pre-tokenizer ByteLevel is supported with BPE, not with {}", parts.subject, type);
  WordPieceOptions options{.unknown = step.text("unk_token", type == "WordLevel" ? "<unk>" : "[UNK]")};
  if (type == "WordLevel") {
    options.whole_words = true;
  } else {
    options.continuing_prefix = step.text("continuing_subword_prefix", "##");
    options.longest_word = step.count("max_input_chars_per_word", 100);
  }
  parts.model = WordPieceModel(parts.vocabulary, options, parts.subject);
}

}  // namespace

namespace {

TokenizerParts parts_of_json(std::string_view text, const std::string& subject) {
  TokenizerParts parts;
  parts.subject = subject;
  const json file = parse_json(text, subject);
  refuse_if(!file.is_object() || !file.contains("model"),
            "{}: no 'model': is this the tokenizer.json of the tokenizers package?", parts.subject);
  parts.normalizer = Normalizer(read_normalizer(file.value("normalizer", json()), parts.subject), parts.subject);
  parts.pre_tokenizer = PreTokenizer(read_pre_tokenizer(file.value("pre_tokenizer", json()), parts.subject));
  read_model(file["model"], parts);
  parts.added = read_added(file, parts.vocabulary, parts.subject);
  read_post_processor(file.value("post_processor", json()), parts);
  parts.decoder = read_decoder(file.value("decoder", json()), parts.subject);
  return parts;
}

}  // namespace

Tokenizer read_tokenizer_json(const std::filesystem::path& path) {
  TokenizerParts parts = parts_of_json(read_text_file(path, largest_file), path.string());
  add_tokens_beside(parts, path);
  return Tokenizer(std::move(parts));
}

Tokenizer parse_tokenizer_json(std::string_view text, const std::string& subject) {
  return Tokenizer(parts_of_json(text, subject));
}

}  // namespace pare
