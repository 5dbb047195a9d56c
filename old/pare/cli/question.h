#pragma once
// What two models are asked when they are compared: a file's sequences, or random ones. `verify` and `rewrite` share
// it.

#include <optional>
#include <string>

#include "pare/arch/architecture.h"
#include "pare/verify/question.h"

namespace CLI {
class App;
}

namespace pare {

struct QuestionFlags {
  std::string tokens, inputs;
  int64_t random = 0;  // 0: not given
};

void add_question_flags(CLI::App& command, QuestionFlags& flags, int64_t usual_sequences);

// InputError when more than one was given, or one of the two models cannot read it.
Question read_question(const QuestionFlags& flags, int64_t usual_sequences, uint64_t seed,
                       const Architecture& reference, const Architecture& candidate);
// The part of it that a file asks, so that a wrong one is found before the work; nothing where it asks for random ones.
std::optional<Question> read_question_file(const QuestionFlags& flags, const Architecture& architecture);

}  // namespace pare
