#include "pare/train/samples.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/data/tokenizer.h"
#include "pare/model/cache.h"
#include "pare/model/executor.h"
#include "pare/support/error.h"
#include "pare/support/mixed_bits.h"
#include "pare/support/names.h"
#include "pare/support/progress.h"

namespace pare {

namespace {

const std::string& sampled_path(const TrainConfig& config) {
  return config.data.samples.model.empty() ? config.from : config.data.samples.model;
}

// Sequences that are drawn at once: as many as fit beside each other with what is remembered of them.
int64_t rows_at_once(const Architecture& a, int64_t length, const Arithmetic& arithmetic) {
  const bool cpu = arithmetic.device.is_cpu();
  const int64_t memory = int64_t{1} << (cpu ? 28 : 33);
  const int64_t remembered =
      length * cache_elements_per_token(a) * static_cast<int64_t>(c10::elementSize(arithmetic.dtype));
  const int64_t scores = 4 * a.vocab * static_cast<int64_t>(sizeof(double));
  return std::clamp<int64_t>(memory / (remembered + scores), 1, cpu ? 256 : 8192);
}

// One random number for each token, from 0 to 1.
at::Tensor random_numbers(uint64_t seed, int64_t first, int64_t rows, int64_t length) {
  const at::Tensor numbers = at::empty({rows, length}, at::kDouble);
  double* into = numbers.mutable_data_ptr<double>();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t place = 0; place < length; ++place) {
      *into++ = number_of_token(seed, static_cast<uint64_t>(first + row), static_cast<uint64_t>(place));
    }
  }
  return numbers;
}

// The first token whose share of all probability, with those before it, is more than the random number.
at::Tensor drawn(const at::Tensor& logits, double temperature, const at::Tensor& random) {
  const at::Tensor shares = at::softmax(logits.to(at::kDouble) / temperature, 1).cumsum(1);
  const at::Tensor found = at::searchsorted(shares, random * shares.narrow(1, shares.size(1) - 1, 1),
                                            /*out_int32=*/false, /*right=*/true);
  return found.clamp_max(logits.size(1) - 1);
}

}  // namespace

ModelFolder open_sampled(const TrainConfig& config) {
  return open_model(sampled_path(config));
}

SamplesConfig complete_samples(const TrainConfig& config, const ModelFolder& folder) {
  SamplesConfig samples = config.data.samples;
  const Architecture& a = folder.model.architecture;
  samples.model = sampled_path(config);
  samples.length = samples.length > 0 ? samples.length : context_of(config) + 1;
  if (samples.prefix.empty()) {
    const std::vector<TokenId> before = tokens_before_texts(folder.path);
    samples.prefix = {before.begin(), before.end()};
  }
  Problems problems;
  problems.add_if(a.task != Task::causal_lm,
                  "data.samples.model: {} is a {}, which draws no text: expected a causal_lm", quote(samples.model),
                  word(a.task));
  problems.add_if(samples.prefix.empty(),
                  "data.samples.prefix: neither a tokenizer of {} nor bos_token_id of its config.json says what a "
                  "text begins with: name the tokens, such as data.samples.prefix=[10]",
                  quote(samples.model));
  for (const int64_t token : samples.prefix) {
    problems.add_if(token >= a.vocab, "data.samples.prefix: {} is no token of a vocabulary of {}", token, a.vocab);
  }
  problems.add_if(samples.length > a.context + 1,
                  "data.samples.length: {} tokens, but the model reads {}, and draws one more", samples.length,
                  a.context);
  problems.add_if(samples.length <= std::ssize(samples.prefix),
                  "data.samples.length: {} tokens leave nothing to draw after a prefix of {}", samples.length,
                  samples.prefix.size());
  problems.throw_if_any("the samples");
  return samples;
}

void draw_samples(const Model& model, const SamplesConfig& samples, uint64_t seed, const Arithmetic& arithmetic,
                  const TakeTokens& take) {
  const at::NoGradGuard no_grad;
  const at::Device device = arithmetic.device;
  const Executor executor(model, arithmetic.dtype, device);
  const int64_t length = samples.length, given = std::ssize(samples.prefix);
  const int64_t at_once = rows_at_once(model.architecture, length, arithmetic);
  Progress progress("tokens drawn", static_cast<uint64_t>(samples.count * length));
  for (int64_t first = 0; first < samples.count; first += at_once) {
    const int64_t rows = std::min(at_once, samples.count - first);
    const at::Tensor random = random_numbers(seed, first, rows, length).to(device);
    const at::Tensor tokens = at::empty({rows, length}, at::TensorOptions(device).dtype(at::kLong));
    tokens.narrow(1, 0, given).copy_(at::tensor(samples.prefix).expand({rows, given}));
    Cache cache(length);
    int64_t seen = 0;
    for (int64_t place = given; place < length; ++place) {
      const Inputs next{.ids = tokens.narrow(1, seen, place - seen).contiguous()};
      const at::Tensor logits = executor.forward(next, &cache, nullptr, Logits::last).logits.squeeze(1);
      tokens.narrow(1, place, 1).copy_(drawn(logits, samples.temperature, random.narrow(1, place, 1)));
      progress.advance(static_cast<uint64_t>(rows * (place - seen)));
      seen = place;
    }
    const at::Tensor here = tokens.cpu().contiguous();
    take({here.const_data_ptr<int64_t>(), static_cast<size_t>(here.numel())});
    progress.advance(static_cast<uint64_t>(rows));
  }
}

}  // namespace pare
