#include "pare/decode/decoder.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "pare/arch/architecture_json.h"
#include "pare/decode/device_engine.h"
#include "pare/decode/engine.h"
#include "pare/decode/repeated_step.h"
#include "pare/decode/sampler.h"
#include "pare/model/cache.h"
#include "pare/model/executor.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// What an engine runs, with what its forward pass needs.
struct Fast {
  LoadedModel model;
  Tables tables;
  std::unique_ptr<Engine> engine;        // on a CPU
  std::unique_ptr<DeviceEngine> device;  // or on a GPU

  Fast(const Model& from, at::ScalarType matrices)
      : model(load_whole(from, {.dtype = at::kFloat, .matrices = matrices})),
        tables({.dtype = at::kFloat}),
        engine(std::make_unique<Engine>(model, at::get_num_threads())) {}
  Fast(const Model& from, const Arithmetic& arithmetic, std::unique_ptr<StepRunner> runner)
      : model(load_whole(from, arithmetic)),
        tables(arithmetic),
        device(std::make_unique<DeviceEngine>(model, std::move(runner))) {}
};

// So many tokens at once: the numbers between layers stay small, and a matrix is read often enough to be fast.
constexpr size_t tokens_at_once = 512;

}  // namespace

struct Decoder::State {
  Architecture architecture;
  at::Device device;
  at::ScalarType dtype;
  std::unique_ptr<Fast> fast;  // where an engine lacks nothing
  std::optional<Executor> executor;
  std::unique_ptr<RepeatedStep> repeated;  // of the Executor, on a GPU, if all steps are alike
  Cache cache;
  at::Tensor logits;  // float [vocab], on the CPU
};

