#pragma once
// What continuing a text and holding a conversation share: flags, tokenizer, decoder, what is shown and said.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/model_folder.h"
#include "pare/cli/commands.h"
#include "pare/data/tokenizer.h"
#include "pare/decode/generate.h"

namespace pare {

struct GenerateFlags {
  std::string model, adapter, tokens, tokenizer, dtype, system, chat_template;
  std::vector<std::string> prompts, files, stops;
  Sampling sampling;
  int64_t max_tokens = 256;
  bool chat = false;
  bool temperature_given = false, penalty_given = false;
};

// The tokenizer of the flags or the model. None where only ids are given and read, and the folder has none.
std::optional<Tokenizer> find_tokenizer(const GenerateFlags& flags, const ModelFolder& stored);
GenerateOptions options_of(const GenerateFlags& flags, const Settings& settings, const ModelFolder& stored);
Decoder open_decoder(const GenerateFlags& flags, const Settings& settings, const ModelFolder& stored);

// Says which settings that its folder comes with, and transformers would apply, are not applied.
void warn_of_settings(const GenerateFlags& flags, const ModelFolder& stored);

// InputError where it is not UTF-8; `subject` names it.
void check_utf8(const std::string& text, const std::string& subject);

// What a model writes is untrusted: a terminal would obey some of it.
std::string for_terminal(std::string_view text);

// Thrown where a text goes on that nobody reads any more, as behind `head`: no error, but its end.
struct ReaderGone {};
// Prints text as it comes; on a terminal nothing that it would obey. Throws ReaderGone.
void print_generated(std::string_view text);

void warn_of_missing_text(const std::vector<Generated>& all, const Tokenizer& tokenizer);
void say_what_happened(const std::vector<Generated>& all);

// Every member of the document but `what`, which stands among them under its name.
nlohmann::ordered_json document_around(const GenerateFlags& flags, const Settings& settings, const Decoder& decoder,
                                       const char* name, nlohmann::ordered_json what,
                                       const std::vector<Generated>& all);
// What both say of a text that was drawn.
void add_drawn(nlohmann::ordered_json& entry, const Generated& generated);

// pare generate --chat: a conversation on the terminal, or one message for each line of stdin.
void chat_command(const GenerateFlags& flags, const Settings& settings);

}  // namespace pare
