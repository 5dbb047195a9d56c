#include "pare/verify/verify.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/architecture_json.h"
#include "pare/arch/head.h"
#include "pare/search/prove.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/memory.h"
#include "pare/support/progress.h"
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

void warn_of_guessing(Verification& result, int64_t choices) {
  const double nats = result.metrics.reference_nll_nats.value_or(0);
  if (std::optional<std::string> warning = warning_of_guessing("the reference", nats, choices)) {
    result.warnings.push_back(*warning);
  }
}

// The block that a tensor is of, none for what is outside of the blocks.
std::optional<int64_t> block_of(const TensorTable& table, const std::string& tensor) {
  const TensorSpec* const spec = table.find(tensor);
  return spec == nullptr ? std::nullopt : spec->id.module.block;
}

bool have_same_tensors(const TensorTable& a, const TensorTable& b) {
  return std::ranges::equal(a, b, [](const TensorSpec& one, const TensorSpec& other) {
    return one.name == other.name && one.shape == other.shape;
  });
}

// Those that are alone among the others: all else in their block is the reference's, or outside of the blocks all else
// there is. A change of basis is undone by another tensor on the same axis: in the block by one of the same block, and
// of the axis that all blocks share by all of them.
std::set<std::string> alone_of(const std::vector<const ComparedTensor*>& others, const TensorTable& table) {
  std::map<std::optional<int64_t>, std::vector<std::string>> by_block;
  for (const ComparedTensor* tensor : others) {
    by_block[block_of(table, tensor->tensor)].push_back(tensor->tensor);
  }
  std::set<std::string> alone;
  for (const auto& [block, names] : by_block) {
    if (names.size() == 1 && (block || by_block.size() == 1)) {
      alone.insert(names.front());
    }
  }
  return alone;
}

// Tensors that do not hold the reference's numbers, and of those what no basis explains, and no rounding. Almost the
// reference's: a basis that is none moves nothing, any other moves more than a tenth, and rounding less. Or alone with
// it. Where rounding costs as much as this does, no answer would tell.
void compare_one_by_one(Verification& result, const ModelFolder& reference, const ModelFolder& candidate) {
  constexpr double roundings = 2, nothing_like = 0.1;
  const std::vector<ComparedTensor> all = compare_stored(reference, candidate);
  const std::set<std::string>& open = result.proof.unexplained;
  const TensorTable table = tensor_table(reference.model.architecture);
  const std::vector<const ComparedTensor*> others = others_of(all);
  const std::set<std::string> alone = have_same_tensors(table, tensor_table(candidate.model.architecture))
                                          ? alone_of(others, table)
                                          : std::set<std::string>();
  for (const ComparedTensor* tensor : others) {
    result.apart.push_back(*tensor);
    // The proof calls a head that is tied by the name of its table.
    const bool is_open =
        open.contains(table.contains(tensor->tensor) ? tensor->tensor : head_matrix_name(reference.model.architecture));
    const auto stored = candidate.model.weights.find(tensor->tensor);  // not there: a head that is tied
    const Dtype dtype = stored == candidate.model.weights.end() ? candidate.dtype : stored->second.dtype();
    const double rounding = unit_roundoff(dtype);
    if (is_open && tensor->relative_error > roundings * rounding && tensor->relative_error < nothing_like) {
      result.near_misses.push_back(
          fmt::format("{} is off by {:.1e} of its length, where rounding to {} explains {:.1e}", tensor->tensor,
                      tensor->relative_error, word(dtype), rounding));
    } else if (is_open && tensor->relative_error >= nothing_like && alone.contains(tensor->tensor)) {
      result.near_misses.push_back(fmt::format(
          "{} is off by {:.1e} of its length, and {} is the reference's", tensor->tensor, tensor->relative_error,
          block_of(table, tensor->tensor) ? "all else in its block" : "all else in the model"));
    }
  }
}

