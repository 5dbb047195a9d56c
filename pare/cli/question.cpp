#include "pare/cli/question.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "pare/cli/commands.h"
#include "pare/cli/run_inputs.h"
#include "pare/support/error.h"

namespace pare {

void add_question_flags(CLI::App& command, QuestionFlags& flags, int64_t usual_sequences) {
  command.add_option("--tokens", flags.tokens, "inputs: a JSON list of lists of token ids")->type_name("FILE");
  command.add_option("--inputs", flags.inputs, "or: safetensors with input_ids, attention_mask, ...")
      ->type_name("FILE");
  add_text_flags(command, flags.text);
  command.add_option("--random", flags.random, fmt::format("or: N random sequences [{}]", usual_sequences))
      ->check(whole_number(1, 100'000))
      ->type_name("N");
  command.add_option("--budget", flags.budget, "tokens to sample where no proof applies")
      ->check(whole_number(1, 100'000'000))
      ->type_name("N")
      ->capture_default_str();
}

std::optional<Question> read_question_file(const QuestionFlags& flags, const ModelFolder& reference) {
  const int given = (flags.tokens.empty() ? 0 : 1) + (flags.inputs.empty() ? 0 : 1) +
                    (flags.text.text.empty() ? 0 : 1) + (flags.random > 0 ? 1 : 0);
  refuse_if(given > 1, "one of --tokens, --inputs, --text and --random, not several: what should the models read?");
  check_text_flags(flags.text);
  if (given == 0 || flags.random > 0) {
    return std::nullopt;
  }
  const Architecture& architecture = reference.model.architecture;
  Question question;
  question.kind = !flags.tokens.empty() ? "tokens" : !flags.inputs.empty() ? "tensors" : "text";
  for (Batch& batch : !flags.tokens.empty()   ? read_token_lists(flags.tokens, architecture)
                      : !flags.inputs.empty() ? read_input_tensors(flags.inputs, architecture)
                                              : read_text(flags.text, reference.path, architecture)) {
    question.inputs.push_back(batch.inputs);
    question.numbers.insert(question.numbers.end(), batch.sequences.begin(), batch.sequences.end());
  }
  return question;
}

}  // namespace pare
