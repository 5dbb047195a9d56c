#pragma once
// The steps that a tokenizer.json lists, read one by one. Kinds that are not supported are refused by name.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "pare/data/bpe.h"
#include "pare/data/decoder.h"
#include "pare/data/normalizer.h"
#include "pare/data/pre_tokenizer.h"

namespace pare {

// The fields of one object, with messages that name it.
class JsonStep {
 public:
  // `place` is where it stands in the file, such as "normalizer". InputError where it is no object.
  JsonStep(const nlohmann::json& object, std::string subject, std::string place);
  std::string text(const std::string& key) const;
  std::string text(const std::string& key, const std::string& without) const;  // where it is absent or null
  bool flag(const std::string& key, bool without) const;
  size_t count(const std::string& key, size_t without) const;
  const nlohmann::json& list(const std::string& key) const;
  // {"String": ...} or {"Regex": ...}
  std::pair<std::string, bool> pattern() const;  // and whether it is an expression
  [[noreturn]] void refuse_type(const std::string& type, const std::vector<std::string>& known) const;

 private:
  const nlohmann::json& object_;
  std::string subject_, place_;
};

// Each from null, one step, or a Sequence of them.
std::vector<NormalStep> read_normalizer(const nlohmann::json& json, const std::string& subject);
std::vector<SplitStep> read_pre_tokenizer(const nlohmann::json& json, const std::string& subject);
std::vector<DecodeStep> read_decoder(const nlohmann::json& json, const std::string& subject);

// A line of a file of merges: two tokens with a space between.
std::pair<std::string, std::string> split_merge(const std::string& line, size_t number, const std::string& subject);
// Merges by the ids of their tokens. InputError where one is not in the vocabulary.
std::vector<BpeMerge> ranked_merges(const std::vector<std::pair<std::string, std::string>>& pairs,
                                    const Vocabulary& vocabulary, const std::string& continuing_prefix,
                                    const std::string& subject);

// How GPT-2 splits a text, which ByteLevel stands for, and how Qwen2 does.
constexpr std::string_view gpt2_words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2_words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace pare
