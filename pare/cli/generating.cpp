#include "pare/cli/generating.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "pare/cli/output.h"
#include "pare/cli/subject.h"
#include "pare/cli/text_inputs.h"
#include "pare/data/text_file.h"
#include "pare/data/utf8.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf.h"
#include "pare/support/interrupt.h"
#include "pare/support/log.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

// Those that the model names, else those of the tokenizer that the command names.
std::vector<TokenId> tokens_that_end(const GenerateFlags& flags, const ModelFolder& stored) {
  std::vector<TokenId> ends = tokens_that_end_texts(stored.path);
  return ends.empty() && (is_folder(flags.tokenizer) || find_gguf(flags.tokenizer))
             ? tokens_that_end_texts(flags.tokenizer)
             : ends;
}

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

}  // namespace

std::optional<Tokenizer> find_tokenizer(const GenerateFlags& flags, const ModelFolder& stored) {
  const bool text = flags.chat || !flags.prompts.empty() || !flags.files.empty() || !flags.stops.empty();
  const std::filesystem::path path = flags.tokenizer.empty() ? stored.path : std::filesystem::path(flags.tokenizer);
  if (flags.tokenizer.empty() && tokenizers_in(stored.path).empty()) {
    if (text) {
      const std::string instead = flags.chat ? ""
                                             : fmt::format(", or give token ids with --tokens FILE in place of {}",
                                                           flags.stops.empty() ? "text" : "text, without --stop");
      throw InputError(
          fmt::format("{} holds no tokenizer: name one with --tokenizer PATH{}", quote(flags.model), instead));
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

GenerateOptions options_of(const GenerateFlags& flags, const Settings& settings, const ModelFolder& stored) {
  return {.sampling = flags.sampling,
          .seed = settings.seed,
          .max_tokens = flags.max_tokens,
          .stops = flags.stops,
          .ends = tokens_that_end(flags, stored)};
}

Decoder open_decoder(const GenerateFlags& flags, const Settings& settings, const ModelFolder& stored) {
  const at::Device device = chosen_device(settings);
  const Dtype dtype = flags.dtype.empty() ? usual_dtype(stored.dtype, device) : *float_dtype_from_word(flags.dtype);
  return Decoder(stored.model, {.dtype = scalar_type(dtype), .device = device});
}

void check_utf8(const std::string& text, const std::string& subject) {
  refuse_other_encoding(text, subject);
  if (const std::optional<size_t> wrong = invalid_utf8(text)) {
    throw InputError(fmt::format("{}: the byte at {} is not UTF-8: save the text as UTF-8", subject, *wrong));
  }
}

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

void print_generated(std::string_view text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  print_text(terminal ? for_terminal(text) : std::string(text));
  if (std::ferror(stdout) != 0) {
    throw ReaderGone();
  }
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

void say_what_happened(const std::vector<Generated>& all) {
  const std::map<Finish, const char*> words = {{Finish::end_of_text, "the end of the text"},
                                               {Finish::stop, "a stop string"},
                                               {Finish::max_tokens, "--max-tokens"},
                                               {Finish::context, "the end of the context"},
                                               {Finish::interrupted, was_ctrl_c() ? "Ctrl-C" : "a signal"}};
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

nlohmann::ordered_json document_around(const GenerateFlags& flags, const Settings& settings, const Decoder& decoder,
                                       const char* name, nlohmann::ordered_json what,
                                       const std::vector<Generated>& all) {
  const Rates rates = rates_of(all);
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  const Sampling& s = flags.sampling;
  return {{"model", flags.model},
          {"dtype", word(dtype_of(decoder.dtype()))},
          {"device", settings.device},
          {"seed", settings.seed},
          {"temperature", s.temperature},
          {"top_k", s.top_k},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"repetition_penalty", s.repetition_penalty},
          {"max_tokens", flags.max_tokens},
          {name, std::move(what)},
          {"prompt_tokens_per_second", number(rates.prompt)},
          {"tokens_per_second", number(rates.decode)}};
}

void add_drawn(nlohmann::ordered_json& entry, const Generated& generated) {
  entry["tokens"] = generated.tokens;
  // Logits are float32, whatever the weights are: seven digits are all that they have.
  nlohmann::ordered_json probabilities = nlohmann::ordered_json::array();
  for (const double each : generated.log_probabilities) {
    probabilities.push_back(std::stod(fmt::format("{:.7g}", each)));
  }
  entry["log_probabilities"] = std::move(probabilities);
  entry["finish"] = word(generated.finish);
  if (generated.finish == Finish::stop) {
    entry["stop"] = generated.stop;
  }
}

}  // namespace pare
