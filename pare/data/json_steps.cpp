#include "pare/data/json_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;

SplitBehavior behavior_of(const JsonStep& step, const std::string& subject, const std::string& without = "") {
  static const std::vector<std::pair<std::string, SplitBehavior>> known = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const std::string word = without.empty() ? step.text("behavior") : step.text("behavior", without);
  for (const auto& [name, behavior] : known) {
    if (name == word) {
      return behavior;
    }
  }
  throw InputError(fmt::format("{}: pre_tokenizer.behavior {} is unknown", subject, quote(word)));
}

// Calls `add` with each step of a possibly nested Sequence, whose list has the name `key`.
void for_each_step(const json& value, const std::string& key, const std::string& subject, const std::string& place,
                   const std::function<void(const json&, const JsonStep&, const std::string&)>& add) {
  if (value.is_null()) {
    return;
  }
  const JsonStep step(value, subject, place);
  const std::string type = step.text("type");
  if (type != "Sequence") {
    return add(value, step, type);
  }
  for (const json& part : step.list(key)) {
    for_each_step(part, key, subject, place, add);
  }
}

NormalStep replacement(const JsonStep& step, const std::string& subject) {
  const auto [pattern, is_expression] = step.pattern();
  const std::string content = step.text("content");
  if (is_expression) {
    return ReplaceMatches{Pattern(pattern, subject), content};
  }
  refuse_if(pattern.empty(), "{}: normalizer Replace has an empty pattern", subject);
  return ReplaceString{pattern, content};
}

SplitStep metaspace(const json& value, const JsonStep& step, const std::string& subject) {
  using Prepend = SplitBySpace::Prepend;
  const bool prefix = step.flag("add_prefix_space", true);
  const std::string scheme = step.text("prepend_scheme", prefix ? "always" : "never");
  refuse_if(scheme != "always" && scheme != "first" && scheme != "never", "{}: Metaspace.prepend_scheme {} is unknown",
            subject, quote(scheme));
  const bool legacy_never = value.contains("add_prefix_space") && !prefix;
  return SplitBySpace{.replacement = step.text("replacement"),
                      .prepend = legacy_never || scheme == "never" ? Prepend::never
                                 : scheme == "first"               ? Prepend::first
                                                                   : Prepend::always,
                      .split = step.flag("split", true)};
}

SplitStep split_step(const json& value, const JsonStep& step, const std::string& type, const std::string& subject) {
  if (type == "ByteLevel") {
    SplitToBytes bytes{.prefix_space = step.flag("add_prefix_space", true)};
    if (step.flag("use_regex", true)) {
      bytes.pattern = Pattern(gpt2_words, subject);
    }
    return bytes;
  }
  if (type == "Split") {
    const auto [pattern, is_expression] = step.pattern();
    SplitByPattern split{.behavior = behavior_of(step, subject), .invert = step.flag("invert", false)};
    if (is_expression) {
      split.pattern = Pattern(pattern, subject);
    } else if (pattern.empty()) {
      throw InputError(fmt::format("{}: pre_tokenizer Split has an empty pattern", subject));
    }
    split.text = pattern;
    return split;
  }
  if (type == "Whitespace") {
    return SplitToWords{};
  }
  if (type == "WhitespaceSplit") {
    return SplitByFlag{CharacterFlag::white, SplitBehavior::removed};
  }
  if (type == "Digits") {
    const bool single = step.flag("individual_digits", false);
    return SplitByFlag{CharacterFlag::numeric, single ? SplitBehavior::isolated : SplitBehavior::contiguous};
  }
  if (type == "Punctuation") {
    return SplitByFlag{CharacterFlag::bert_punctuation, behavior_of(step, subject, "Isolated")};
  }
  if (type == "CharDelimiterSplit") {
    return SplitByPattern{.text = step.text("delimiter"), .behavior = SplitBehavior::removed};
  }
  if (type == "Metaspace") {
    return metaspace(value, step, subject);
  }
  if (type == "BertPreTokenizer") {
    return SplitForBert{};
  }
  step.refuse_type(type, {"ByteLevel", "Split", "Whitespace", "WhitespaceSplit", "Digits", "Punctuation",
                          "CharDelimiterSplit", "Metaspace", "BertPreTokenizer", "Sequence"});
}

}  // namespace

