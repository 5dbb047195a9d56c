#include "pare/verify/guessing.h"

#include <fmt/format.h>

#include <cmath>

namespace pare {

std::optional<std::string> warning_of_guessing(std::string_view whose, double nats, int64_t choices) {
  const double guessed = std::log(static_cast<double>(choices));
  if (!(nats > surely_guessing * guessed)) {  // nor of what is not a number
    return std::nullopt;
  }
  return fmt::format(
      "{} is worse than guessing on these tokens: {:.4g} nats a token, where guessing takes ln {} = {:.2f}. Are they "
      "the "
      "tokens that it was trained on? Check which tokenizer made them (--text takes the model's own), and which token "
      "its texts begin with",
      whose, nats, choices, guessed);
}

}  // namespace pare
