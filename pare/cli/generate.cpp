// pare generate: prompts continued by a model, shown as they come.

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/cli/commands.h"
#include "pare/cli/failure.h"
#include "pare/cli/generating.h"
#include "pare/cli/output.h"
#include "pare/cli/run_inputs.h"
#include "pare/cli/subject.h"
#include "pare/cli/text_inputs.h"
#include "pare/data/text_file.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/log.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

constexpr uint64_t largest_prompt = 1'000'000'000;

struct Prompt {
  std::string subject;              // for messages
  std::optional<std::string> text;  // as it was given; none of token ids
  std::vector<TokenId> ids;
};

std::string read_stdin() {
  std::string text;
  std::array<char, 65536> buffer;
  while (true) {
    // A read goes on after Ctrl-C, a poll does not.
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, -1) < 0 && errno == EINTR) {
      check_interrupt();
      continue;
    }
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count < 0) {
      fail_io("read", "stdin", errno);
    }
    if (count == 0) {
      return text;
    }
    text.append(buffer.data(), static_cast<size_t>(count));
    if (text.size() > largest_prompt) {
      throw InputError(fmt::format("stdin: more than {}: no prompt is so long", human_bytes(largest_prompt)));
    }
  }
}

// An editor, and echo, end the last line of a file: no part of a prompt that goes on there.
std::string without_last_line_end(std::string text) {
  if (text.ends_with('\n')) {
    text.pop_back();
    if (text.ends_with('\r')) {
      text.pop_back();
    }
  }
  return text;
}

std::string read_file(const std::string& path) {
  TextFile file(path);
  std::string text;
  constexpr size_t piece = 1 << 20;
  while (file.read(text, piece)) {
    refuse_if(text.size() > largest_prompt, "{}: more than {}: no prompt is so long", path,
              human_bytes(largest_prompt));
  }
  return text;
}

// Whether somebody has written to stdin, or named a file for it.
bool stdin_has_text() {
  struct stat about = {};
  if (::fstat(STDIN_FILENO, &about) != 0) {
    return false;
  }
  if (S_ISREG(about.st_mode)) {
    return ::lseek(STDIN_FILENO, 0, SEEK_CUR) < about.st_size;
  }
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return S_ISFIFO(about.st_mode) && ::poll(&input, 1, 0) == 1 && (input.revents & POLLIN) != 0;
}

std::vector<Prompt> given_texts(const GenerateFlags& flags) {
  std::vector<Prompt> prompts;
  bool read = false;
  for (const std::string& word : flags.prompts) {
    if (word != "-") {
      prompts.push_back({fmt::format("prompt {}", prompts.size() + 1), word, {}});
      continue;
    }
    if (std::exchange(read, true)) {
      throw InputError("the prompt - is given twice, but there is one stdin");
    }
    prompts.push_back({"stdin", without_last_line_end(read_stdin()), {}});
  }
  for (const std::string& path : flags.files) {
    prompts.push_back({path, without_last_line_end(read_file(path)), {}});
  }
  return prompts;
}

void check_prompt(const Prompt& prompt, const Architecture& a) {
  if (std::ssize(prompt.ids) > a.context) {
    throw InputError(fmt::format("{} has {} tokens, but the model reads at most {}: shorten it", prompt.subject,
                                 with_commas(std::ssize(prompt.ids)), with_commas(a.context)));
  }
}

std::vector<Prompt> read_prompts(const GenerateFlags& flags, const ModelFolder& stored, Tokenizer* tokenizer) {
  const Architecture& a = stored.model.architecture;
  std::vector<Prompt> prompts;
  if (!flags.tokens.empty()) {
    for (std::vector<TokenId>& row : read_token_rows(flags.tokens, a)) {
      prompts.push_back({fmt::format("{}: sequence {}", flags.tokens, prompts.size()), std::nullopt, std::move(row)});
    }
  } else if (flags.prompts.empty() && flags.files.empty()) {
    if (stdin_has_text()) {
      log_info("stdin has a text, but nobody asked to read it: give - as PROMPT to continue it");
    }
    const std::vector<TokenId> before =
        tokenizer && !tokenizer->before().empty() ? tokenizer->before() : tokens_before_texts(stored.path);
    if (before.empty() || std::any_of(before.begin(), before.end(), [&](TokenId id) { return id >= a.vocab; })) {
      throw InputError(
          fmt::format("no prompt is given, and neither a tokenizer of {} nor bos_token_id of its config.json says what "
                      "a text begins with: give a prompt, or --tokens FILE",
                      quote(flags.model)));
    }
    prompts.push_back({"the beginning of a text", std::nullopt, before});
  } else {
    PARE_CHECK(tokenizer != nullptr, "a text without tokenizer");
    prompts = given_texts(flags);
    for (Prompt& prompt : prompts) {
      check_utf8(*prompt.text, prompt.subject);
      if (prompt.text->empty()) {
        throw InputError(
            fmt::format("{} is empty: there is nothing to continue. Without any prompt the model begins a "
                        "text of its own",
                        prompt.subject));
      }
      prompt.ids = tokenizer->before();
      const std::vector<TokenId> ids = tokenizer->encode(*prompt.text);
      prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
      check_ids(prompt.ids, prompt.subject, *tokenizer, a);
      if (prompt.ids.empty()) {
        throw InputError(fmt::format("{}: {} has no token for any of it", prompt.subject, tokenizer->subject()));
      }
    }
    warn_of_dropped(*tokenizer, prompts.size() == 1 ? prompts.front().subject : "the prompts");
  }
  for (const Prompt& prompt : prompts) {
    check_prompt(prompt, a);
  }
  return prompts;
}

