#pragma once
// What two models are asked when they are compared: a file's sequences, or random ones. `verify` and `rewrite` share
// it.

#include <optional>
#include <string>

#include "pare/checkpoint/model_folder.h"
#include "pare/cli/text_inputs.h"
#include "pare/verify/questions.h"
#include "pare/verify/verify.h"

namespace CLI {
class App;
}

namespace pare {

struct QuestionFlags {
  std::string tokens, inputs;
  TextFlags text;
  int64_t random = 0;  // 0: not given
  int64_t budget = VerifyOptions{}.budget;
};

void add_question_flags(CLI::App& command, QuestionFlags& flags, int64_t usual_sequences);

// What a file asks of the reference; nothing where random ones are asked for. InputError when more than one was given.
std::optional<Question> read_question_file(const QuestionFlags& flags, const ModelFolder& reference);

}  // namespace pare
