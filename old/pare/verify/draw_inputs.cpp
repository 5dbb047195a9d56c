#include "pare/verify/draw_inputs.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "pare/support/error.h"

namespace pare {

namespace {

constexpr int64_t long_tokens = 256, short_tokens = 64;

// Every token once before any comes again.
at::Tensor dealt(int64_t vocab, int64_t count, at::Generator generator) {
  std::vector<at::Tensor> decks;
  for (int64_t left = count; left > 0; left -= vocab) {
    decks.push_back(at::randperm(vocab, generator, at::kLong));
  }
  return at::cat(decks).narrow(0, 0, count);
}

// Lengths between half and all of the tokens, the first row whole; every other row padded in front.
at::Tensor padding(int64_t batch, int64_t tokens, at::Generator generator) {
  at::Tensor length = at::randint((tokens + 1) / 2, tokens + 1, {batch, 1}, generator, at::kLong);
  length[0].fill_(tokens);
  const at::Tensor place = at::arange(tokens, at::kLong).unsqueeze(0);
  const at::Tensor in_front = at::arange(batch, at::kLong).unsqueeze(1).remainder(2) == 1;
  return at::where(in_front, place >= tokens - length, place < length);
}

}  // namespace

std::vector<Inputs> draw_inputs(const Architecture& reference, const Architecture& candidate, int64_t sequences,
                                uint64_t seed) {
  PARE_CHECK(sequences > 0, "nothing to draw");
  at::Generator generator = at::detail::createCPUGenerator(seed);
  if (reference.embedding.patch) {
    const Patch& patch = *reference.embedding.patch;
    Inputs images;
    images.pixels = at::randn({sequences, patch.channels, patch.image, patch.image}, generator, at::kDouble);
    return {images};
  }
  const int64_t context = std::min(reference.context, candidate.context);
  const int64_t types = std::min(reference.embedding.types, candidate.embedding.types);
  const int64_t first = std::min(context, long_tokens), others = std::min(context, short_tokens);
  const at::Tensor tokens = dealt(reference.vocab, first + (sequences - 1) * others, generator);
  std::vector<Inputs> drawn(sequences > 1 ? 2 : 1);
  drawn[0].ids = tokens.narrow(0, 0, first).unsqueeze(0);
  if (sequences > 1) {
    drawn[1].ids = tokens.narrow(0, first, tokens.size(0) - first).view({sequences - 1, others});
    if (reference.task != Task::causal_lm) {
      drawn[1].mask = padding(sequences - 1, others, generator);
    }
  }
  for (Inputs& inputs : drawn) {
    if (types > 0) {
      inputs.types = at::randint(types, inputs.ids.sizes(), generator, at::kLong);
    }
  }
  return drawn;
}

Question draw_question(const Architecture& reference, const Architecture& candidate, int64_t sequences, uint64_t seed) {
  return {.inputs = draw_inputs(reference, candidate, sequences, seed), .numbers = {}, .source = {"random", seed}};
}

}  // namespace pare
