#include "pare/decode/generate.h"

#include <algorithm>
#include <chrono>

#include "pare/data/text_stream.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/mixed_bits.h"

namespace pare {

namespace {

// The text so far, and how much of it was shown: all but what may begin a stop string.
class ShownText {
 public:
  ShownText(const Tokenizer* tokenizer, std::span<const TokenId> prompt, const std::vector<std::string>& stops,
            const Shown& shown)
      : stops_(stops), shown_(shown) {
    if (tokenizer != nullptr) {
      stream_.emplace(*tokenizer, prompt);
    }
  }

  // The stop string that ends the text with this token, if one does: as soon as the text, if it ended here, has it.
  std::optional<FoundStop> add(TokenId id) {
    if (!stream_) {
      return std::nullopt;
    }
    text_ += stream_->add(id);
    if (!stops_.empty()) {
      const std::string open = text_.substr(given_) + stream_->rest();
      if (std::optional<FoundStop> found = find_stop(open, stops_)) {
        text_ = text_.substr(0, given_) + open.substr(0, found->at);
        stream_.reset();
        return found;
      }
    }
    show(text_.size() - unfinished_stop(text_, stops_));
    return std::nullopt;
  }

  std::string finish() {
    if (stream_) {
      text_ += stream_->rest();
    }
    show(text_.size());
    return std::move(text_);
  }

 private:
  void show(size_t end) {
    if (end > given_ && shown_.text) {
      shown_.text(std::string_view(text_).substr(given_, end - given_));
    }
    given_ = std::max(given_, end);
  }

  const std::vector<std::string>& stops_;
  const Shown& shown_;
  std::optional<TextStream> stream_;
  std::string text_;
  size_t given_ = 0;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

bool contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

const char* word(Finish finish) {
  switch (finish) {
    case Finish::end_of_text:
      return "end_of_text";
    case Finish::stop:
      return "stop";
    case Finish::max_tokens:
      return "max_tokens";
    case Finish::context:
      return "context";
    case Finish::interrupted:
      return "interrupted";
  }
  PARE_UNREACHABLE("a way to finish");
}

std::optional<FoundStop> find_stop(std::string_view text, const std::vector<std::string>& stops) {
  std::optional<FoundStop> first;
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop);
    if (at != std::string_view::npos && (!first || at < first->at)) {
      first = FoundStop{at, stop};
    }
  }
  return first;
}

size_t unfinished_stop(std::string_view text, const std::vector<std::string>& stops) {
  size_t most = 0;
  for (const std::string_view stop : stops) {
    for (size_t bytes = std::min(stop.size() - 1, text.size()); bytes > most; --bytes) {
      if (text.ends_with(stop.substr(0, bytes))) {
        most = bytes;
      }
    }
  }
  return most;
}

Generated generate(Decoder& decoder, const Tokenizer* tokenizer, std::span<const TokenId> prompt, uint64_t sequence,
                   const GenerateOptions& options, const Shown& shown) {
  PARE_CHECK(tokenizer != nullptr || options.stops.empty(), "stop strings are found in text");
  Generated result;
  ShownText text(tokenizer, prompt, options.stops, shown);
  std::vector<TokenId> seen(prompt.begin(), prompt.end());
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  if (options.kept == 0) {
    decoder.reset();
  }
  PARE_CHECK(decoder.length() == options.kept, "a decoder that has read what is kept");
  try {
    const std::span<const TokenId> fresh = prompt.subspan(static_cast<size_t>(options.kept));
    std::span<const float> logits = decoder.prefill(fresh);
    result.prompt_tokens = std::ssize(fresh);
    result.prompt_seconds = seconds_since(begin);
    begin = std::chrono::steady_clock::now();
    while (std::ssize(result.tokens) < options.max_tokens) {
      check_interrupt();
      const TokenId id =
          drawn(candidates(logits, seen, options.sampling), number_of_token(options.seed, sequence, seen.size()));
      result.tokens.push_back(id);
      result.log_probabilities.push_back(log_probability(logits, id));
      seen.push_back(id);
      if (shown.token) {
        shown.token(id);
      }
      if (contains(options.ends, id)) {
        result.finish = Finish::end_of_text;
        break;
      }
      result.without_text += tokenizer != nullptr && !tokenizer->has(id) ? 1 : 0;
      if (const std::optional<FoundStop> found = text.add(id)) {
        result.finish = Finish::stop;
        result.stop = found->stop;
        break;
      }
      if (std::ssize(result.tokens) == options.max_tokens) {
        break;
      }
      if (decoder.length() == decoder.context()) {
        result.finish = Finish::context;
        break;
      }
      logits = decoder.step(id);
      ++result.steps;
    }
  } catch (const Interrupted&) {
    result.finish = Finish::interrupted;
  }
  result.seconds = result.prompt_tokens > 0 ? seconds_since(begin) : 0;
  result.text = text.finish();
  return result;
}

}  // namespace pare
