#include "pare/train/sequences.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "pare/data/text_file.h"
#include "pare/data/tokenizer.h"
#include "pare/support/error.h"
#include "pare/support/json.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"
#include "pare/train/tokens.h"

namespace pare {

namespace {

struct Labelled {
  std::vector<int64_t> tokens;
  int64_t label = 0;
};

// One line: {"text": "...", "label": 3}, or {"tokens": [...], "label": 3}.
Labelled labelled_line(std::string_view line, Tokenizer* tokenizer, const std::string& subject) {
  const nlohmann::json json = parse_json(line, subject);
  const auto fail = [&](const char* what) -> Labelled {
    throw InputError(fmt::format("{} is not {{\"text\": ..., \"label\": N}} or {{\"tokens\": [...], \"label\": N}}: {}",
                                 subject, what));
  };
  if (!json.is_object() || !json.contains("label") || !json["label"].is_number_unsigned()) {
    return fail("no label, which is a whole number from 0 on");
  }
  Labelled result{.label = json["label"].get<int64_t>()};
  if (json.contains("text") && json["text"].is_string()) {
    const std::string& text = json["text"].get_ref<const std::string&>();
    if (tokenizer) {
      result.tokens = tokenizer->with_special(tokenizer->encode(text));
    }
    for (const char c : tokenizer ? "" : text) {
      result.tokens.push_back(static_cast<unsigned char>(c));
    }
  } else if (json.contains("tokens") && json["tokens"].is_array()) {
    for (const nlohmann::json& token : json["tokens"]) {
      if (!token.is_number_unsigned()) {
        return fail("a token is no whole number from 0 on");
      }
      result.tokens.push_back(token.get<int64_t>());
    }
  }
  return result.tokens.empty() ? fail("no text and no tokens") : result;
}

// All of a file, unpacked.
std::string unpacked_text(const std::string& path) {
  constexpr size_t piece = 1 << 20;
  TextFile file(path);
  std::string text;
  while (file.read(text, piece)) {
  }
  return text;
}

struct LabelledFiles {
  std::vector<Labelled> all;
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
};

LabelledFiles read_labelled(const std::vector<std::string>& paths, const TrainConfig& config, Tokenizer* tokenizer,
                            Problems& problems) {
  LabelledFiles result;
  const int64_t context = context_of(config), classes = config.architecture.head.classes.value_or(0);
  for (const std::string& path : paths) {
    const std::string text = unpacked_text(path);
    int64_t number = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string subject = fmt::format("{}, line {}", quote(path), ++number);
      Labelled line = labelled_line(std::string_view(text).substr(begin, end - begin), tokenizer, subject);
      const int64_t largest = *std::ranges::max_element(line.tokens);
      problems.add_if(line.label >= classes, "{}: the label {} is not one of {} classes", subject, line.label, classes);
      problems.add_if(largest >= config.architecture.vocab, "{}: the token {} is beyond a vocabulary of {}", subject,
                      largest, config.architecture.vocab);
      problems.add_if(std::ssize(line.tokens) > context, "{}: {} tokens are more than the context, {}", subject,
                      line.tokens.size(), context);
      result.all.push_back(std::move(line));
      begin = end + 1;
      if (problems.list().size() >= 20) {  // and so on
        return result;
      }
    }
    problems.add_if(number == 0, "{} is empty: there is nothing to learn from it", quote(path));
    result.files.push_back({{"path", path}, {"bytes", text.size()}, {"lines", number}, {"sha256", sha256_of(text)}});
  }
  return result;
}

// Sequences of any length, each with its class, padded on the right.
class LabelledSequences : public Sequences {
 public:
  explicit LabelledSequences(const TrainConfig& config) {
    Problems problems;
    const TokenReading reading = token_reading(config.data);
    LabelledFiles train = read_labelled(config.data.train, config, reading.tokenizer.get(), problems);
    LabelledFiles other = read_labelled(config.data.validation, config, reading.tokenizer.get(), problems);
    problems.throw_if_any("the data");
    manifest_ = {{"train", train.files}, {"validation", other.files}, {"tokenizer", tokenizer_json(reading)}};
    train_ = std::move(train.all);
    validation_ = std::move(other.all);
    if (config.data.validation.empty()) {
      const int64_t kept =
          static_cast<int64_t>(std::ceil(config.data.validation_share * static_cast<double>(train_.size())));
      validation_.assign(train_.end() - kept, train_.end());
      train_.resize(train_.size() - static_cast<size_t>(kept));
    }
    manifest_["first_validation_line"] = config.data.validation.empty() ? train_.size() : 0;
    refuse_if(train_.empty() || validation_.empty(),
              "the data: {} lines are left for training and {} for validation: both need one", train_.size(),
              validation_.size());
  }

  int64_t training() const override { return std::ssize(train_); }
  int64_t validation() const override { return std::ssize(validation_); }

  TrainBatch batch(bool of_validation, const std::vector<int64_t>& numbers, int64_t) const override {
    const std::vector<Labelled>& all = of_validation ? validation_ : train_;
    size_t longest = 0;
    for (const int64_t number : numbers) {
      longest = std::max(longest, all[number].tokens.size());
    }
    const int64_t rows = std::ssize(numbers), width = static_cast<int64_t>(longest);
    TrainBatch batch{{.ids = at::zeros({rows, width}, at::kLong), .mask = at::zeros({rows, width}, at::kBool)},
                     at::zeros({rows}, at::kLong),
                     true};
    for (int64_t row = 0; row < rows; ++row) {
      const Labelled& one = all[numbers[row]];
      const int64_t count = std::ssize(one.tokens);
      batch.inputs.ids[row].narrow(0, 0, count).copy_(at::tensor(one.tokens, at::kLong));
      batch.inputs.mask[row].narrow(0, 0, count).fill_(true);
      batch.targets[row].fill_(one.label);
    }
    return batch;
  }

  nlohmann::ordered_json manifest() const override { return manifest_; }

 private:
  std::vector<Labelled> train_, validation_;
  nlohmann::ordered_json manifest_;
};

}  // namespace

std::shared_ptr<const Sequences> labelled_sequences(const TrainConfig& config) {
  return std::make_shared<LabelledSequences>(config);
}

}  // namespace pare
