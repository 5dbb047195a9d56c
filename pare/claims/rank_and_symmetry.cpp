// Paper 4's claims that need no checkpoint: algebra and random matrices.

#include "pare/claims/claim.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/claims/draws.h"
#include "pare/support/numbers.h"
#include "pare/support/progress.h"

namespace pare {

namespace {

// ---- Experiment 3: W_V A, A⁻¹ W_O is the same function, but not at 2e-15 whatever A is

at::Tensor with_condition(int64_t heads, int64_t k, double log_condition, at::Generator& generator) {
  const auto orthogonal = [&] { return std::get<0>(at::linalg_qr(gaussian({heads, k, k}, 1, generator))); };
  const at::Tensor values = at::linspace(-log_condition / 2, log_condition / 2, k, at::kDouble).exp();
  return at::matmul(orthogonal() * values, orthogonal());
}

Outcome gauge_symmetry(const Trial& trial) {
  const bool whole = trial.scale == ClaimScale::small;
  const int64_t d = 768, heads = 12, k = 64, n = 64, draws = whole ? 50 : 1;
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor x = gaussian({n, d}, 1, generator);
  const RandomHeads original = random_heads(heads, d, k, generator);
  const at::Tensor mixed = at::matmul(attention_of(original, x), x), expected = multi_head(original, x);
  Outcome found;
  ClaimTable table{"Relative error against the gauge's condition number",
                   {"condition number", "mean error", "largest error", "mean error / (condition × 2^-53)"},
                   {},
                   "relative error of the sum of heads",
                   {"mean error / (condition × 2^-53)"}};
  const std::vector<double> log_conditions = {0.2, 1.0, 2.0, 4.0, 8.0, 14.0, 20.0};
  Progress progress("drawing gauges", log_conditions.size() * static_cast<uint64_t>(draws));
  for (const double log_condition : log_conditions) {
    double sum = 0, largest = 0;
    for (int64_t i = 0; i < draws; ++i) {
      const at::Tensor gauge = with_condition(heads, k, log_condition, generator);
      const at::Tensor value = at::matmul(original.value, gauge), output = at::linalg_solve(gauge, original.output);
      const double error = relative_error(at::matmul(at::matmul(mixed, value), output).sum(0), expected);
      sum += error;
      largest = std::max(largest, error);
      progress.advance();
    }
    const double condition = std::exp(log_condition), mean = sum / static_cast<double>(draws);
    table.rows.push_back({condition, mean, largest, mean / (condition * 0x1p-53)});
  }
  const double first = table.rows.front()[1], last = table.rows.back()[1];
  found.compared = {{"error at condition number e^0.2", "2e-15", shown(first)},
                    {"error at condition number e^20", "2e-15", shown(last)}};
  found.tables = {table};
  const bool symmetric = first<1e-14, grows = last> 100 * first;
  found.verdict = !symmetric ? ClaimVerdict::does_not_hold
                  : grows    ? ClaimVerdict::holds_corrected
                             : ClaimVerdict::holds;
  found.because = fmt::format(
      "an exact symmetry of the algebra; in float64 its error grows with the gauge's condition number, {:.0e} to "
      "{:.0e}",
      first, last);
  return found;
}

// ---- Theorem 7.3: heads are not recoverable by any linear map. W_O⁻¹ Π_h W_O is one.

Outcome linear_recovery(const Trial& trial) {
  const bool whole = trial.scale == ClaimScale::small;
  const int64_t heads = whole ? 12 : 4, k = whole ? 64 : 16, d = heads * k, n = 2 * d;
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor x = gaussian({n, d}, 1, generator);
  const RandomHeads drawn = random_heads(heads, d, k, generator);
  const at::Tensor written = written_by_heads(drawn, x), sum = written.sum(0);
  const at::Tensor output = drawn.output.reshape({d, d});
  double largest = 0;
  Progress progress("recovering heads", static_cast<uint64_t>(heads));
  for (int64_t h = 0; h < heads; ++h) {
    at::Tensor keep = at::zeros({d, 1}, at::kDouble);
    keep.narrow(0, h * k, k).fill_(1);
    const at::Tensor map = at::linalg_solve(output, keep * output);  // W_O⁻¹ Π_h W_O
    largest = std::max(largest, relative_error(at::matmul(sum, map), written[h]));
    progress.advance();
  }
  // What really is lost: the same sum from other heads, whose outputs a reader without W_O cannot tell apart.
  const at::Tensor gauge = with_condition(heads, k, 1, generator);
  const at::Tensor values = at::matmul(at::matmul(attention_of(drawn, x), x), drawn.value);
  const at::Tensor other = at::matmul(values, gauge);
  const double same = relative_error(at::matmul(other, at::linalg_solve(gauge, drawn.output)).sum(0), sum);
  Outcome found;
  found.compared = {{"best linear recovery of a head: relative error", "impossible", shown(largest)},
                    {"the same sum, heads in another gauge: error", "0", shown(same)},
                    {"how far those heads' own outputs are apart", "not said", shown(relative_error(other, values))}};
  found.verdict = largest < 1e-8 ? ClaimVerdict::does_not_hold : ClaimVerdict::holds;
  found.because = fmt::format(
      "with W_O square, invertible and known, W_O^-1 P_h W_O recovers every head to {:.0e}; only the basis of a head "
      "is lost",
      largest);
  return found;
}

// ---- Proposition 5.1: what is added at random raises a rank, and to the full at once

Outcome random_addition(const Trial& trial) {
  const int64_t n = 32, d = 64, draws = trial.scale == ClaimScale::small ? 200 : 20;
  at::Generator generator = generator_of(trial.seed);
  ClaimTable table{fmt::format("Least rank of A + B in {} draws", draws),
                   {"rank of A", "B of deviation 1", "1e-6", "1e-6, threshold 1e-3"},
                   {},
                   "rank of A + B"};
  bool raised = true;
  for (const int64_t rank : {0, 1, 4, 16, 31}) {
    std::vector<double> least = {static_cast<double>(rank), n, n, n};
    const auto note = [&](size_t column, int64_t found) {
      least[column] = std::min(least[column], static_cast<double>(found));
    };
    for (int64_t draw = 0; draw < draws; ++draw) {
      const at::Tensor a = at::matmul(gaussian({n, rank}, 1, generator), gaussian({rank, d}, 1, generator));
      const at::Tensor b = gaussian({n, d}, 1, generator);
      note(1, rank_of(a + b, exact_threshold));
      note(2, rank_of(a + 1e-6 * b, exact_threshold));
      note(3, rank_of(a + 1e-6 * b, usual_threshold));
    }
    raised = raised && least[1] > least[0] && least[2] > least[0];
    table.rows.push_back(std::move(least));
  }
  Outcome found;
  found.compared = {{"rank 4 and a random matrix", "more than 4", shown(table.rows[2][1])},
                    {"rank 4 and a random matrix of 1e-6", "more than 4", shown(table.rows[2][2])},
                    {"the same, by the paper's threshold of 1e-3", "not said", shown(table.rows[2][3])}};
  found.tables = {table};
  found.verdict = raised ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format(
      "the rank is full, {}, in all {} draws; but an addition that is small beside A raises no rank above a threshold",
      n, draws);
  return found;
}

// ---- Proposition C.2: averaging rows, rescaling and shifting rows, turning heads, whichever comes first

Outcome commuting_symmetries(const Trial& trial) {
  const int64_t n = 32, d = 64, heads = 4, k = 16;
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor x = gaussian({n, d}, 1, generator);
  const at::Tensor averages = attention_of(random_heads(heads, d, k, generator), x)[0];
  const at::Tensor sizes = gaussian({n, 1}, 0.5, generator).exp(), shifts = gaussian({n, 1}, 1, generator);
  const auto averaged = [&](const at::Tensor& rows) { return at::matmul(averages, rows); };
  const double rescaled = relative_error(averaged(sizes * x), sizes * averaged(x));
  const double shifted = relative_error(averaged(x + shifts), averaged(x) + shifts);
  const at::Tensor values = gaussian({d, k}, 1, generator), gauge = gaussian({k, k}, 1, generator);
  const double turned = relative_error(averaged(at::matmul(at::matmul(x, values), gauge)),
                                       at::matmul(averaged(at::matmul(x, values)), gauge));
  const at::Tensor uniform = at::full({n, n}, 1.0 / static_cast<double>(n), at::kDouble);
  Outcome found;
  found.compared = {{"averaging and rescaling rows, difference", "0", shown(rescaled)},
                    {"averaging and shifting rows", "0", shown(shifted)},
                    {"averaging rows and turning a head", "0", shown(turned)},
                    {fmt::format("rank of the uniform average of {} rows, which a group undoes", n), std::to_string(n),
                     std::to_string(rank_of(uniform, exact_threshold))}};
  found.verdict = std::max(rescaled, shifted) < 1e-12 ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format(
      "averaging and rescaling rows in the other order differs by {}, with shifts by {}; and averages form no group",
      shown(rescaled), shown(shifted));
  return found;
}

// ---- Theorem 5.3: the residual raises the rank of almost every input. Not of identical tokens, where collapse ends.

Outcome identical_tokens(const Trial& trial) {
  const int64_t n = 32, d = 64, heads = 4, k = 16, layers = trial.scale == ClaimScale::small ? 24 : 6;
  at::Generator generator = generator_of(trial.seed);
  at::Tensor same = gaussian({1, d}, 1, generator).expand({n, d});
  at::Tensor low = at::matmul(gaussian({n, 4}, 1, generator), gaussian({4, d}, 0.5, generator));
  ClaimTable table{
      "Rank by layer, attention with residual (threshold 1e-10)",
      {"layer", "identical tokens", "tokens of rank 4"},
      {{0, static_cast<double>(rank_of(same, exact_threshold)), static_cast<double>(rank_of(low, exact_threshold))}},
      "rank of the stream"};
  for (int64_t layer = 1; layer <= layers; ++layer) {
    const RandomHeads drawn = random_heads(heads, d, k, generator);
    same = same + multi_head(drawn, same);
    low = low + multi_head(drawn, low);
    table.rows.push_back({static_cast<double>(layer), static_cast<double>(rank_of(same, exact_threshold)),
                          static_cast<double>(rank_of(low, exact_threshold))});
  }
  const bool stuck = table.rows.back()[1] == 1, generic = table.rows[1][2] > table.rows[0][2];
  Outcome found;
  found.compared = {
      {"rank 4 after one layer", "more than 4", shown(table.rows[1][2])},
      {fmt::format("rank of identical tokens after {} layers", layers), "more than 1", shown(table.rows.back()[1])}};
  found.tables = {table};
  found.verdict = !generic ? ClaimVerdict::does_not_hold : stuck ? ClaimVerdict::holds_corrected : ClaimVerdict::holds;
  found.because = "true of almost every input, but identical tokens, where collapse ends, stay at rank 1";
  return found;
}

// ---- Theorem 4.2: LayerNorm keeps the affine rank under H1 to H4. Tokens of full rank never satisfy all of them:
// with n < d of them the columns of XP span all of R^n, so H4 fails; with n >= d the ones are in the row space, so H2
// fails, and then the norm takes a dimension away.

struct Neutrality {
  double h2 = 0, h4 = 0, both = 0, kept = 0, kept_under_both = 0;  // shares of the draws
};

Neutrality count_neutrality(int64_t n, int64_t d, int64_t rank, int64_t draws, at::Generator& generator) {
  const auto affine = [](const at::Tensor& rows) { return rank_of(rows - rows[0], exact_threshold); };
  const auto outside = [](const at::Tensor& vector, const at::Tensor& columns) {
    const at::Tensor nearest = at::matmul(columns, at::matmul(at::linalg_pinv(columns), vector));
    return relative_error(nearest, vector) > 1e-8;
  };
  Neutrality count;
  int64_t kept_under_both = 0, both = 0;
  for (int64_t i = 0; i < draws; ++i) {
    const at::Tensor x = at::matmul(gaussian({n, rank}, 1, generator), gaussian({rank, d}, 1, generator));
    const at::Tensor centred = x - x.mean(1, true), deviations = centred.square().mean(1, true).sqrt();
    const bool h2 = outside(at::ones({d, 1}, at::kDouble), x.t()), h4 = outside(deviations, centred);
    const bool kept = affine(x) == affine(layer_normed(x, 0));
    count.h2 += h2;
    count.h4 += h4;
    count.kept += kept;
    both += h2 && h4;
    kept_under_both += h2 && h4 && kept;
  }
  const double all = static_cast<double>(draws);
  return {count.h2 / all, count.h4 / all, static_cast<double>(both) / all, count.kept / all,
          both > 0 ? static_cast<double>(kept_under_both) / static_cast<double>(both) : 1};
}

Outcome affine_rank_hypotheses(const Trial& trial) {
  const int64_t d = 32, draws = trial.scale == ClaimScale::small ? 200 : 10;
  at::Generator generator = generator_of(trial.seed);
  ClaimTable table{fmt::format("Random tokens of width {}, {} draws each: the share of draws where", d, draws),
                   {"H2 holds", "H4 holds", "both hold", "affine rank kept"},
                   {},
                   "share of the draws",
                   {},
                   "tokens"};
  bool theorem = true, vacuous = true;
  for (const auto& [n, rank] : std::vector<std::pair<int64_t, int64_t>>{
           {4, 4}, {16, 16}, {31, 31}, {32, 32}, {33, 32}, {64, 32}, {16, 4}, {64, 8}}) {
    const Neutrality count = count_neutrality(n, d, rank, draws, generator);
    table.names.push_back(fmt::format("{} of rank {}", n, rank));
    table.rows.push_back({count.h2, count.h4, count.both, count.kept});
    theorem = theorem && count.kept_under_both == 1;
    vacuous = vacuous && (rank < std::min(n, d) || count.both == 0);
  }
  const auto share = [](double of_draws) { return fmt::format("in {:.0f} % of draws", 100 * of_draws); };
  Outcome found;
  found.compared = {{"H4, 16 tokens of full rank", "holds generically", share(table.rows[1][1])},
                    {"H2, 64 tokens of full rank", "holds", share(table.rows[5][0])},
                    {"affine rank kept, 16 tokens of full rank", "yes", share(table.rows[1][3])},
                    {"affine rank kept, 64 tokens of full rank", "yes", share(table.rows[5][3])},
                    {"affine rank kept, 64 tokens of rank 8", "yes", share(table.rows[7][3])}};
  found.tables = {table};
  found.verdict = !theorem  ? ClaimVerdict::does_not_hold
                  : vacuous ? ClaimVerdict::holds_corrected
                            : ClaimVerdict::holds;
  found.because =
      "where all hypotheses hold the rank is kept, but tokens of full rank never satisfy them: H4 fails for n < d, H2 "
      "for n >= d, and with n > d the norm takes one dimension away";
  return found;
}

// ---- Proposition 6.2: rank(MHA) is the dimension of the sum of the heads' row spaces. Not with few tokens.

Outcome multi_head_rank(const Trial& trial) {
  const int64_t d = 64, heads = 4, k = 16;
  at::Generator generator = generator_of(trial.seed);
  const RandomHeads drawn = random_heads(heads, d, k, generator);
  ClaimTable table{"Rank of the sum, and dimension of the sum of row spaces (threshold 1e-10)",
                   {"tokens n", "rank(MHA)", "dim(R_1 + ... + R_H)"},
                   {},
                   "dimensions"};
  for (const int64_t n : {4, 8, 16, 32, 64, 128}) {
    const at::Tensor written = written_by_heads(drawn, gaussian({n, d}, 1, generator));
    table.rows.push_back({static_cast<double>(n), static_cast<double>(rank_of(written.sum(0), exact_threshold)),
                          static_cast<double>(rank_of(written.reshape({-1, d}), exact_threshold))});
  }
  const auto agrees = [](const std::vector<double>& row) { return row[1] == row[2]; };
  Outcome found;
  for (const size_t i : {size_t{1}, size_t{5}}) {
    const std::vector<double>& row = table.rows[i];
    found.compared.push_back({fmt::format("rank(MHA) with {:.0f} tokens", row[0]), shown(row[2]), shown(row[1])});
  }
  found.tables = {table};
  found.verdict = !agrees(table.rows.back())                ? ClaimVerdict::does_not_hold
                  : std::ranges::all_of(table.rows, agrees) ? ClaimVerdict::holds
                                                            : ClaimVerdict::holds_corrected;
  found.because = "true only with enough tokens: a rank is at most n, the dimension of the sum of row spaces is not";
  return found;
}

// ---- Corollary 5.7: attention gives no curvature. A head that attends to itself and one fixed token is a neuron.

Outcome attention_curvature(const Trial& trial) {
  const int64_t d = 8;
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor query = gaussian({d}, 1, generator), value = gaussian({d}, 1, generator);
  const at::Tensor x = gaussian({d}, 1, generator), direction = gaussian({d}, 1, generator);
  // softmax over {self: x·q, zero token: 0} weighs x·u: sigmoid(x·q)(x·u), a SiLU neuron for u = q.
  const auto head = [&](double t) {
    const at::Tensor at = x + t * direction, score = at.dot(query);
    return (at::softmax(at::stack({score, at::zeros_like(score)}), 0)[0] * at.dot(value)).item<double>();
  };
  const double step = 1e-3;
  const double second = (head(step) - 2 * head(0) + head(-step)) / (step * step);
  const at::Tensor s = at::sigmoid(x.dot(query)), slope = s * (1 - s);
  const at::Tensor along_q = direction.dot(query), along_u = direction.dot(value);
  const double exact =
      (slope * (1 - 2 * s) * along_q.square() * x.dot(value) + 2 * slope * along_q * along_u).item<double>();
  Outcome found;
  found.compared = {{"second derivative of one head along a line", "0", shown(second)},
                    {"the same, differentiated by hand", "0", shown(exact)}};
  const bool curved = std::abs(exact) > 1e-3 && std::abs(second - exact) < 1e-3 * std::abs(exact);
  found.verdict = curved ? ClaimVerdict::does_not_hold : ClaimVerdict::holds;
  found.because =
      "one head has curvature (a neuron is a head: Huben and Morris 2023); a Jacobian at one point is linear for every "
      "map";
  return found;
}

// ---- Theorem 7.6: n (H - 1) k, and what it counts

Outcome recovery_ambiguity(const Trial& trial) {
  const int64_t n = 3, heads = 3, k = 2, d = heads * k;
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor output = gaussian({d, d}, 1, generator);
  // (Y_1 .. Y_H) -> sum of Y_h W_O,h, as a matrix: the identity of n tokens times W_O.
  const at::Tensor map = at::kron(at::eye(n, at::kDouble), output);
  const int64_t kernel = map.size(0) - rank_of(map, exact_threshold);
  Outcome found;
  found.compared = {{"BERT-base, 512 tokens: n (H - 1) k", "360,448", with_commas(512 * 11 * 64)},
                    {"one token: (H - 1) k", "704", std::to_string(11 * 64)},
                    {fmt::format("kernel of (Y_h) -> sum Y_h W_O,h; n {}, H {}, k {}", n, heads, k),
                     std::to_string(n * (heads - 1) * k), std::to_string(kernel)}};
  found.verdict = kernel == n * (heads - 1) * k ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format(
      "the arithmetic is right, but with W_O square and invertible the map from head outputs to their sum has a kernel "
      "of dimension {}; n (H - 1) k counts what the other heads write, not what is lost",
      kernel);
  return found;
}

// ---- Section 8: what a position gate costs, and whether it contains plain attention

Outcome pgop_overhead(const Trial&) {
  const int64_t heads = 12, d = 768, gates = heads * (d + d + 1);
  const double share = static_cast<double>(gates) / static_cast<double>(d * d);
  const double largest_gate = 1 / (1 + std::exp(-30.0));
  Outcome found;
  found.compared = {
      {"parameters, 12 (768 + 768 + 1)", "18,408", with_commas(gates)},
      {"share of W_O", "less than 1.6 %", fmt::format("{:.2f} %", 100 * share)},
      {"gate 1, which plain attention needs", "reached", fmt::format("never: 1 - {:.0e} at 30", 1 - largest_gate)},
      {"gate 1/2 with W_O doubled", "not said", "plain attention, exactly"}};
  found.verdict = gates == 18408 && share < 0.016 ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because =
      fmt::format("{} parameters, {:.2f} % of W_O; plain attention is contained as gate 1/2 with W_O doubled",
                  with_commas(gates), 100 * share);
  return found;
}

}  // namespace

std::vector<PaperClaim> claims_of_rank_and_symmetry() {
  constexpr Paper paper = Paper::rank_and_symmetry;
  constexpr ClaimVerdict corrected = ClaimVerdict::holds_corrected, fails = ClaimVerdict::does_not_hold;
  return {
      {"gauge-symmetry", paper, "Experiment 3",
       "A gauge of every head leaves attention unchanged to 2e-15, at condition numbers up to e^20.", corrected,
       "1.6e-15 to 1.08e-08", gauge_symmetry},
      {"linear-recovery", paper, "Theorem 7.3", "No linear map recovers a head's contribution from the sum of heads.",
       fails, "every head recovered to 4.26e-13", linear_recovery},
      {"random-addition", paper, "Proposition 5.1",
       "Adding a random matrix raises any rank that is not full, almost surely.", ClaimVerdict::holds,
       "full, 32, in all of 200 draws", random_addition},
      {"commuting-symmetries", paper, "Proposition C.2",
       "The symmetries of depth, heads and LayerNorm commute (a framework, not fully proved).", fails,
       "a difference of 0.588, of 0.973 with shifts", commuting_symmetries},
      {"identical-tokens", paper, "Theorem 5.3", "A residual connection raises the rank of almost every input.",
       corrected, "rank 4 becomes 20, identical tokens stay at 1", identical_tokens},
      {"affine-rank-hypotheses", paper, "Theorem 4.2, H1 to H4",
       "LayerNorm keeps the affine rank under H1 to H4, which are mild and hold generically.", corrected,
       "in 0 % of draws with tokens of full rank", affine_rank_hypotheses},
      {"multi-head-rank", paper, "Proposition 6.2",
       "The rank of multi-head attention is the dimension of the sum of the heads' output subspaces.", corrected,
       "8 of 32 with 8 tokens, 64 of 64 with 128", multi_head_rank},
      {"attention-curvature", paper, "Corollary 5.7", "Attention with residual has no curvature; only an MLP has.",
       fails, "second derivative -0.726, not 0", attention_curvature},
      {"recovery-ambiguity", paper, "Theorem 7.6", "Recovering a head is ambiguous in n (H - 1) k dimensions.", fails,
       "a kernel of 0 dimensions, not 12", recovery_ambiguity},
      {"pgop-overhead", paper, "Section 8",
       "A position gate costs 18,408 parameters, less than 1.6 % of W_O, and contains plain attention at gate 1.",
       fails, "18,444, and 3.13 % of W_O", pgop_overhead},
  };
}

}  // namespace pare
