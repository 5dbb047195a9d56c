// pare generate: prompts continued by a model, shown as they come.

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/cli/commands.h"
#include "pare/cli/failure.h"
#include "pare/cli/output.h"
#include "pare/cli/run_inputs.h"
#include "pare/cli/subject.h"
#include "pare/cli/text_inputs.h"
#include "pare/data/utf8.h"
#include "pare/decode/generate.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/log.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

constexpr uint64_t largest_prompt = 1'000'000'000;

struct GenerateFlags {
  std::string model, tokens, tokenizer, dtype;
  std::vector<std::string> prompts, files, stops;
  Sampling sampling;
  int64_t max_tokens = 256;
};

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
    prompts.push_back({path, without_last_line_end(read_text_file(path, largest_prompt)), {}});
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
      if (const std::optional<size_t> wrong = invalid_utf8(*prompt.text)) {
        throw InputError(
            fmt::format("{}: the byte at {} is not UTF-8: save the text as UTF-8", prompt.subject, *wrong));
      }
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
  if (!flags.tokens.empty() && (!flags.prompts.empty() || !flags.files.empty())) {
    throw InputError("--tokens is given beside a prompt: which of them should the model continue?");
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

// None where only ids are given and read, and the folder has no tokenizer.
// Those that the model names, else those of the tokenizer that the command names.
std::vector<TokenId> tokens_that_end(const GenerateFlags& flags, const ModelFolder& stored) {
  std::vector<TokenId> ends = tokens_that_end_texts(stored.path);
  return ends.empty() && is_folder(flags.tokenizer) ? tokens_that_end_texts(flags.tokenizer) : ends;
}

std::optional<Tokenizer> find_tokenizer(const GenerateFlags& flags, const ModelFolder& stored) {
  const bool text = !flags.prompts.empty() || !flags.files.empty() || !flags.stops.empty();
  const std::filesystem::path path = flags.tokenizer.empty() ? stored.path : std::filesystem::path(flags.tokenizer);
  if (flags.tokenizer.empty() && tokenizers_in(stored.path).empty()) {
    if (text) {
      throw InputError(
          fmt::format("{} holds no tokenizer: name one with --tokenizer PATH, or give token ids with "
                      "--tokens FILE in place of {}",
                      quote(flags.model), flags.stops.empty() ? "text" : "text, without --stop"));
    }
    return std::nullopt;
  }
  try {
    Tokenizer tokenizer = open_tokenizer(path);
    check_vocabulary(tokenizer, stored.model.architecture);
    return tokenizer;
  } catch (const InputError& error) {
    if (text || !flags.tokenizer.empty()) {
      throw;
    }
    log_warning(fmt::format("{}; tokens are shown by their ids", error.what()));
    return std::nullopt;
  }
}

// What a model writes is untrusted: a terminal would obey some of it.
std::string for_terminal(std::string_view text) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const Utf8Character c = character_at(text, at);
    const bool obeyed = (c.point < 0x20 && c.point != '\n' && c.point != '\t') || (c.point >= 0x7F && c.point < 0xA0);
    shown += obeyed ? "\xEF\xBF\xBD" : text.substr(at, c.bytes);
    at += c.bytes;
  }
  return shown;
}

// Thrown where a text goes on that nobody reads any more, as behind `head`: no error, but its end.
struct ReaderGone {};

class Screen {
 public:
  explicit Screen(const Tokenizer* tokenizer) : tokenizer_(tokenizer), terminal_(::isatty(STDOUT_FILENO) == 1) {}

  void begin(const Prompt& prompt) {
    if (std::exchange(begun_, true)) {
      print("\n");  // an empty line between texts
    }
    if (tokenizer_ == nullptr) {
      print(fmt::format("{}", fmt::join(prompt.ids, " ")));
    } else {
      print(prompt.text ? *prompt.text : tokenizer_->decode(known(prompt.ids)));
    }
  }

  Shown shown() {
    if (tokenizer_ == nullptr) {
      return {.text = {}, .token = [this](TokenId id) { print(fmt::format(" {}", id)); }};
    }
    return {.text = [this](std::string_view text) { print(text); }, .token = {}};
  }

  void end() { print("\n"); }

 private:
  void print(std::string_view text) {
    print_text(terminal_ ? for_terminal(text) : std::string(text));
    if (std::ferror(stdout) != 0) {
      throw ReaderGone();
    }
  }

  std::vector<TokenId> known(std::vector<TokenId> ids) const {
    std::erase_if(ids, [this](TokenId id) { return !tokenizer_->has(id); });
    return ids;
  }

  const Tokenizer* tokenizer_;
  bool terminal_, begun_ = false;
};

struct Rates {
  std::optional<double> prompt, decode;  // tokens a second
};

Rates rates_of(const std::vector<Generated>& all) {
  Generated sum;
  for (const Generated& each : all) {
    sum.prompt_tokens += each.prompt_tokens;
    sum.prompt_seconds += each.prompt_seconds;
    sum.steps += each.steps;
    sum.seconds += each.seconds;
  }
  const auto rate = [](int64_t tokens, double seconds) {
    return tokens > 0 && seconds > 0 ? std::optional(static_cast<double>(tokens) / seconds) : std::nullopt;
  };
  return {rate(sum.prompt_tokens, sum.prompt_seconds), rate(sum.steps, sum.seconds)};
}

