// Paper 0's claims that need no training.

#include "pare/claims/claim.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "pare/arch/presets.h"
#include "pare/claims/draws.h"
#include "pare/support/error.h"
#include "pare/support/numbers.h"
#include "pare/support/progress.h"

namespace pare {

namespace {

// ---- Section 8.2: scores of unit tokens at initialisation, with W_Q drawn and with W_Q = I

Outcome score_deviation(const Trial& trial) {
  const int64_t d = 768, heads = 12, k = 64, n = trial.scale == ClaimScale::small ? 2048 : 256;
  const double sigma = 0.02;
  at::Generator generator = generator_of(trial.seed);
  at::Tensor x = gaussian({n, d}, 1, generator);
  x = x / x.norm(2, {1}, true);
  const at::Tensor key = at::matmul(x, gaussian({d, d}, sigma, generator)).view({n, heads, k}).transpose(0, 1);
  const auto deviation = [&](const at::Tensor& query) {
    return at::matmul(query.view({n, heads, k}).transpose(0, 1), key.transpose(1, 2)).std().item<double>();
  };
  const double plain = deviation(at::matmul(x, gaussian({d, d}, sigma, generator))), reduced = deviation(x);
  Outcome found;
  found.compared = {{"standard deviation of scores, W_Q drawn", "0.0032", fmt::format("{:.4f}", plain)},
                    {"standard deviation of scores, W_Q = I", "0.0058", fmt::format("{:.4f}", reduced)},
                    {"ratio", "1.8", fmt::format("{:.2f}", reduced / plain)}};
  const bool holds = std::abs(plain - 0.0032) < 2e-4 && std::abs(reduced - 0.0058) < 3e-4;
  found.verdict = holds ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because =
      fmt::format("{:.4f} against {:.4f}, as derived; this does not show that the factor 1/2 derived from it helps",
                  plain, reduced);
  return found;
}

// What LayerNorm makes z of, where z has no mean, and RMSNorm of any z: sqrt(d ε / (d - |z|²)) z. None unless |z|² < d.
at::Tensor before_norm(const at::Tensor& z, double epsilon) {
  const double width = static_cast<double>(z.size(1));
  return z * (width * epsilon / (width - z.square().sum(1, true))).sqrt();
}

// ---- Lemma 8.2: L(f(x)) = M₀ L(x), with f through the inverse of LayerNorm on zero-mean vectors

Outcome semi_conjugacy(const Trial& trial) {
  const int64_t d = trial.scale == ClaimScale::small ? 768 : 64, n = 128;
  const double epsilon = 1e-5, width = static_cast<double>(d);
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor a = gaussian({d, d}, 1 / std::sqrt(width), generator), ones = at::ones({d, 1}, at::kDouble);
  const at::Tensor slanted = at::linalg_solve(a.t(), ones), v = slanted / slanted.norm();
  // An orthonormal basis of the zero-mean vectors: what is left of the identity's columns behind the ones.
  const at::Tensor eye = at::eye(d, at::kDouble).narrow(1, 0, d - 1);
  const at::Tensor basis = std::get<0>(at::linalg_qr(at::cat({ones, eye}, 1))).narrow(1, 1, d - 1);
  const at::Tensor inner = at::matmul(at::matmul(basis.t(), v * a), basis);
  const at::Tensor map = v * a / at::linalg_svdvals(inner)[0];
  const at::Tensor x = gaussian({n, d}, 1, generator), normed = layer_normed(x, epsilon);
  const at::Tensor wanted = at::matmul(normed, map.t());
  const at::Tensor room = width - wanted.square().sum(1, true);
  const at::Tensor f = before_norm(wanted, epsilon) + gaussian({n, 1}, 1, generator);  // and any h(x) 1
  const double error = relative_error(layer_normed(f, epsilon), wanted);
  const double mean = wanted.mean(1).abs().max().item<double>();
  Outcome found;
  found.compared = {{"L(f(x)) against M₀ L(x), relative error", "0", shown(error)},
                    {"largest mean of M₀ L(x)", "0", shown(mean)},
                    {"least room d - |M₀ L(x)|²", "more than 0", shown(room.min().item<double>())}};
  found.verdict = error < 1e-9 && mean < 1e-10 ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format("exact to {:.0e}, with an arbitrary multiple of the ones added", error);
  return found;
}

// ---- Remark 5: the same for RMSNorm, and for DyT, γ tanh(α x) + β, one coordinate at a time

// M = A / ‖A‖₂ makes nothing longer, so that |M R(x)|² < d.
double through_rms_norm(const at::Tensor& a, const at::Tensor& x) {
  const double epsilon = 1e-5;
  const auto normed = [&](const at::Tensor& rows) { return rows / (rows.square().mean({1}, true) + epsilon).sqrt(); };
  const at::Tensor wanted = at::matmul(normed(x), (a / at::linalg_svdvals(a)[0]).t());
  return relative_error(normed(before_norm(wanted, epsilon)), wanted);
}

struct ThroughDyT {
  double error = 0, outside = 0;  // with gains that are large enough; share of coordinates that none reaches without
};

// Every coordinate of DyT(x) - β is shorter than its gain; one of A (DyT(x) - β) may be as long as the row of |A| γ,
// and no x has such an image unless the new gain is.
ThroughDyT through_dyt(const at::Tensor& a, const at::Tensor& x, at::Generator& generator) {
  const int64_t d = x.size(1);
  const at::Tensor gain = gaussian({d}, 0.5, generator).exp(), alpha = gaussian({d}, 0.5, generator).exp() / 2,
                   bias = gaussian({d}, 1, generator);
  const at::Tensor wanted = at::matmul(gain * (alpha * x).tanh() + bias, a.t());
  const at::Tensor new_bias = at::matmul(a, bias), centred = wanted - new_bias;
  const at::Tensor new_gain = at::matmul(a.abs(), gain);
  const at::Tensor f = (centred / new_gain).atanh() / alpha;
  return {relative_error(new_gain * (alpha * f).tanh() + new_bias, wanted),
          (centred.abs() >= gain).to(at::kDouble).mean().item<double>()};
}

Outcome semi_conjugacy_of_others(const Trial& trial) {
  const int64_t d = trial.scale == ClaimScale::small ? 768 : 64, n = 128;
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor a = gaussian({d, d}, 1 / std::sqrt(static_cast<double>(d)), generator);
  const at::Tensor x = gaussian({n, d}, 1, generator);
  const double rms = through_rms_norm(a, x);
  const auto [dyt, outside] = through_dyt(a, x, generator);
  const std::string share = fmt::format("{:.0f} %", 100 * outside);
  Outcome found;
  found.compared = {{"RMSNorm: R(f(x)) against M R(x), relative error", "0", shown(rms)},
                    {"DyT with gains of |A| γ: the same", "0", shown(dyt)},
                    {"DyT with its own gains: coordinates that no f reaches", "0 %", share}};
  found.verdict = rms < 1e-9 && dyt < 1e-9 ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format(
      "exact to {:.0e} and {:.0e}, where the gains of DyT grow to |A| γ: with its own no f reaches {} of the "
      "coordinates",
      rms, dyt, share);
  return found;
}

// ---- Section 8.3.1: the largest singular value of a square matrix of N(0, 1/d)

Outcome largest_singular_value(const Trial& trial) {
  at::Generator generator = generator_of(trial.seed);
  ClaimTable table{"Square matrices of N(0, 1/d)",
                   {"d", "largest singular value", "share of singular values above 1"},
                   {},
                   "largest singular value; share above 1"};
  std::vector<int64_t> widths = {64, 128, 256, 512};
  if (trial.scale == ClaimScale::small) {
    widths.insert(widths.end(), {1024, 2048});
  }
  Progress progress("singular values", widths.size());
  for (const int64_t d : widths) {
    const at::Tensor values = at::linalg_svdvals(gaussian({d, d}, 1 / std::sqrt(static_cast<double>(d)), generator));
    table.rows.push_back(
        {static_cast<double>(d), values[0].item<double>(), (values > 1).to(at::kDouble).mean().item<double>()});
    progress.advance();
  }
  const double last = table.rows.back()[1];
  Outcome found;
  found.compared = {
      {fmt::format("largest singular value at d = {}", widths.back()), "1 + O(d^-1/2)", shown(last)},
      {"singular values that clamping to 1 changes", "few", fmt::format("{:.0f} %", 100 * table.rows.back()[2])}};
  found.tables = {table};
  found.verdict = last < 1.5 ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format(
      "the largest tends to 2, and {:.0f} % of the singular values are above 1: clamping is no small change",
      100 * table.rows.back()[2]);
  return found;
}

// ---- Theorem 8.4: a residual-free ReLU MLP of the same width exists iff some J has W₂[:,J] W₁[J,:] = -I

Outcome skip_into_relu(const Trial& trial) {
  const int64_t h = 8, m = 4 * h, n = 256;
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor x = gaussian({h, n}, 1, generator), eye = at::eye(h, at::kDouble);
  const auto mlp = [&](const at::Tensor& up, const at::Tensor& down) {
    return at::matmul(down, at::relu(at::matmul(up, x)));
  };
  // The indicator s of J solves G s = r: one linear system.
  const auto solve = [&](const at::Tensor& up, const at::Tensor& down) {
    const at::Tensor gram = at::matmul(down.t(), down) * at::matmul(up, up.t()), right = -(down.t() * up).sum(1, true);
    const at::Tensor s = at::linalg_solve(gram, right);
    const at::Tensor near = s.round().clamp(0, 1);
    const double off = (s - near).abs().max().item<double>();
    const double residual = (at::matmul(down * near.t(), up) + eye).norm().item<double>();
    return std::pair{near, std::max(off, residual)};
  };
  const auto after = [&](const at::Tensor& up, const at::Tensor& down, const at::Tensor& indicator) {
    return relative_error(mlp(up * (1 - 2 * indicator), down), mlp(up, down) + x);
  };
  // Planted: the first 2h columns and rows multiply to -I.
  const at::Tensor up = gaussian({m, h}, 1, generator);
  at::Tensor down = gaussian({h, m}, 1, generator);
  down.narrow(1, 0, 2 * h).copy_(-at::linalg_pinv(up.narrow(0, 0, 2 * h)));
  const auto [planted, planted_off] = solve(up, down);
  const double exact = after(up, down, planted);
  const auto [none, random_off] = solve(up, gaussian({h, m}, 1, generator));
  // Outside the hypotheses: collinear rows absorb any skip, and no J says so.
  const at::Tensor pair = at::cat({eye, -eye});
  const at::Tensor any = gaussian({h, 2 * h}, 1, generator), widened = any + at::cat({eye, -eye}, 1);
  const double collinear = relative_error(mlp(pair, widened), mlp(pair, any) + x);
  Outcome found;
  found.compared = {{"planted J: s from {0, 1} and W₂ diag(s) W₁ = -I, off by", "0", shown(planted_off)},
                    {"planted J: the MLP with flipped rows against MLP + x", "0", shown(exact)},
                    {"random weights: the same, off by", "more than 0", shown(random_off)},
                    {"W₁ = [I; -I], outside the hypotheses: skip absorbed to", "not covered", shown(collinear)}};
  const bool holds = planted_off < 1e-8 && exact < 1e-10 && random_off > 1e-2 && collinear < 1e-12;
  found.verdict = holds ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = "and J needs no search: one linear system finds it, or shows that there is none";
  return found;
}

// ---- Proposition 4.1: one matrix for W_Q W_Kᵀ, one for W_V W_O. Fewer parameters only with wide heads.

Outcome collapsed_single_head(const Trial&) {
  ClaimTable table{"Parameters of W_Q, W_K, W_V, W_O and of the two products, width 768",
                   {"head width", "four factors", "two products", "saved"},
                   {},
                   "parameters",
                   {"saved"}};
  for (const int64_t k : {64, 256, 384, 512, 768}) {
    const double factors = static_cast<double>(4 * 768 * k), products = 2 * 768 * 768;
    table.rows.push_back({static_cast<double>(k), factors, products, 1 - products / factors});
  }
  Outcome found;
  found.compared = {
      {"saved at head width d (one head)", "50 %", fmt::format("{:.0f} %", 100 * table.rows.back()[3])},
      {"saved at head width d / 2", "not said", fmt::format("{:.0f} %", 100 * table.rows[2][3])},
      {"saved at head width 64, as in GPT-2", "not said", fmt::format("{:.0f} %", 100 * table.rows[0][3])}};
  found.tables = {table};
  const double of_one_head = table.rows.back()[3], of_narrow_heads = table.rows.front()[3];
  found.verdict = of_one_head != 0.5    ? ClaimVerdict::does_not_hold
                  : of_narrow_heads < 0 ? ClaimVerdict::holds_corrected
                                        : ClaimVerdict::holds;
  found.because =
      "exact with any norms and skips, but it saves parameters only if the head is wider than half the model";
  return found;
}

// ---- Theorem 4.3: shared blocks. A tied head has to be untied, which may cost more than W_Q is worth.

Outcome shared_weights(const Trial&) {
  const std::optional<Architecture> albert = find_preset("albert-base");
  PARE_CHECK(albert, "the preset albert-base is there");
  const int64_t d = albert->width, vocabulary = albert->vocab;
  const int64_t factor = albert->embedding.factor.value_or(d);
  Outcome found;
  found.compared = {{"W_Q of the one stored block", "saved", "-" + with_commas(d * d)},
                    {fmt::format("a head of its own, vocabulary {}, width {}", vocabulary, factor),
                     "untied, not counted", "+" + with_commas(vocabulary * factor)}};
  found.verdict = vocabulary * factor > d * d ? ClaimVerdict::holds_corrected : ClaimVerdict::holds;
  found.because = "exact, but if embedding and head are tied, untying them adds more parameters than the query had";
  return found;
}

}  // namespace

std::vector<PaperClaim> claims_of_query_elimination() {
  constexpr Paper paper = Paper::query_elimination;
  constexpr ClaimVerdict holds = ClaimVerdict::holds, corrected = ClaimVerdict::holds_corrected;
  return {
      {"collapsed-single-head", paper, "Proposition 4.1",
       "With one head, two product matrices replace the four of attention.", corrected,
       "50 % at head width d, 0 % at d / 2", collapsed_single_head},
      {"shared-weights", paper, "Theorem 4.3",
       "If all layers share one block, its query can be removed, with an untied head.", corrected,
       "-589,824 for the query, +3,840,000 for the head", shared_weights},
      {"score-deviation", paper, "Section 8.2",
       "At initialisation W_Q = I makes scores 1.8 times as large: 0.0058 against 0.0032.", holds,
       "0.0058 against 0.0032", score_deviation},
      {"semi-conjugacy", paper, "Lemma 8.2", "A function f passes a linear map through LayerNorm exactly.", holds,
       "off by 1.18e-13", semi_conjugacy},
      {"semi-conjugacy-of-others", paper, "Remark 5", "The same function passes a linear map through RMSNorm and DyT.",
       holds, "7.29e-17 and 4.06e-17; DyT with larger gains", semi_conjugacy_of_others},
      {"largest-singular-value", paper, "Section 8.3.1",
       "A square matrix of N(0, 1/d) has largest singular value 1 + O(d^-1/2), so clamping to 1 changes little.",
       ClaimVerdict::does_not_hold, "2, and 39 % are clamped", largest_singular_value},
      {"skip-into-relu", paper, "Theorem 8.4",
       "A ReLU MLP absorbs its skip at equal width iff some J has W₂[:,J] W₁[J,:] = -I.", holds,
       "5.77e-15 where J is planted, 2.83 elsewhere", skip_into_relu},
  };
}

}  // namespace pare
