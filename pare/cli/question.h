#pragma once
// What two models are asked when they are compared: a file's sequences, or random ones. `verify` and `rewrite` share
// it.

#include <optional>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/model/executor.h"
#include "pare/verify/certificate.h"

namespace CLI {
class App;
}

namespace pare {

struct QuestionFlags {
  std::string tokens, inputs;
  int64_t random = 0;  // 0: not given
};

void add_question_flags(CLI::App& command, QuestionFlags& flags, int64_t usual_sequences);

struct Question {
  std::vector<Inputs> inputs;
  std::vector<int64_t> numbers;  // of each sequence, as the file counts them; empty for random ones
  InputSource source;
};

// InputError when more than one was given, or one of the two models cannot read it.
Question read_question(const QuestionFlags& flags, int64_t usual_sequences, uint64_t seed,
                       const Architecture& reference, const Architecture& candidate);
// The same for a candidate that is not there yet: the file alone, so that a wrong one is found before the work.
void check_question(const QuestionFlags& flags, const Architecture& reference);

}  // namespace pare
