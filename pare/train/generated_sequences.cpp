#include "pare/train/sequences.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pare/support/sha256.h"

namespace pare {

namespace {

constexpr int64_t validation_problems = 1024;

// Problem and answer one after another, and only the answer is asked for.
struct Exercise {
  std::vector<int64_t> tokens;
  size_t answer = 0;  // where it begins
};

// Symbols, a mark, the same symbols again, in their order or sorted.
Exercise repeated(uint64_t seed, const DataConfig& data, bool sorted) {
  Exercise exercise;
  for (int64_t i = 0; i < data.length; ++i) {
    exercise.tokens.push_back(below(mixed(seed, static_cast<uint64_t>(i)), data.symbols));
  }
  std::vector<int64_t> answer = exercise.tokens;
  if (sorted) {
    std::ranges::sort(answer);
  }
  exercise.tokens.push_back(data.symbols);
  exercise.answer = exercise.tokens.size();
  exercise.tokens.insert(exercise.tokens.end(), answer.begin(), answer.end());
  return exercise;
}

// a + b = c in decimal digits, every number with its last digit first, so that a carry goes to the right.
Exercise added(uint64_t seed, int64_t digits) {
  constexpr int64_t plus = 10, equals = 11;
  Exercise exercise;
  std::vector<int64_t> sum;
  int64_t carry = 0;
  const auto digit = [&](int64_t number, int64_t i) {
    return below(mixed(seed, static_cast<uint64_t>(2 * i + number)), 10);
  };
  for (int64_t number = 0; number < 2; ++number) {
    for (int64_t i = 0; i < digits; ++i) {
      exercise.tokens.push_back(digit(number, i));
    }
    exercise.tokens.push_back(number == 0 ? plus : equals);
  }
  for (int64_t i = 0; i < digits; ++i) {
    const int64_t total = digit(0, i) + digit(1, i) + carry;
    sum.push_back(total % 10);
    carry = total / 10;
  }
  sum.push_back(carry);
  exercise.answer = exercise.tokens.size();
  exercise.tokens.insert(exercise.tokens.end(), sum.begin(), sum.end());
  return exercise;
}

class GeneratedSequences : public Sequences {
 public:
  explicit GeneratedSequences(const TrainConfig& config) : task_(config.task), data_(config.data) {}

  int64_t training() const override { return 0; }
  int64_t validation() const override { return validation_problems; }

  TrainBatch batch(bool of_validation, const std::vector<int64_t>& numbers, int64_t) const override {
    std::vector<at::Tensor> ids, targets;
    for (const int64_t number : numbers) {
      const uint64_t kind = mixed(static_cast<uint64_t>(data_.seed), of_validation ? 4 : 3);
      const Exercise exercise = exercise_of(mixed(kind, static_cast<uint64_t>(number)));
      const at::Tensor all = at::tensor(exercise.tokens, at::kLong);
      const int64_t shown = all.size(0) - 1;
      at::Tensor asked = all.narrow(0, 1, shown).clone();
      asked.narrow(0, 0, static_cast<int64_t>(exercise.answer) - 1).fill_(no_target);
      ids.push_back(all.narrow(0, 0, shown));
      targets.push_back(asked);
    }
    return {{.ids = at::stack(ids)}, at::stack(targets)};
  }

  nlohmann::ordered_json manifest() const override {
    // The same numbers from another version of this code would be other problems: a hash of some of them says so.
    std::string text;
    for (const bool of_validation : {false, true}) {
      for (int64_t number = 0; number < 16; ++number) {
        const at::Tensor ids = batch(of_validation, {number}, 0).inputs.ids;
        text.append(reinterpret_cast<const char*>(ids.const_data_ptr<int64_t>()), ids.nbytes());
      }
    }
    return {{"length", data_.length}, {"symbols", data_.symbols}, {"sha256_of_some", sha256_of(text)}};
  }

 private:
  Exercise exercise_of(uint64_t seed) const {
    return task_ == TrainTask::addition ? added(seed, data_.length)
                                        : repeated(seed, data_, task_ == TrainTask::sorting);
  }
  TrainTask task_;
  DataConfig data_;
};

}  // namespace

std::shared_ptr<const Sequences> generated_sequences(const TrainConfig& config) {
  return std::make_shared<GeneratedSequences>(config);
}

}  // namespace pare
