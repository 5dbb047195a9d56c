#pragma once
// Whether a model that reads a text knows less of it than somebody who guesses.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pare {

// A model that was never trained is near ln(choices), and a little above it. Beyond this many times that, one is sure
// of what is wrong: it reads other tokens than it was trained on.
constexpr double surely_guessing = 1.5;

// What to say of that, and what to do about it; nothing where it predicts no worse. `nats` is the mean of
// -log p(next token) over the tokens that `whose` ("the reference") was given.
std::optional<std::string> warning_of_guessing(std::string_view whose, double nats, int64_t choices);

}  // namespace pare
