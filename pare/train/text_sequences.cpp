#include "pare/train/sequences.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "pare/data/tokenizer.h"
#include "pare/support/error.h"
#include "pare/support/mixed_bits.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/train/token_shards.h"

namespace pare {

namespace {

nlohmann::ordered_json files_json(const TokenArray& tokens) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TokenFile& file : tokens.files()) {
    list.push_back({{"path", file.path}, {"bytes", file.bytes}, {"tokens", file.tokens}, {"sha256", file.sha256}});
  }
  return list;
}

nlohmann::ordered_json contents_json(const TokenArray& tokens) {
  return {{"tokens", tokens.size()}, {"sha256", tokens.sha256()}};
}

void check_vocabulary(const TokenArray& tokens, int64_t vocab, Problems& problems) {
  for (const TokenFile& file : tokens.files()) {
    problems.add_if(file.largest >= vocab, "{} has the token {}, but the Architecture's vocabulary ends before {}",
                    quote(file.path), file.largest, vocab);
  }
}

// What is to be read: shards that were written before, or files as they are.
TokenShards tokens_of(const TrainConfig& config) {
  const DataConfig& data = config.data;
  const TokenReading reading = token_reading(data);
  if (reading.tokenizer && reading.tokenizer->vocabulary().end() > config.architecture.vocab) {
    throw InputError(
        fmt::format("{} has ids up to {}, but the Architecture's vocabulary ends before {}: another model's tokenizer?",
                    quote(reading.tokenizer->subject()), with_commas(reading.tokenizer->vocabulary().end() - 1),
                    with_commas(config.architecture.vocab)));
  }
  refuse_if(data.samples.count > 0,
            "data.samples: they are drawn once, for all runs that shall learn from the same. Draw them with the same "
            "command, --prepare and -o SAMPLES, then train with data.shards=SAMPLES instead of data.samples");
  if (data.shards.empty()) {
    return {open_tokens(data.train, reading), open_tokens(data.validation, reading), tokenizer_json(reading)};
  }
  TokenShards shards = open_shards(data.shards);
  if (const nlohmann::ordered_json named = tokenizer_json(reading);
      !named.is_null() && (shards.tokenizer.is_null() || shards.tokenizer.at("sha256") != named.at("sha256"))) {
    throw InputError(fmt::format("data.shards: {} was made {}, not with {}, which data.tokenizer names",
                                 quote(data.shards),
                                 shards.tokenizer.is_null() ? "without a tokenizer" : "with another tokenizer",
                                 quote(reading.tokenizer->subject())));
  }
  return shards;
}

// A text in windows that lie side by side: window w begins at token w * context. Of sequences that a model drew, each
// is one window: what it begins with is what the model was given. They may be measured on another text.
class WindowedText : public Sequences {
 public:
  explicit WindowedText(const TrainConfig& config) : WindowedText(config, tokens_of(config)) {}

  WindowedText(const TrainConfig& config, TokenShards tokens)
      : context_(context_of(config)),
        vocab_(config.architecture.vocab),
        masked_lm_(config.task == TrainTask::masked_lm),
        mask_share_(config.data.mask_share),
        mask_token_(config.data.mask_token.value_or(0)),
        seed_(static_cast<uint64_t>(config.data.seed)),
        sequence_(tokens.sequence),
        tokenizer_(std::move(tokens.tokenizer)),
        train_(std::move(tokens.train)),
        other_(std::move(tokens.validation)) {
    const int64_t all = windows_of(train_, sequence_);
    const bool apart = !other_.files().empty();
    validation_ = apart ? windows_of(other_, 0)
                        : static_cast<int64_t>(std::ceil(config.data.validation_share * static_cast<double>(all)));
    training_ = apart ? all : all - validation_;
    first_validation_ = apart ? 0 : training_;
    Problems problems;
    problems.add_if(sequence_ > 0 && length() > sequence_,
                    "context: {} tokens and their targets are {}, but the sequences in {} have {}: context={} "
                    "reads them",
                    context_, length(), quote(config.data.shards), sequence_, masked_lm_ ? sequence_ : sequence_ - 1);
    check_vocabulary(train_, vocab_, problems);
    check_vocabulary(other_, vocab_, problems);
    check_length(train_, "data.train", all, problems);
    check_length(other_, "data.validation", apart ? validation_ : 1, problems);
    problems.add_if(all > 0 && !apart && (training_ < 1 || validation_ < 1),
                    "data.validation_share: of the {} windows of {} tokens, {} are left for training and {} for "
                    "validation: both need one",
                    all, context_, training_, validation_);
    problems.add_if(all > std::numeric_limits<int32_t>::max(),
                    "data.train: {} windows are more than 2^31: train with a longer context", all);
    problems.throw_if_any("the data");
  }

