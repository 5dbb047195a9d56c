#include "pare/train/first_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "pare/data/tokenizer.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf.h"
#include "pare/support/json.h"
#include "pare/support/names.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

struct FirstToken {
  int64_t id = 0;
  std::string said;  // who puts it there
};

std::string name_of(const Tokenizer& tokenizer, int64_t id) {
  const std::string* const stored = tokenizer.vocabulary().token(id);
  const std::string name = stored ? *stored : tokenizer.decode({id}, /*skip_special=*/false);
  const size_t begin = name.find_first_not_of(" \n"), end = name.find_last_not_of(" \n");
  return begin == std::string::npos ? "" : fmt::format(" ({})", escaped(name.substr(begin, end - begin + 1)));
}

void add_tokenizer(const std::string& path, std::vector<FirstToken>& found) {
  const Tokenizer tokenizer = open_tokenizer(path);
  for (const TokenId id : tokenizer.before()) {
    found.push_back({id, fmt::format("{} puts token {}{} before each text", quote(tokenizer.subject()), id,
                                     name_of(tokenizer, id))});
  }
}

void add_folder(const std::string& folder, std::vector<FirstToken>& found) {
  if (tokenizers_in(folder).size() == 1) {
    try {
      add_tokenizer(folder, found);
    } catch (const InputError&) {
      // A kind that is not supported: nobody asked for it, and config.json may say as much.
    }
  }
  if (find_gguf(folder)) {
    return;
  }
  constexpr uint64_t largest_config = 64'000'000;
  const fs::path path = fs::path(folder) / "config.json";
  const nlohmann::json json = parse_json(read_text_file(path, largest_config), path.string());
  if (const auto id = json.find("bos_token_id"); id != json.end() && id->is_number_integer()) {
    found.push_back(
        {id->get<int64_t>(), fmt::format("texts of {} begin with token {} (bos_token_id in its config.json)",
                                         quote(folder), id->get<int64_t>())});
  }
}

}  // namespace

void TokenPlaces::add(std::span<const int64_t> next) {
  for (const int64_t token : next) {
    const int64_t place = count_++;
    if (token < 0 || token >= most) {
      continue;
    }
    if (token >= std::ssize(first_)) {
      first_.resize(static_cast<size_t>(token) + 1, nowhere);
    }
    int64_t& first = first_[token];
    first = std::min(first, place);
  }
}

bool TokenPlaces::may_have(int64_t token, int64_t end) const {
  if (count_ == 0 || token < 0 || token >= most) {
    return true;
  }
  return token < std::ssize(first_) && first_[token] < end;
}

std::vector<std::string> warnings_of_first_tokens(const TrainConfig& config,
                                                  const std::function<bool(int64_t token)>& may_learn) {
  const bool text = config.task == TrainTask::causal_lm || config.task == TrainTask::masked_lm;
  std::vector<FirstToken> found;
  for (const std::string& folder : {config.from, config.teacher}) {
    if (text && !folder.empty()) {
      add_folder(folder, found);
    }
  }
  if (text && !(config.from.empty() && config.teacher.empty()) && !config.data.tokenizer.empty()) {
    add_tokenizer(config.data.tokenizer, found);
  }
  std::vector<std::string> warnings;
  std::vector<int64_t> told;
  for (const auto& [id, said] : found) {
    const bool known = id >= 0 && id < config.architecture.vocab;
    if (!known || may_learn(id) || std::ranges::find(told, id) != told.end()) {
      continue;
    }
    told.push_back(id);
    warnings.push_back(fmt::format(
        "{}, and no training window contains it: the trained model may be wrong on texts that begin so. Put the token "
        "before each text of the data, or learn from samples that the model draws itself (data.samples)",
        said));
  }
  return warnings;
}

}  // namespace pare
