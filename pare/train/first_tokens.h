#pragma once
// Tokens that stand before each text of a model, and that training windows, which are cut out of a text, may not have.

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "pare/train/config.h"

namespace pare {

// Where each token of a long array stands first: one number for each token that there is, however long the array.
class TokenPlaces {
 public:
  void add(std::span<const int64_t> next);
  // False: among the first `end` tokens there is none such. True, too, where nobody looked.
  bool may_have(int64_t token, int64_t end) const;

 private:
  static constexpr int64_t nowhere = std::numeric_limits<int64_t>::max();
  static constexpr int64_t most = int64_t{1}
                                  << 20;  // larger ones are in no vocabulary, and a damaged file may have any
  std::vector<int64_t> first_;
  int64_t count_ = 0;
};

// Of a run that starts from a model or learns from one: each token that the model's texts begin with, by its tokenizer,
// by data.tokenizer or by bos_token_id in its config.json, and that no training window has. A sentence each.
std::vector<std::string> warnings_of_first_tokens(const TrainConfig& config,
                                                  const std::function<bool(int64_t token)>& may_learn);

}  // namespace pare