void check_flags(const GenerateFlags& flags) {
  const char* const other = !flags.tokens.empty() ? "--tokens" : !flags.files.empty() ? "--file" : nullptr;
  if (flags.chat && other != nullptr) {
    throw InputError(
        fmt::format("{} is given beside --chat: a conversation has messages, from stdin or as PROMPT", other));
  }
  if (flags.chat && (flags.prompts.size() > 1 || (flags.prompts.size() == 1 && flags.prompts[0] == "-"))) {
    throw InputError("--chat takes one message as PROMPT; the others are read from stdin, a line each");
  }
  if (!flags.chat && (!flags.system.empty() || !flags.chat_template.empty())) {
    throw InputError(fmt::format("{} is for a conversation: give --chat too",
                                 flags.system.empty() ? "--chat-template" : "--system"));
  }
  if (!flags.tokens.empty() && (!flags.prompts.empty() || !flags.files.empty())) {
    throw InputError("--tokens is given beside a prompt: which of them should the model continue?");
  }
  for (const std::string& stop : flags.stops) {
    check_utf8(stop, "--stop");
  }
  const Sampling& s = flags.sampling;
  const char* needless = s.top_k > 0 ? "--top-k" : s.top_p < 1 ? "--top-p" : s.min_p > 0 ? "--min-p" : nullptr;
  if (s.temperature == 0 && needless != nullptr) {
    throw InputError(
        fmt::format("{} changes nothing at temperature 0, where the most likely token is taken: give "
                    "--temperature too, such as --temperature 1",
                    needless));
  }
}

class Screen {
 public:
  explicit Screen(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  void begin(const Prompt& prompt) {
    if (std::exchange(begun_, true)) {
      print_generated("\n");  // an empty line between texts
    }
    if (tokenizer_ == nullptr) {
      print_generated(fmt::format("{}", fmt::join(prompt.ids, " ")));
    } else {
      print_generated(prompt.text ? *prompt.text : tokenizer_->decode(known(prompt.ids)));
    }
  }

  Shown shown() {
    if (tokenizer_ == nullptr) {
      return {.text = {}, .token = [](TokenId id) { print_generated(fmt::format(" {}", id)); }};
    }
    return {.text = print_generated, .token = {}};
  }

  void end() { print_generated("\n"); }

 private:
  std::vector<TokenId> known(std::vector<TokenId> ids) const {
    std::erase_if(ids, [this](TokenId id) { return !tokenizer_->has(id); });
    return ids;
  }

  const Tokenizer* tokenizer_;
  bool begun_ = false;
};

nlohmann::ordered_json generations_of(const std::vector<Prompt>& prompts, const std::vector<Generated>& all,
                                      bool with_text) {
  nlohmann::ordered_json generations = nlohmann::ordered_json::array();
  for (size_t n = 0; n < all.size(); ++n) {
    nlohmann::ordered_json entry = {{"prompt", nullptr}, {"prompt_tokens", prompts[n].ids}, {"text", nullptr}};
    if (prompts[n].text) {
      entry["prompt"] = *prompts[n].text;
    }
    if (with_text) {
      entry["text"] = all[n].text;
    }
    add_drawn(entry, all[n]);
    generations.push_back(std::move(entry));
  }
  return generations;
}

// Up to the one that Ctrl-C ended.
std::vector<Generated> generate_all(Decoder& decoder, const Tokenizer* tokenizer, const std::vector<Prompt>& prompts,
                                    const GenerateOptions& options, bool json) {
  std::vector<Generated> all;
  Screen screen(tokenizer);
  for (const Prompt& prompt : prompts) {
    if (!json) {
      screen.begin(prompt);
    }
    all.push_back(generate(decoder, tokenizer, prompt.ids, all.size(), options, json ? Shown() : screen.shown()));
    if (!json) {
      screen.end();
    }
    if (all.back().finish == Finish::interrupted) {
      break;
    }
  }
  return all;
}

void generate_command(const GenerateFlags& flags, const Settings& settings) {
  check_flags(flags);
  if (flags.chat) {
    return chat_command(flags, settings);
  }
  const ModelFolder stored = open_and_warn(flags.model, settings, flags.adapter);
  check_continues_text(stored.model.architecture, quote(flags.model));
  std::optional<Tokenizer> tokenizer = find_tokenizer(flags, stored);
  Tokenizer* const reader = tokenizer ? &*tokenizer : nullptr;
  const std::vector<Prompt> prompts = read_prompts(flags, stored, reader);
  const GenerateOptions options = options_of(flags, settings, stored);
  warn_of_settings(flags, stored);
  Decoder decoder = open_decoder(flags, settings, stored);
  std::vector<Generated> all;
  try {
    all = generate_all(decoder, reader, prompts, options, settings.json);
  } catch (const ReaderGone&) {
    return;
  }
  const bool interrupted = all.back().finish == Finish::interrupted;
  if (interrupted) {
    forget_interrupt();
  }
  if (tokenizer) {
    warn_of_missing_text(all, *tokenizer);
  }
  say_what_happened(all);
  if (settings.json) {
    nlohmann::ordered_json document = document_around(flags, settings, decoder, "generations",
                                                      generations_of(prompts, all, tokenizer.has_value()), all);
    if (interrupted) {
      document.update(error_document(describe(std::make_exception_ptr(Interrupted()))));
    }
    print_json(document);
  }
  if (interrupted) {
    throw Interrupted();
  }
}

}  // namespace

