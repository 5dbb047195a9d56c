#pragma once
// What a model is asked where people give text: `--text`, read by the model's own tokenizer.

#include <filesystem>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/cli/run_inputs.h"
#include "pare/data/tokenizer.h"

namespace CLI {
class App;
}

namespace pare {

struct TextFlags {
  std::string text, tokenizer;
  int64_t max_tokens = 0;  // 0: all of them
};

void add_text_flags(CLI::App& command, TextFlags& flags);
// InputError where flags that only say how text is read come without any.
void check_text_flags(const TextFlags& flags);

struct TextCut {
  int64_t length = 0;       // of a sequence; 0: the model's context
  bool equal_only = false;  // the rest of a text that was cut, which fills no sequence, is left out
};

// InputError where a tokenizer has tokens that the model does not know, or has made one of a text.
void check_vocabulary(const Tokenizer& tokenizer, const Architecture& architecture);
void check_ids(const std::vector<TokenId>& ids, const std::string& subject, const Tokenizer& tokenizer,
               const Architecture& architecture);
// Says how much of a text became no token.
void warn_of_dropped(const Tokenizer& tokenizer, const std::string& subject);

// The text as sequences that fit the context, each with the special tokens around it, and says so. `model` is the
// folder that holds the tokenizer, unless another is named.
std::vector<Batch> read_text(const TextFlags& flags, const std::filesystem::path& model,
                             const Architecture& architecture, const TextCut& cut = {});

}  // namespace pare
