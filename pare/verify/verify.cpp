#include "pare/verify/verify.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/architecture_json.h"
#include "pare/arch/head.h"
#include "pare/search/prove.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/verify/answers.h"
#include "pare/verify/exam.h"
#include "pare/verify/metrics.h"
#include "pare/verify/noise.h"
#include "pare/verify/questions.h"
#include "pare/verify/settings.h"
#include "pare/verify/side_by_side.h"

namespace pare {

namespace {

// What the answer is called, for the place where models part that agree on all that comes before.
const char* answer_name(const Architecture& a, bool pooled) {
  if (a.task == Task::encoder) {
    return pooled ? "pooled" : "final";
  }
  return pooled ? "sequence_logits" : "logits";
}

constexpr uint64_t noise_draws = 8;
constexpr double worth_drawing_again = 100;  // times what is allowed: no draw of roundings makes up for more

Dtype coarser(Dtype a, Dtype b) {
  return unit_roundoff(a) >= unit_roundoff(b) ? a : b;
}

// Where something is open, what one token alone brings may be read by any tensor. And where a basis makes much of
// roundings, one token's rows may make all of them: so of what others wrote, where anything was rounded to float64. In
// narrow types right rewrites too pass the limit on some row of thousands.
bool wants_every_token(const Verification& result, Dtype finest, const VerifyOptions& options) {
  constexpr double usual_roundings = 16;  // those of real models in any gauge, centred or folded, are two
  const bool by_others = options.predicted == 0;
  const bool stretched = result.proof.stretch > usual_roundings && finest == Dtype::f64;
  return !result.proof.complete || (by_others && stretched);
}

void ask_for_the_rest(Exam& exam, const Architecture& reference, const Architecture& candidate, const Proof& proof,
                      int64_t longest, int64_t budget, uint64_t seed) {
  Wanted wanted = wanted_by(reference, candidate, proof);
  wanted.alone = affordable_alone(reference, candidate, budget);
  for (const Asked& asked : exam.asked()) {
    wanted.tokens = std::max<int64_t>(0, wanted.tokens - asked.tokens);
    wanted.sequences = std::max<int64_t>(0, wanted.sequences - asked.sequences);
  }
  wanted.longest = longest;
  const std::vector<Inputs> more = draw_wanted(reference, wanted, budget, seed + 1);
  if (!more.empty()) {
    exam.ask(more);
  }
}

// Means are over what the caller gave: what was asked besides is no text.
void take_means(Metrics& all, const Metrics& given) {
  all.mean_kl_nats = given.mean_kl_nats;
  all.top1_agreement = given.top1_agreement;
  all.reference_nll_nats = given.reference_nll_nats;
  all.candidate_nll_nats = given.candidate_nll_nats;
}

// The worst sequence first, then the others in their order; none that is too long to look at.
std::vector<Inputs> sequences_to_show(const Exam& exam, const Architecture& a, const Architecture& b, int64_t worst,
                                      int64_t sequences, int64_t wanted) {
  std::vector<Inputs> shown;
  for (int64_t s = -1; s < sequences && std::ssize(shown) < wanted; ++s) {
    if (s == worst) {
      continue;
    }
    Inputs sequence = exam.sequence(s < 0 ? worst : s);
    const int64_t tokens = sequence.ids.defined() ? sequence.ids.size(1) : 0;
    if (can_hold_attention(a, tokens) && can_hold_attention(b, tokens)) {
      shown.push_back(std::move(sequence));
    }
  }
  return shown;
}

}  // namespace

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::identical:
      return "identical";
    case Verdict::proved:
      return "proved";
    case Verdict::equivalent:
      return "equivalent";
    case Verdict::within_noise:
      return "within_noise";
    case Verdict::different:
      return "different";
  }
  PARE_UNREACHABLE("no such verdict");
}

