#include "pare/decode/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/architecture_json.h"
#include "pare/model/cache.h"
#include "pare/model/executor.h"
#include "pare/support/error.h"

namespace pare {

struct Decoder::State {
  Executor executor;
  at::Device device;
  Cache cache;
  at::Tensor logits;  // float [vocab], on the CPU
};

void check_continues_text(const Architecture& architecture, const std::string& subject) {
  if (architecture.embedding.patch) {
    throw InputError(fmt::format("{} reads images: it continues no text. Expected a causal_lm", subject));
  }
  if (architecture.task != Task::causal_lm) {
    throw InputError(
        fmt::format("{} is a {}, which continues no text: expected a causal_lm", subject, word(architecture.task)));
  }
  for (size_t n = 0; n < architecture.blocks.size(); ++n) {
    if (architecture.blocks[n].attention.mask != Mask::causal) {
      throw InputError(
          fmt::format("{}: the attention of blocks.{} looks ahead, so a further token would change all before it: "
                      "expected causal attention",
                      subject, n));
    }
  }
}

Decoder::Decoder(const Model& model, const Arithmetic& arithmetic)
    : state_(new State{.executor = Executor(model, arithmetic.dtype, arithmetic.device),
                       .device = arithmetic.device,
                       .cache = Cache(),
                       .logits = {}}) {}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

std::span<const float> Decoder::prefill(std::span<const int64_t> ids) {
  PARE_CHECK(!ids.empty() && length() + std::ssize(ids) <= context(), "tokens for a sequence that fits the context");
  PARE_CHECK(std::all_of(ids.begin(), ids.end(), [this](int64_t id) { return id >= 0 && id < vocab(); }),
             "a token of the vocabulary");
  const c10::InferenceMode inference;
  State& s = *state_;
  const Inputs inputs{.ids = at::tensor(at::ArrayRef<int64_t>(ids.data(), ids.size())).unsqueeze(0).to(s.device)};
  s.logits = s.executor.forward(inputs, &s.cache, nullptr, Logits::last).logits.flatten();
  s.logits = s.logits.to(at::kCPU, at::kFloat).contiguous();
  return {s.logits.const_data_ptr<float>(), static_cast<size_t>(s.logits.numel())};
}

void Decoder::reset() {
  state_->cache = Cache();
}

int64_t Decoder::length() const {
  return state_->cache.length;
}

int64_t Decoder::context() const {
  return state_->executor.architecture().context;
}

int64_t Decoder::vocab() const {
  return state_->executor.architecture().vocab;
}

}  // namespace pare
