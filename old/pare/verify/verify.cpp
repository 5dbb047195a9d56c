#include "pare/verify/verify.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/architecture_json.h"
#include "pare/arch/head.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/progress.h"
#include "pare/verify/answers.h"
#include "pare/verify/divergence.h"
#include "pare/verify/self_test.h"

namespace pare {

namespace {

// Of two types, the one that rounds more.
Dtype coarser(Dtype a, Dtype b) {
  const auto rank = [](Dtype dtype) {
    return dtype == Dtype::f64 ? 0 : dtype == Dtype::f32 ? 1 : dtype == Dtype::f16 ? 2 : 3;
  };
  return rank(a) >= rank(b) ? a : b;
}

}  // namespace

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::equivalent:
      return "equivalent";
    case Verdict::within_noise:
      return "within_noise";
    case Verdict::different:
      return "different";
  }
  PARE_UNREACHABLE("no such verdict");
}

double equivalence_limit(double predicted_error) {
  return std::min(1e-6, std::max(1e-12, 100 * predicted_error));
}

// NaN compares as false: what is not a number is different.
Verdict judge(const Metrics& metrics, const Metrics& noise_floor, double limit, bool float64) {
  if (float64 && metrics.max_relative_logit_error <= limit) {
    return Verdict::equivalent;
  }
  const bool near = metrics.max_relative_logit_error <= 2 * noise_floor.max_relative_logit_error;
  const bool likely = !metrics.mean_kl_nats || *metrics.mean_kl_nats <= 2 * noise_floor.mean_kl_nats.value_or(0);
  return near && likely ? Verdict::within_noise : Verdict::different;
}

void check_comparable(const ModelFolder& reference, const ModelFolder& candidate) {
  const Architecture &a = reference.model.architecture, &b = candidate.model.architecture;
  Problems problems;
  const auto same = [&problems](const std::string& what, const auto& first, const auto& second) {
    if (first != second) {
      problems.add(fmt::format("{} is {} in the reference but {} in the candidate", what, first, second));
    }
  };
  const auto images = [](const Architecture& architecture) -> std::string {
    const std::optional<Patch>& patch = architecture.embedding.patch;
    return patch ? fmt::format("{} x {} x {} pixels", patch->channels, patch->image, patch->image) : "tokens";
  };
  same("the task", std::string(word(a.task)), std::string(word(b.task)));
  same("what is read", images(a), images(b));
  if (!a.embedding.patch && !b.embedding.patch) {
    same("the vocabulary", a.vocab, b.vocab);
  }
  same("the number of classes", a.head.classes.value_or(0), b.head.classes.value_or(0));
  if (a.task == Task::encoder && b.task == Task::encoder) {
    same("the width of the hidden states", hidden_width(a), hidden_width(b));
    const auto pooled = [](const Architecture& architecture) {
      return has_pooler(architecture) ? head_input_width(architecture) : 0;
    };
    same("the width of what is pooled", pooled(a), pooled(b));
  }
  const auto second = [](const Architecture& architecture) {
    return architecture.head.sequence ? architecture.head.sequence->classes : 0;
  };
  same("the number of classes of the second head", second(a), second(b));
  problems.throw_if_any(fmt::format("{} and {} cannot be compared", shown(reference.path), shown(candidate.path)));
}

Verification verify(const ModelFolder& reference, const ModelFolder& candidate, std::span<const Inputs> inputs,
                    const VerifyOptions& options) {
  check_comparable(reference, candidate);
  const at::InferenceMode inference;
  Verification result;
  result.compute_dtype = options.dtype;
  result.floor_dtype = coarser(candidate.dtype, options.dtype);
  result.predicted_error = options.predicted_error;
  result.limit = equivalence_limit(options.predicted_error);

  const auto runner = [&options](const ModelFolder& model, Dtype dtype) {
    return ComparedModel{model.model, {scalar_type(dtype), options.device}};
  };
  const ComparedModel exact = runner(reference, Dtype::f64), tried = runner(candidate, options.dtype);
  const Asked asked = ask(reference.model.architecture, inputs, options.device);
  result.sequences = asked.sequences;
  result.tokens = asked.tokens;

  const bool noisy = result.floor_dtype != Dtype::f64;
  const auto layers = [](const ModelFolder& model) { return layer_blocks(model.model.architecture).size(); };
  Progress progress("verifying", (noisy ? 2 : 1) * layers(reference) + layers(candidate));
  const auto advance = [&progress] { progress.advance(); };
  const Answer truth = answer_of(exact, asked, advance);
  const Answer answer = answer_of(tried, asked, advance);
  const Comparison compared = compare(exact, truth, tried, answer, asked.targets);
  result.metrics = metrics_of(compared);
  if (noisy) {
    const ComparedModel rounded = runner(reference, result.floor_dtype);
    result.noise_floor = metrics_of(compare(exact, truth, rounded, answer_of(rounded, asked, advance), asked.targets));
  } else {  // float64 against itself
    const bool of_logits = result.metrics.mean_kl_nats.has_value();
    const std::optional<double> zero = of_logits ? std::optional(0.0) : std::nullopt;
    result.noise_floor = {0,
                          zero,
                          zero,
                          of_logits ? std::optional(1.0) : std::nullopt,
                          result.metrics.reference_nll_nats,
                          result.metrics.reference_nll_nats};
  }
  const auto verdict_of = [&](const Comparison& comparison) {
    return judge(metrics_of(comparison), result.noise_floor, result.limit, options.dtype == Dtype::f64);
  };
  result.verdict = verdict_of(compared);
  const double allowed =
      std::max(options.dtype == Dtype::f64 ? result.limit : 0, 2 * result.noise_floor.max_relative_logit_error);
  if (result.verdict == Verdict::different) {
    result.first_divergence = first_divergence(exact, tried, asked, compared, allowed);
  } else {
    // Of what is called equivalent, a change that only counts as noise is caught too: it would not be called so.
    const auto caught = [&](const Comparison& comparison) { return verdict_of(comparison) != result.verdict; };
    const double claimed = result.verdict == Verdict::equivalent ? result.limit : allowed;
    result.self_test = test_check(exact, truth, tried, answer, asked, compared, claimed, options.seed, caught);
  }
  return result;
}

}  // namespace pare