void check_comparable(const ModelFolder& reference, const ModelFolder& candidate) {
  const Architecture &a = reference.model.architecture, &b = candidate.model.architecture;
  Problems problems;
  const auto same = [&problems](const std::string& what, const auto& first, const auto& second) {
    problems.add_if(first != second, "{} is {} in the reference but {} in the candidate", what, first, second);
  };
  const auto images = [](const Architecture& architecture) -> std::string {
    const std::optional<Patch>& patch = architecture.embedding.patch;
    return patch ? fmt::format("{} x {} x {} pixels", patch->channels, patch->image, patch->image) : "tokens";
  };
  same("the task", std::string(word(a.task)), std::string(word(b.task)));
  same("what is read", images(a), images(b));
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

Verification verify(const ModelFolder& reference, const ModelFolder& candidate, std::span<const Inputs> given,
                    const VerifyOptions& options) {
  check_comparable(reference, candidate);
  const at::InferenceMode inference;
  const Architecture &a = reference.model.architecture, &b = candidate.model.architecture;
  Verification result;
  result.compute_dtype = options.dtype;
  result.seed = options.seed;
  result.drawn_seed = drawn_seed(reference, candidate, options.seed);
  result.differences = compare_settings(a, b);
  for (SettingDifference& found : compare_peer_keys(reference, candidate)) {
    result.differences.push_back(std::move(found));
  }
  if (!result.differences.empty()) {
    return result;
  }
  result.proof = prove(reference.model, candidate.model, options.device);

  const bool float64 = options.dtype == Dtype::f64;
  const Rounding rounding(candidate.model.weights, result.proof.same);
  const Dtype stored = rounding.coarsest(reference.model.weights);
  const Model moved = rounding.moved(reference.model, result.drawn_seed);
  const ComparedModel exact{reference.model, {at::kDouble, options.device}};
  const ComparedModel tried{candidate.model, {scalar_type(options.dtype), options.device}};
  // Where every tensor is explained, what is left to ask is whether rounding costs more than the stored type does, to
  // who computes in it; one narrow tensor among others is no reason to compute so. Of others nothing is forgiven that
  // is not the storage's.
  const Dtype finest = rounding.finest(reference.model.weights);
  const Dtype arithmetic = result.proof.complete ? coarser(options.dtype, finest) : options.dtype;
  const ComparedModel noisy{moved, {scalar_type(arithmetic), options.device}};
  result.floor_dtype = coarser(stored, arithmetic);
  Standard standard{.to_float64 = unit_roundoff(Dtype::f64) / unit_roundoff(result.floor_dtype),
                    .predicted = options.predicted};
  if (result.proof.complete) {
    standard.condition = result.proof.condition;
    standard.against = Against::any_noise;
  }
  Exam exam(exact, tried, noisy, standard, result.drawn_seed);
  exam.ask(given.empty() ? draw_inputs(a, options.sequences, result.drawn_seed)
                         : std::vector<Inputs>(given.begin(), given.end()));
  const Comparison first = exam.compared(), first_noise = exam.noise();
  result.given = given.empty() ? 0 : exam.asked().front().sequences;
  const auto is_same = [&exam] { return exam.is_equivalent() || exam.is_within_noise(); };
  // What a rounding does to a row may be little by chance. Before a candidate in float64 is called different for some
  // hundreds of roundings, they are drawn again. In narrow types it may have been rounded several times, in bases of
  // its own: before it is called different for that, its own noise is measured too.
  const bool open = !result.proof.complete, narrow = result.floor_dtype != Dtype::f64;
  const auto is_same_by_several_draws = [&] {
    for (uint64_t draw = 1; open && !narrow && draw < noise_draws && !is_same(); ++draw) {
      if (exam.worst().excess > worth_drawing_again) {
        break;
      }
      exam.measure_noise({rounding.moved(reference.model, result.drawn_seed + draw), noisy.arithmetic});
    }
    if (open && narrow && !is_same() && exam.worst().excess <= worth_drawing_again) {
      const Model own = rounding.moved(candidate.model, result.drawn_seed + 1);
      exam.measure_own_noise({own, tried.arithmetic});
    }
    return is_same();
  };
  const bool every_token = wants_every_token(result, finest, options);
  const LongestSequence longest = longest_affordable(a, b, options.budget, options.device);
  // A proof needs rows too, and what somebody chose may touch little: one token has no scores. Where it is open, more
  // is asked below.
  if (result.given > 0 && result.proof.complete && !result.proof.identical && is_same()) {
    exam.ask(draw_inputs(a, options.sequences, result.drawn_seed));
  }
  if (is_same_by_several_draws() && every_token) {
    ask_for_the_rest(exam, a, b, result.proof, longest.tokens, options.budget, result.drawn_seed);
    is_same_by_several_draws();
  }

  for (const Asked& asked : exam.asked()) {
    result.sequences += asked.sequences;
    result.tokens += asked.tokens;
  }
  result.coverage = coverage_of(a, b, result.proof, {exam.asked(), every_token, longest.bound});
  result.metrics = metrics_of(exam.compared());
  result.noise_floor = metrics_of(exam.noise());
  if (result.given > 0) {
    take_means(result.metrics, metrics_of(first));
    take_means(result.noise_floor, metrics_of(first_noise));
    // Random tokens are no text: of those a trained model may think what it likes.
    const double nats = result.metrics.reference_nll_nats.value_or(0);
    if (std::optional<std::string> warning = warning_of_guessing("the reference", nats, a.vocab)) {
      result.warnings.push_back(*warning);
    }
  }
  const WorstRow worst = exam.worst();
  result.excess = worst.excess;
  result.allowed = worst.allowed;
  result.by_error = worst.by_error;
  result.allowed_for = worst.allowed_for;
  result.rows = exam.compared().rows;
  result.noise_rows = exam.noise().rows;
  if (options.layers_of > 0) {
    const std::vector<Inputs> shown =
        sequences_to_show(exam, a, b, worst.sequence, result.sequences, options.layers_of);
    result.layers = layer_gaps(exact, tried, shown);
    result.noise_by_layer = layer_gaps(exact, noisy, shown);
  }
  if (!is_same()) {
    result.first_divergence = first_divergence(exact, tried, exam.sequence(worst.sequence),
                                               answer_name(a, worst.pooled), worst.error, worst.allowed);
    result.first_divergence->sequence = worst.sequence;
    return result;
  }
  if (!result.coverage.known_other.empty()) {
    return result;  // known to be another function where nobody asked
  }
  const bool equivalent = exam.is_equivalent();
  if (float64 && result.proof.identical && result.metrics.max_relative_logit_error == 0) {
    result.verdict = Verdict::identical;
    return result;
  }
  // Where tokens had to be asked, proof or no proof, and were not, it is worth what was asked.
  const bool proved = float64 && result.proof.complete && result.coverage.every_token;
  result.verdict = proved ? Verdict::proved : equivalent ? Verdict::equivalent : Verdict::within_noise;
  const Sample sample = exam.sample();
  result.self_tests = test_check(exact, tried, sample, worst.allowed / 64, result.drawn_seed,
                                 [&](const Comparison& changed) { return !exam.still_holds(changed, equivalent); });
  if (!result.proof.complete) {  // else the verdict does not stand on this check
    check_sees(result.self_tests, exact, sample, result.drawn_seed);
  }
  return result;
}

}  // namespace pare