void add_generate(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text");
  auto flags = std::make_shared<GenerateFlags>();
  Sampling& sampling = flags->sampling;
  command->add_option("MODEL", flags->model, "a model folder, or a GGUF file")->required();
  add_adapter_flag(*command, flags->adapter);
  command->add_option("PROMPT", flags->prompts, "texts to continue; -: stdin; none: the model begins");
  command->add_option("--file", flags->files, "or: a file with a prompt; may be given again")
      ->type_name("FILE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);  // what follows is a prompt
  command->add_option("--tokens", flags->tokens, "or: a JSON list of lists of token ids")->type_name("FILE");
  command->add_option("--tokenizer", flags->tokenizer, "instead of the tokenizer in the model folder")
      ->type_name("PATH");
  command->add_flag("--chat", flags->chat, "a conversation: PROMPT, then lines of stdin, are messages");
  command->add_option("--system", flags->system, "what the conversation begins with: how to answer")->type_name("TEXT");
  command->add_option("--chat-template", flags->chat_template, "instead of the one in the model folder (Jinja)")
      ->type_name("FILE");
  command->add_option("-n,--max-tokens", flags->max_tokens, "draw at most N tokens for each prompt")
      ->check(whole_number(1, 1'000'000'000))
      ->type_name("N")
      ->capture_default_str();
  const CLI::Option* temperature =
      command->add_option("--temperature", sampling.temperature, "of what is drawn; 0: always the most likely")
          ->check(number_between(0, 1000, true))
          ->type_name("X")
          ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "only the K most likely tokens [all]")
      ->check(whole_number(1, 1'000'000'000))
      ->type_name("K");
  command->add_option("--top-p", sampling.top_p, "only the most likely, up to this probability [1]")
      ->check(number_between(0, 1, false))
      ->type_name("P");
  command->add_option("--min-p", sampling.min_p, "only those P times as likely as the most likely [0]")
      ->check(number_between(0, 1, true))
      ->type_name("P");
  const CLI::Option* penalty =
      command->add_option("--repetition-penalty", sampling.repetition_penalty, "above 1: repeats less [1]")
          ->check(number_between(0.001, 1000, true))
          ->type_name("X");
  command->add_option("--stop", flags->stops, "end before this text; may be given again")
      ->type_name("TEXT")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);  // what follows is a prompt
  command->add_option("--dtype", flags->dtype, "of weights [as stored: of 16 bits on a CPU, else float32]")
      ->transform(dtype_or())
      ->type_name("NAME");
  command->footer(R"(The settings mean what they mean in transformers, and act in its order:
penalty, temperature, top-k, top-p, min-p. --seed gives other texts. Logits are
float32 with every --dtype, float64 too.
Example: pare generate model "Once upon a time" --temperature 0.8 --top-p 0.9)");
  command->callback([=, &settings] {
    flags->temperature_given = temperature->count() > 0;
    flags->penalty_given = penalty->count() > 0;
    generate_command(*flags, settings);
  });
}

}  // namespace pare