void say_what_happened(const std::vector<Generated>& all) {
  static const std::map<Finish, const char*> words = {{Finish::end_of_text, "the end of the text"},
                                                      {Finish::stop, "a stop string"},
                                                      {Finish::max_tokens, "--max-tokens"},
                                                      {Finish::context, "the end of the context"},
                                                      {Finish::interrupted, "Ctrl-C"}};
  int64_t prompt = 0, fresh = 0;
  std::map<Finish, int64_t> ends;
  for (const Generated& each : all) {
    prompt += each.prompt_tokens;
    fresh += std::ssize(each.tokens);
    ++ends[each.finish];
  }
  const Rates rates = rates_of(all);
  const auto counted = [](int64_t tokens, const std::optional<double>& rate) {
    return with_commas(tokens) + (rate ? fmt::format(" ({}/s)", with_commas(std::llround(*rate))) : "");
  };
  std::vector<std::string> reasons;
  for (const auto& [finish, count] : ends) {
    reasons.push_back(all.size() == 1 ? words.at(finish) : fmt::format("{} ({})", words.at(finish), count));
  }
  log_info(fmt::format("tokens read {}, drawn {}; ended by {}", counted(prompt, rates.prompt),
                       counted(fresh, rates.decode), fmt::join(reasons, ", ")));
}

nlohmann::ordered_json document_of(const GenerateFlags& flags, const Settings& settings, Dtype dtype,
                                   const std::vector<Prompt>& prompts, const std::vector<Generated>& all,
                                   bool with_text) {
  nlohmann::ordered_json generations = nlohmann::ordered_json::array();
  for (size_t n = 0; n < all.size(); ++n) {
    const Generated& each = all[n];
    nlohmann::ordered_json entry = {{"prompt", nullptr},
                                    {"prompt_tokens", prompts[n].ids},
                                    {"text", nullptr},
                                    {"tokens", each.tokens},
                                    {"log_probabilities", each.log_probabilities},
                                    {"finish", word(each.finish)}};
    if (prompts[n].text) {
      entry["prompt"] = *prompts[n].text;
    }
    if (with_text) {
      entry["text"] = each.text;
    }
    if (each.finish == Finish::stop) {
      entry["stop"] = each.stop;
    }
    generations.push_back(std::move(entry));
  }
  const Rates rates = rates_of(all);
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  const Sampling& s = flags.sampling;
  return {{"model", flags.model},
          {"dtype", word(dtype)},
          {"device", settings.device},
          {"seed", settings.seed},
          {"temperature", s.temperature},
          {"top_k", s.top_k},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"repetition_penalty", s.repetition_penalty},
          {"max_tokens", flags.max_tokens},
          {"generations", std::move(generations)},
          {"prompt_tokens_per_second", number(rates.prompt)},
          {"tokens_per_second", number(rates.decode)}};
}

void warn_of_missing_text(const std::vector<Generated>& all, const Tokenizer& tokenizer) {
  int64_t count = 0;
  for (const Generated& each : all) {
    count += each.without_text;
  }
  if (count > 0) {
    log_warning(fmt::format("{} of the tokens drawn {} not in {}, and {} no text: another model's tokenizer?",
                            with_commas(count), count == 1 ? "is" : "are", tokenizer.subject(),
                            count == 1 ? "has" : "have"));
  }
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
  const ModelFolder stored = open_and_warn(flags.model, settings);
  check_continues_text(stored.model.architecture, quote(flags.model));
  std::optional<Tokenizer> tokenizer = find_tokenizer(flags, stored);
  Tokenizer* const reader = tokenizer ? &*tokenizer : nullptr;
  const std::vector<Prompt> prompts = read_prompts(flags, stored, reader);
  const GenerateOptions options{.sampling = flags.sampling,
                                .seed = settings.seed,
                                .max_tokens = flags.max_tokens,
                                .stops = flags.stops,
                                .ends = tokens_that_end(flags, stored)};
  const at::Device device = chosen_device(settings);
  const Dtype dtype = flags.dtype.empty() ? usual_dtype(stored.dtype, device) : *float_dtype_from_word(flags.dtype);
  Decoder decoder(stored.model, {.dtype = scalar_type(dtype), .device = device});
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
    nlohmann::ordered_json document =
        document_of(flags, settings, dtype_of(decoder.dtype()), prompts, all, tokenizer.has_value());
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
  command->add_option("MODEL", flags->model, "a model folder")->required();
  command->add_option("PROMPT", flags->prompts, "texts to continue; -: stdin; none: the model begins");
  command->add_option("--file", flags->files, "or: a file with a prompt; may be given again")
      ->type_name("FILE")
      ->allow_extra_args(false);  // what follows is a prompt
  command->add_option("--tokens", flags->tokens, "or: a JSON list of lists of token ids")->type_name("FILE");
  command->add_option("--tokenizer", flags->tokenizer, "instead of the tokenizer in the model folder")
      ->type_name("PATH");
  command->add_option("-n,--max-tokens", flags->max_tokens, "draw at most N tokens for each prompt")
      ->check(whole_number(1, 1'000'000'000))
      ->type_name("N")
      ->capture_default_str();
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
  command->add_option("--repetition-penalty", sampling.repetition_penalty, "above 1: repeats less [1]")
      ->check(number_between(0.001, 1000, true))
      ->type_name("X");
  command->add_option("--stop", flags->stops, "end before this text; may be given again")
      ->type_name("TEXT")
      ->allow_extra_args(false);  // what follows is a prompt
  command->add_option("--dtype", flags->dtype, "of weights, such as bfloat16 [as stored]")
      ->transform(dtype_or())
      ->type_name("NAME");
  command->footer(R"(The settings mean what they mean in transformers, and act in its order:
penalty, temperature, top-k, top-p, min-p. --seed gives other texts.
Example: pare generate model "Once upon a time" --temperature 0.8 --top-p 0.9)");
  command->callback([flags, &settings] { generate_command(*flags, settings); });
}

}  // namespace pare
