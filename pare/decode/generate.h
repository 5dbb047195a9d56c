#pragma once
// A prompt continued: token after token until the text ends, a stop string comes, or there is no more room.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pare/data/tokenizer.h"
#include "pare/decode/decoder.h"
#include "pare/decode/sampler.h"

namespace pare {

struct GenerateOptions {
  Sampling sampling;
  uint64_t seed = 0;
  int64_t max_tokens = 256;
  std::vector<std::string> stops;  // none is empty; need a tokenizer
  std::vector<TokenId> ends;       // tokens that end a text
  int64_t kept = 0;  // so much of the prompt the decoder has read already, and nothing else; not all of it
};

enum class Finish { end_of_text, stop, max_tokens, context, interrupted };
const char* word(Finish finish);

struct Generated {
  std::vector<TokenId> tokens;            // all that were drawn, with the one that ended it
  std::vector<double> log_probabilities;  // of each, by the model itself: before penalty, temperature and cuts
  std::string text;                       // without what ended it; empty without a tokenizer
  Finish finish = Finish::max_tokens;
  std::string stop;           // which one, of Finish::stop
  int64_t without_text = 0;   // tokens that the tokenizer does not have
  int64_t prompt_tokens = 0;  // read now, in
  double prompt_seconds = 0;
  int64_t steps = 0;  // after that: one for each token but the last, in
  double seconds = 0;
};

// Where what comes is shown as it comes: text never ends within a character and is never taken back.
struct Shown {
  std::function<void(std::string_view)> text;
  std::function<void(TokenId)> token;
};

// Continues a prompt that is not empty and fits the context. `sequence` is its number: each token is drawn by a random
// number of the seed, the sequence and its place. Ctrl-C ends it early, with what there is.
Generated generate(Decoder& decoder, const Tokenizer* tokenizer, std::span<const TokenId> prompt, uint64_t sequence,
                   const GenerateOptions& options, const Shown& shown = {});

// Where the first of the strings begins in a text, and which it is.
struct FoundStop {
  size_t at = 0;
  std::string stop;
};
std::optional<FoundStop> find_stop(std::string_view text, const std::vector<std::string>& stops);
// How many bytes at the end of a text may be the beginning of one of them.
size_t unfinished_stop(std::string_view text, const std::vector<std::string>& stops);

}  // namespace pare