JsonStep::JsonStep(const json& object, std::string subject, std::string place)
    : object_(object), subject_(std::move(subject)), place_(std::move(place)) {
  refuse_if(!object_.is_object(), "{}: {} is {}, expected an object", subject_, place_, object_.type_name());
}

std::string JsonStep::text(const std::string& key) const {
  const auto found = object_.find(key);
  if (found == object_.end() || !found->is_string()) {
    throw InputError(fmt::format("{}: {}.{} is {}, expected a string", subject_, place_, key,
                                 found == object_.end() ? "missing" : found->type_name()));
  }
  return found->get<std::string>();
}

std::string JsonStep::text(const std::string& key, const std::string& without) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? without : text(key);
}

bool JsonStep::flag(const std::string& key, bool without) const {
  const auto found = object_.find(key);
  if (found == object_.end() || found->is_null()) {
    return without;
  }
  if (!found->is_boolean()) {
    throw InputError(fmt::format("{}: {}.{} is {}, expected true or false", subject_, place_, key, found->type_name()));
  }
  return found->get<bool>();
}

size_t JsonStep::count(const std::string& key, size_t without) const {
  const auto found = object_.find(key);
  if (found == object_.end() || found->is_null()) {
    return without;
  }
  if (!found->is_number_unsigned()) {
    throw InputError(
        fmt::format("{}: {}.{} is {}, expected a whole number", subject_, place_, key, escaped(found->dump())));
  }
  return found->get<size_t>();
}

const json& JsonStep::list(const std::string& key) const {
  const auto found = object_.find(key);
  if (found == object_.end() || !found->is_array()) {
    throw InputError(fmt::format("{}: {}.{} is {}, expected a list", subject_, place_, key,
                                 found == object_.end() ? "missing" : found->type_name()));
  }
  return *found;
}

std::pair<std::string, bool> JsonStep::pattern() const {
  const auto found = object_.find("pattern");
  if (found != object_.end() && found->is_object() && found->size() == 1 && found->begin()->is_string() &&
      (found->begin().key() == "Regex" || found->begin().key() == "String")) {
    return {found->begin()->get<std::string>(), found->begin().key() == "Regex"};
  }
  throw InputError(fmt::format("{}: {}.pattern is not a String or Regex", subject_, place_));
}

void JsonStep::refuse_type(const std::string& type, const std::vector<std::string>& known) const {
  throw InputError(fmt::format("{}: {} of type {} is not supported; these are: {}", subject_, place_, quote(type),
                               fmt::join(known, ", ")));
}

std::vector<NormalStep> read_normalizer(const json& value, const std::string& subject) {
  std::vector<NormalStep> steps;
  for_each_step(value, "normalizers", subject, "normalizer",
                [&](const json&, const JsonStep& step, const std::string& type) {
                  if (type == "NFC") {
                    steps.emplace_back(NormalForm::nfc);
                  } else if (type == "NFD") {
                    steps.emplace_back(NormalForm::nfd);
                  } else if (type == "NFKC") {
                    steps.emplace_back(NormalForm::nfkc);
                  } else if (type == "NFKD") {
                    steps.emplace_back(NormalForm::nfkd);
                  } else if (type == "Lowercase") {
                    steps.emplace_back(LowercaseText{});
                  } else if (type == "StripAccents") {
                    steps.emplace_back(WithoutAccents{});
                  } else if (type == "Strip") {
                    steps.emplace_back(TrimText{step.flag("strip_left", true), step.flag("strip_right", true)});
                  } else if (type == "Prepend") {
                    steps.emplace_back(PrependText{step.text("prepend")});
                  } else if (type == "Replace") {
                    steps.push_back(replacement(step, subject));
                  } else if (type == "BertNormalizer") {
                    const bool lower = step.flag("lowercase", true);
                    steps.emplace_back(BertText{.clean = step.flag("clean_text", true),
                                                .chinese = step.flag("handle_chinese_chars", true),
                                                .accents = step.flag("strip_accents", lower),
                                                .lowercase = lower});
                  } else {
                    step.refuse_type(type, {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip",
                                            "Prepend", "Replace", "BertNormalizer", "Sequence"});
                  }
                });
  return steps;
}