void check_continues_text(const Architecture& architecture, const std::string& subject) {
  if (architecture.embedding.patch) {
    throw InputError(
        fmt::format("{} continues no text: it reads images, expected a model of the task causal_lm", subject));
  }
  if (architecture.task != Task::causal_lm) {
    throw InputError(
        fmt::format("{} continues no text: its task is {}, expected causal_lm", subject, word(architecture.task)));
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

Dtype usual_dtype(Dtype stored, at::Device device) {
  return device.is_cpu() && (stored == Dtype::bf16 || stored == Dtype::f16) ? stored : Dtype::f32;
}

Decoder::Decoder(const Model& model, const Arithmetic& arithmetic)
    : state_(new State{.architecture = model.architecture,
                       .device = arithmetic.device,
                       .dtype = arithmetic.dtype,
                       .cache = Cache()}) {
  const bool narrow = arithmetic.dtype == at::kBFloat16 || arithmetic.dtype == at::kHalf;
  if (arithmetic.device.is_cpu() && (narrow || arithmetic.dtype == at::kFloat) && !engine_lacks(model.architecture)) {
    state_->fast = std::make_unique<Fast>(model, arithmetic.dtype);
    return;
  }
  if (!arithmetic.device.is_cpu() && !device_engine_lacks(model.architecture, arithmetic.dtype)) {
    if (std::unique_ptr<StepRunner> runner = device_runner(arithmetic.device)) {
      state_->fast = std::make_unique<Fast>(model, arithmetic, std::move(runner));
      return;
    }
  }
  state_->dtype = arithmetic.device.is_cpu() && narrow ? at::kFloat : arithmetic.dtype;
  state_->executor.emplace(model, state_->dtype, arithmetic.device);
  if (!arithmetic.device.is_cpu() && steps_are_alike(model.architecture)) {
    state_->repeated = std::make_unique<RepeatedStep>(*state_->executor, arithmetic.device);
  }
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

std::span<const float> Decoder::prefill(std::span<const int64_t> ids) {
  PARE_CHECK(!ids.empty() && length() + std::ssize(ids) <= context(), "tokens for a sequence that fits the context");
  PARE_CHECK(std::all_of(ids.begin(), ids.end(), [this](int64_t id) { return id >= 0 && id < vocab(); }),
             "a token of the vocabulary");
  const c10::InferenceMode inference;
  State& s = *state_;
  if (s.fast && ids.size() == 1 && s.cache.length > 0) {
    return s.fast->engine
               ? s.fast->engine->step(ids.front(), s.cache)
               : std::span(s.fast->device->step(ids.front(), s.cache, true).logits, static_cast<size_t>(vocab()));
  }
  for (size_t done = 0; done < ids.size(); done += tokens_at_once) {
    const std::span<const int64_t> now = ids.subspan(done, std::min(tokens_at_once, ids.size() - done));
    const Inputs inputs{.ids = at::tensor(at::ArrayRef<int64_t>(now.data(), now.size())).unsqueeze(0).to(s.device)};
    s.logits = s.fast       ? forward(s.fast->model, s.fast->tables, inputs, s.cache)
               : s.repeated ? s.repeated->read(inputs.ids)
                            : s.executor->forward(inputs, &s.cache, nullptr, Logits::last).logits;
  }
  s.logits = s.logits.flatten();
  s.logits = s.logits.to(at::kCPU, at::kFloat).contiguous();
  return {s.logits.const_data_ptr<float>(), static_cast<size_t>(s.logits.numel())};
}

int64_t Decoder::likeliest(int64_t id) {
  const c10::InferenceMode inference;
  State& s = *state_;
  if (!s.fast || !s.fast->device || s.cache.length == 0) {
    return candidates(step(id), {}, {}).front().id;
  }
  PARE_CHECK(id >= 0 && id < vocab() && length() < context(), "a token of the vocabulary, and room for it");
  const StepRunner::Answer answer = s.fast->device->step(id, s.cache, false);
  check_logit(answer.most);
  return answer.likeliest;
}

void Decoder::reset() {
  if (state_->fast && state_->fast->device) {
    state_->cache.length = 0;  // what was planned for this memory stays
  } else {
    state_->cache = Cache();
  }
  state_->repeated ? state_->repeated->reset() : void();
}

int64_t Decoder::length() const {
  return state_->repeated ? state_->repeated->length() : state_->cache.length;
}

int64_t Decoder::context() const {
  return state_->architecture.context;
}

at::ScalarType Decoder::dtype() const {
  return state_->dtype;
}

int64_t Decoder::vocab() const {
  return state_->architecture.vocab;
}

std::vector<std::span<const std::byte>> Decoder::matrices() const {
  std::vector<std::span<const std::byte>> found;
  if (!state_->fast || !state_->fast->engine) {
    return found;
  }
  const auto add = [&found](const Linear& linear) {
    if (linear.weight.defined()) {
      const at::Tensor weight = linear.weight.tensor();
      found.emplace_back(static_cast<const std::byte*>(weight.const_data_ptr()), weight.nbytes());
    }
  };
  const LoadedModel& model = state_->fast->model;
  for (const int64_t n : layer_blocks(model.architecture)) {
    const AttentionLayer& attention = model.blocks[n].attention;
    for (const Linear* linear :
         {&attention.projections, &attention.query, &attention.key, &attention.value, &attention.output}) {
      add(*linear);
    }
    if (is<SameAsKey>(attention.spec.query)) {
      add(attention.key);
    }
    if (!model.blocks[n].mlp) {
      continue;
    }
    if (const auto* dense = std::get_if<DenseMlpLayer>(&*model.blocks[n].mlp)) {
      for (const Linear* linear : {&dense->gate_up, &dense->up, &dense->down}) {
        add(*linear);
      }
    } else {
      const NeuronHeadsLayer& heads = std::get<NeuronHeadsLayer>(*model.blocks[n].mlp);
      for (const Linear* linear : {&heads.query, &heads.value, &heads.output}) {
        add(*linear);
      }
    }
  }
  add(model.head.head);
  return found;
}

}  // namespace pare
