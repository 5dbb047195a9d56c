#pragma once
// A tokenizer by its tokens, and by what a tokenizer.json says of the rest, whichever kind of file it came in.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "pare/data/tokenizer.h"

namespace pare {

struct DescribedTokenizer {
  std::string subject;
  nlohmann::json parts;             // normalizer, pre_tokenizer, model without its vocabulary
  std::vector<std::string> tokens;  // by id; empty: no token has it
  std::vector<AddedToken> added;
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<float> scores;  // where a file has them in place of merges
};

// Of what was read from `file`, and so found to be right.
DescribedTokenizer described_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& file);

// One step, or those of a Sequence, whose list has that name; none of null.
std::vector<nlohmann::json> described_steps(const nlohmann::json& parts, const char* part, const char* list);
// A field of a step, where it is one of that kind.
std::string step_text(const nlohmann::json& step, const char* key, const std::string& without = "");
bool step_flag(const nlohmann::json& step, const char* key, bool without);

}  // namespace pare