std::vector<SplitStep> read_pre_tokenizer(const json& value, const std::string& subject) {
  std::vector<SplitStep> steps;
  for_each_step(value, "pretokenizers", subject, "pre_tokenizer",
                [&](const json& object, const JsonStep& step, const std::string& type) {
                  refuse_if(!steps.empty() && std::holds_alternative<SplitToBytes>(steps.back()),
                            "{}: pre_tokenizer {} after ByteLevel is not supported", subject, quote(type));
                  steps.push_back(split_step(object, step, type, subject));
                });
  return steps;
}

std::vector<DecodeStep> read_decoder(const json& value, const std::string& subject) {
  std::vector<DecodeStep> steps;
  for_each_step(
      value, "decoders", subject, "decoder", [&](const json& object, const JsonStep& step, const std::string& type) {
        if (type == "ByteLevel") {
          steps.emplace_back(DecodeVisibleBytes{});
        } else if (type == "WordPiece") {
          steps.emplace_back(DecodeWordPieces{step.text("prefix", "##"), step.flag("cleanup", true)});
        } else if (type == "Metaspace") {
          const SplitBySpace space = std::get<SplitBySpace>(metaspace(object, step, subject));
          steps.emplace_back(DecodeSpaces{space.replacement, space.prepend != SplitBySpace::Prepend::never});
        } else if (type == "BPEDecoder") {
          steps.emplace_back(DecodeSuffix{step.text("suffix", "</w>")});
        } else if (type == "Replace") {
          const auto [pattern, is_expression] = step.pattern();
          refuse_if(is_expression || pattern.empty(), "{}: decoder Replace by an expression is not supported", subject);
          steps.emplace_back(DecodeReplace{pattern, step.text("content")});
        } else if (type == "ByteFallback") {
          steps.emplace_back(DecodeByteTokens{});
        } else if (type == "Fuse") {
          steps.emplace_back(DecodeFuse{});
        } else if (type == "Strip") {
          steps.emplace_back(DecodeStrip{step.text("content"), step.count("start", 0), step.count("stop", 0)});
        } else {
          step.refuse_type(type, {"ByteLevel", "WordPiece", "Metaspace", "BPEDecoder", "Replace", "ByteFallback",
                                  "Fuse", "Strip", "Sequence"});
        }
      });
  return steps;
}

std::pair<std::string, std::string> split_merge(const std::string& line, size_t number, const std::string& subject) {
  const size_t space = line.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string::npos) {
    throw InputError(
        fmt::format("{}: merge {} is {}, expected two tokens and a space between", subject, number, quote(line)));
  }
  return {line.substr(0, space), line.substr(space + 1)};
}

std::vector<BpeMerge> ranked_merges(const std::vector<std::pair<std::string, std::string>>& pairs,
                                    const Vocabulary& vocabulary, const std::string& continuing_prefix,
                                    const std::string& subject) {
  std::vector<BpeMerge> merges;
  merges.reserve(pairs.size());
  const auto id = [&](const std::string& token, size_t number) {
    const std::optional<TokenId> found = vocabulary.find(token);
    if (!found) {
      throw InputError(fmt::format("{}: merge {} needs the token {}, which is not in the vocabulary", subject, number,
                                   quote(token)));
    }
    return *found;
  };
  for (size_t n = 0; n < pairs.size(); ++n) {
    const auto& [left, right] = pairs[n];
    refuse_if(right.size() < continuing_prefix.size(), "{}: merge {} continues no word", subject, n);
    merges.push_back({.left = id(left, n),
                      .right = id(right, n),
                      .joined = id(left + right.substr(continuing_prefix.size()), n),
                      .rank = static_cast<int64_t>(n)});
  }
  return merges;
}

}  // namespace pare