// Who gives the rounded model first is told that the other was the reference.
void warn_of_order(Verification& result, const ModelFolder& reference, const ModelFolder& candidate) {
  const bool same_tensors =
      tensor_table(reference.model.architecture).size() == tensor_table(candidate.model.architecture).size();
  if (same_tensors && result.apart.empty() && unit_roundoff(reference.dtype) > unit_roundoff(candidate.dtype)) {
    result.warnings.push_back(
        fmt::format("each tensor is the candidate's, rounded to {}: give the model in {} first, as the reference",
                    word(reference.dtype), word(candidate.dtype)));
  }
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

// The first sequences, of so many tokens at most, one by one.
std::vector<Inputs> first_sequences(const Asked& asked, int64_t tokens) {
  std::vector<Inputs> first;
  for (int64_t s = 0; s < asked.sequences; ++s) {
    Inputs sequence = sequence_of(asked, s);
    tokens -= sequence.ids.defined() ? sequence.ids.size(1) : 0;
    if (tokens < 0 && !first.empty()) {
      break;
    }
    first.push_back(std::move(sequence));
  }
  return first;
}

// The weights have decided; what is said to text or random tokens is told beside it.
void ask_quantised(Verification& result, const ComparedModel& exact, const ComparedModel& tried,
                   std::span<const Inputs> given, const VerifyOptions& options) {
  const Architecture& a = exact.model.architecture;
  const std::vector<Inputs> drawn =
      given.empty() ? draw_inputs(a, options.sequences, result.drawn_seed) : std::vector<Inputs>();
  const Asked asked = ask(a, given.empty() ? std::span<const Inputs>(drawn) : given, options.device, options.ranks);
  Progress progress("verifying", 2 * layer_blocks(a).size());
  const auto advance = [&progress] { progress.advance(); };
  const Answer truth = answer_of(exact, asked, advance), answer = answer_of(tried, asked, advance);
  const Said said{tried, answer};
  const Comparison compared = compare({exact, truth}, {&said, 1}, asked, result.drawn_seed).front();
  result.sequences = asked.sequences;
  result.tokens = asked.tokens;
  result.metrics = metrics_of(compared);
  result.rows = compared.rows;
  if (options.layers_of > 0) {
    result.layers = layer_gaps(exact, tried, first_sequences(asked, options.layers_of * a.context));
  }
  if (given.empty()) {
    return;
  }
  result.given = asked.sequences;
  result.statistics = statistics_of(compared.rows);
  warn_of_guessing(result, a.vocab);
  if (options.by_tensor && result.rows.kl.defined() && result.verdict == Verdict::quantised) {
    constexpr int64_t tokens = 2048;
    std::vector<std::string> names;
    for (const ComparedTensor& tensor : result.quantisation->tensors) {
      if (tensor.how == StoredAs::quantised && exact.model.weights.contains(tensor.tensor)) {
        names.push_back(tensor.tensor);
      }
    }
    result.costs =
        costs_of_tensors(exact, tried, names, first_sequences(asked, tokens), result.drawn_seed, options.ranks);
  }
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
    case Verdict::quantised:
      return "quantised";
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
  const PromptlyFreed
      promptly;  // tensors of both models come and go: what the heap kept of them was another block, or ten
  check_comparable(reference, candidate);
  if (const std::optional<ModelFolder> told = with_settings_meant(reference, candidate)) {
    return verify(*told, candidate, given, options);
  }
  if (const std::optional<ModelFolder> told = with_settings_meant(candidate, reference)) {
    return verify(reference, *told, given, options);
  }
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
  const ComparedModel exact{reference.model, {at::kDouble, options.device}};
  const ComparedModel tried{candidate.model, {scalar_type(options.dtype), options.device}};
  // A candidate in blocks is nothing else; one that was made of a model in blocks may be a rewriting of it, which has a
  // proof, or what it was quantised from.
  const auto judged = [&](bool holds_only) {
    std::optional<Quantisation> found = judge_quantisation(reference, candidate);
    if (!found || (holds_only && !found->holds())) {
      return false;
    }
    result.verdict = found->holds() ? Verdict::quantised : Verdict::different;
    const bool comparable = found->settings.empty();
    result.quantisation = std::move(found);
    if (comparable) {
      ask_quantised(result, exact, tried, given, options);
    }
    return true;
  };
  if (options.may_quantise && is_in_blocks(candidate) && judged(false)) {
    return result;
  }
  result.proof = prove(reference.model, candidate.model, options.device);
  if (options.may_quantise && !result.proof.complete && is_in_blocks(reference) && judged(true)) {
    return result;
  }

  const bool float64 = options.dtype == Dtype::f64;
  const Rounding rounding(candidate.model.weights, result.proof.same);
  const Dtype stored = rounding.coarsest(reference.model.weights);
  const Model moved = rounding.moved(reference.model, result.drawn_seed);
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
  Exam exam(exact, tried, noisy, standard, result.drawn_seed, options.ranks);
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
    warn_of_guessing(result, a.vocab);
    result.statistics = statistics_of(first.rows);
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
    compare_one_by_one(result, reference, candidate);
    warn_of_order(result, reference, candidate);
    return result;
  }
  if (!result.coverage.known_other.empty()) {
    return result;  // known to be another function where nobody asked
  }
  if (open && narrow) {
    compare_one_by_one(result, reference, candidate);
    if (!result.near_misses.empty()) {
      return result;
    }
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

Verification verify_answers(const ModelFolder& reference, std::span<const Inputs> given, const GivenAnswers& answers,
                            const VerifyOptions& options) {
  const at::InferenceMode inference;
  const Architecture& a = reference.model.architecture;
  Verification result;
  result.compute_dtype = result.floor_dtype = options.dtype;
  result.seed = result.drawn_seed = options.seed;
  const Rounding rounding(reference.model.weights, {});
  // That program has the same weights; what it rounds is what it computes.
  const ComparedModel exact{reference.model, {at::kDouble, options.device}};
  const Model moved = rounding.moved(reference.model, result.drawn_seed, options.dtype);
  const ComparedModel noisy{moved, {scalar_type(options.dtype), options.device}};
  const Asked asked = ask(a, given, options.device, options.ranks);
  const int64_t columns = head_size(a) > 0 ? head_size(a) : hidden_width(a);
  refuse_if(answers.rows.size(0) != asked.sequence.size(0) || answers.rows.size(1) != columns,
            "the answers are of {} tokens and {} columns, expected {} and {}", answers.rows.size(0),
            answers.rows.size(1), asked.sequence.size(0), columns);
  const Answer truth = answer_of(exact, asked, [] {}), noise = answer_of(noisy, asked, [] {});
  const Said said{noisy, noise};
  const Comparison floor = compare({exact, truth}, {&said, 1}, asked, result.drawn_seed).front();
  const Comparison compared = compare_with({exact, truth}, answers, asked, result.drawn_seed);
  result.sequences = result.given = asked.sequences;
  result.tokens = asked.tokens;
  result.metrics = metrics_of(compared);
  result.noise_floor = metrics_of(floor);
  result.rows = compared.rows;
  result.noise_rows = floor.rows;
  result.statistics = statistics_of(compared.rows);
  warn_of_guessing(result, a.vocab);
  result.coverage.complete = false;
  result.coverage.not_exercised = {"all that these sequences do not reach: no weights of the candidate are known"};
  bool within = usual_rows(compared.rows, floor.rows).excess <= 1, by_float64 = options.dtype == Dtype::f64;
  const auto judge = [&](const Rows& rows, const Rows& noise, const std::string& answer) {
    const Allowed near = noise_limit(noise, Against::own_noise);
    const at::Tensor beyond = excess(rows, near);
    const int64_t worst = beyond.argmax().item<int64_t>();
    by_float64 = by_float64 && largest(excess(rows, equivalence(noise, {}))) <= 1;
    const double found = beyond[worst].item<double>();
    if (result.allowed_for.empty() || found > result.excess) {
      result.excess = found;
      result.allowed = near.error[worst].item<double>();
      result.allowed_for = noise_words(Against::own_noise);
      const bool by_sequence = rows.error.size(0) == asked.sequences;
      result.first_divergence = Divergence{.tap = answer,
                                           .difference = rows.error[worst].item<double>(),
                                           .allowed = result.allowed,
                                           .sequence = by_sequence ? worst : asked.sequence[worst].item<int64_t>()};
    }
  };
  judge(compared.rows, floor.rows, answer_name(a, false));
  if (compared.pooled) {
    judge(*compared.pooled, *floor.pooled, answer_name(a, true));
  }
  within = within && result.excess <= 1;
  result.verdict = by_float64 ? Verdict::equivalent : within ? Verdict::within_noise : Verdict::different;
  if (result.verdict != Verdict::different) {
    result.first_divergence.reset();
  }
  return result;
}

}  // namespace pare