  int64_t training() const override { return training_; }
  int64_t validation() const override { return validation_; }
  bool may_learn(int64_t token) const override {
    return train_.places().may_have(token, training_ * (sequence_ > 0 ? sequence_ : context_));
  }

  TrainBatch batch(bool of_validation, const std::vector<int64_t>& numbers, int64_t draw) const override {
    const bool apart = of_validation && !other_.files().empty();
    const TokenArray& tokens = apart ? other_ : train_;
    const int64_t stride = sequence_ > 0 && !apart ? sequence_ : context_;
    const at::Tensor all = at::empty({std::ssize(numbers), length()}, at::kLong);
    int64_t* row = all.mutable_data_ptr<int64_t>();
    for (const int64_t number : numbers) {
      const int64_t window = of_validation ? first_validation_ + number : number;
      tokens.read(window * stride, {row, static_cast<size_t>(length())});
      row += length();
    }
    if (!masked_lm_) {
      return {{.ids = all.narrow(1, 0, context_).contiguous()}, all.narrow(1, 1, context_).contiguous(), true};
    }
    // Measured on with the same masks each time; learned from with others each time.
    return hidden(all, mixed(seed_, of_validation ? 2 : 1), static_cast<uint64_t>(draw));
  }

  nlohmann::ordered_json manifest() const override {
    nlohmann::ordered_json json{{"train", files_json(train_)},
                                {"validation", files_json(other_)},
                                {"tokenizer", tokenizer_},
                                {"contents", {{"train", contents_json(train_)}, {"validation", contents_json(other_)}}},
                                {"first_validation_window", first_validation_}};
    if (sequence_ > 0) {
      json["sequence"] = sequence_;
    }
    if (masked_lm_) {
      json["mask"] = {{"share", mask_share_}, {"token", mask_token_}};
    }
    return json;
  }

 private:
  int64_t length() const { return masked_lm_ ? context_ : context_ + 1; }

  int64_t windows_of(const TokenArray& tokens, int64_t sequence) const {
    return sequence > 0 ? tokens.size() / sequence
           : masked_lm_ ? tokens.size() / context_
                        : std::max<int64_t>(0, tokens.size() - 1) / context_;
  }

  void check_length(const TokenArray& tokens, const char* key, int64_t windows, Problems& problems) const {
    problems.add_if(windows < 1, "{}: {} tokens are too few for one sequence of {}", key, tokens.size(), length());
  }

  // As BERT does: of the tokens to guess, 80 % become the mask token, 10 % another one, 10 % stay. At least one is
  // asked for.
  TrainBatch hidden(const at::Tensor& ids, uint64_t seed, uint64_t draw) const {
    TrainBatch batch{{.ids = ids.clone()}, at::full_like(ids, no_target)};
    int64_t* shown = batch.inputs.ids.mutable_data_ptr<int64_t>();
    int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
    for (int64_t row = 0; row < ids.size(0); ++row) {
      const uint64_t own = mixed(seed, draw + static_cast<uint64_t>(row));
      const int64_t certain = below(mixed(own, 0), context_);
      for (int64_t t = 0; t < context_; ++t) {
        const uint64_t random = mixed(own, static_cast<uint64_t>(t) + 1);
        if (t != certain && static_cast<double>(random >> 11) * 0x1p-53 >= mask_share_) {
          continue;
        }
        int64_t& token = shown[row * context_ + t];
        targets[row * context_ + t] = token;
        const int64_t kind = below(mixed(random, 1), 10);
        token = kind < 8 ? mask_token_ : kind == 8 ? below(mixed(random, 2), vocab_) : token;
      }
    }
    return batch;
  }

  int64_t context_, vocab_;
  bool masked_lm_;
  double mask_share_;
  int64_t mask_token_;
  uint64_t seed_;
  int64_t sequence_;                  // 0: one long text
  nlohmann::ordered_json tokenizer_;  // null: the tokens are bytes, or ids as they are stored
  TokenArray train_, other_;
  int64_t training_ = 0, validation_ = 0, first_validation_ = 0;
};

}  // namespace

int64_t below(uint64_t random, int64_t limit) {
  return static_cast<int64_t>(random % static_cast<uint64_t>(limit));
}

std::shared_ptr<const Sequences> text_sequences(const TrainConfig& config) {
  return std::make_shared<WindowedText>(config);
}

}  // namespace pare
