#include "pare/cli/text_inputs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "pare/cli/commands.h"
#include "pare/data/text_tokens.h"
#include "pare/support/error.h"
#include "pare/support/log.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

constexpr int64_t unlimited = INT64_MAX / 2;

}  // namespace

void check_vocabulary(const Tokenizer& tokenizer, const Architecture& architecture) {
  refuse_if(tokenizer.vocabulary().end() > architecture.vocab,
            "{} has ids up to {}, but the model's vocabulary is of {}: another model's tokenizer?", tokenizer.subject(),
            with_commas(tokenizer.vocabulary().end() - 1), with_commas(architecture.vocab));
}

// Tokens may have been added to a tokenizer beyond what the model knows.
void check_ids(const std::vector<TokenId>& ids, const std::string& subject, const Tokenizer& tokenizer,
               const Architecture& architecture) {
  for (const TokenId id : ids) {
    if (id >= architecture.vocab) {
      throw InputError(fmt::format("{}: {} makes {} of it the token {}, but the model's vocabulary is of {}", subject,
                                   tokenizer.subject(), quote(tokenizer.decode({id}, false)), with_commas(id),
                                   with_commas(architecture.vocab)));
    }
  }
}

void warn_of_dropped(const Tokenizer& tokenizer, const std::string& subject) {
  const int64_t count = tokenizer.dropped();
  if (count > 0) {
    log_warning(fmt::format("{}: {} of it {} no token in {}, and {} left out", escaped(subject),
                            count == 1 ? "one character or byte" : with_commas(count) + " characters or bytes",
                            count == 1 ? "has" : "have", tokenizer.subject(), count == 1 ? "is" : "are"));
  }
}

void add_text_flags(CLI::App& command, TextFlags& flags) {
  command.add_option("--text", flags.text, "or: a text (.gz, .xz too) for the model's tokenizer")->type_name("FILE");
  command.add_option("--tokenizer", flags.tokenizer, "instead of the tokenizer in the model folder")->type_name("PATH");
  command.add_option("--max-tokens", flags.max_tokens, "read at most N tokens of the text")
      ->check(whole_number(1, 1'000'000'000'000))
      ->type_name("N");
}

void check_text_flags(const TextFlags& flags) {
  refuse_if(flags.text.empty() && (!flags.tokenizer.empty() || flags.max_tokens > 0),
            "{} is given without --text: which text?", flags.tokenizer.empty() ? "--max-tokens" : "--tokenizer");
}

std::vector<Batch> read_text(const TextFlags& flags, const std::filesystem::path& model,
                             const Architecture& architecture, const TextCut& cut) {
  refuse_if(architecture.embedding.patch.has_value(), "{}: this model reads images: give --inputs with pixel_values",
            flags.text);
  Tokenizer tokenizer = open_tokenizer(flags.tokenizer.empty() ? model : std::filesystem::path(flags.tokenizer));
  check_vocabulary(tokenizer, architecture);
  const int64_t length = cut.length > 0 ? cut.length : architecture.context;
  TextSequences text =
      read_sequences(flags.text, tokenizer, length, flags.max_tokens > 0 ? flags.max_tokens : unlimited);
  for (const std::vector<TokenId>& sequence : text.sequences) {
    check_ids(sequence, flags.text, tokenizer, architecture);
  }
  warn_of_dropped(tokenizer, flags.text);
  std::string said =
      fmt::format("{}: {} {}{}", escaped(flags.text), with_commas(text.tokens), text.tokens == 1 ? "token" : "tokens",
                  text.whole ? "" : ", where --max-tokens ends it");
  if (text.sequences.size() > 1) {
    const int64_t rest = std::ssize(text.sequences.back());
    const bool left_out = cut.equal_only && rest < length;
    if (left_out) {
      text.sequences.pop_back();
    }
    const int64_t count = std::ssize(text.sequences);
    said += fmt::format(", {} into {} {} of {}{}",
                        cut.length > 0 ? "cut by --length" : "longer than the context: split", with_commas(count),
                        count == 1 ? "sequence" : "sequences", cut.equal_only ? "" : "up to ", with_commas(length));
    said += left_out ? fmt::format("; the last {} do not fill a sequence and are left out",
                                   with_commas(rest - std::ssize(tokenizer.before()) - std::ssize(tokenizer.after())))
                     : "";
  }
  log_info(said);
  return batches_of(std::move(text.sequences), architecture);
}

}  // namespace pare
