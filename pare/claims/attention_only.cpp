// Paper 2's claims: MLP neurons as attention heads of width one.

#include "pare/claims/claim.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/claims/draws.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

// One head of the paper's: masked softmax of X W_QK Xᵀ, times X W_OV.
at::Tensor paper_head(const at::Tensor& x, const at::Tensor& scores, const at::Tensor& written,
                      const at::Tensor& mask) {
  const at::Tensor raw = at::matmul(at::matmul(x, scores), x.t());
  return at::matmul(at::softmax(raw.masked_fill(mask == 0, -std::numeric_limits<double>::infinity()), -1),
                    at::matmul(x, written));
}

// ---- Theorem 2: an MLP of h neurons is h heads on X ⊕ [1], each token seeing itself and the extra one

Outcome neuron_is_a_head(const Trial& trial) {
  const int64_t n = 6, d = trial.scale == ClaimScale::small ? 64 : 8, neurons = 4 * d;
  const double a1 = 0.7, a2 = 1.702;
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor x = gaussian({n, d}, 1, generator), up = gaussian({d, neurons}, 1, generator);
  const at::Tensor down = gaussian({neurons, d}, 1, generator);
  const at::Tensor expected = at::matmul(a1 * at::silu(a2 * at::matmul(x, up)), down);
  // X ⊕ [1]: a row and a column more, zero but for their corner.
  at::Tensor wide = at::zeros({n + 1, d + 1}, at::kDouble);
  wide.narrow(0, 0, n).narrow(1, 0, d).copy_(x);
  wide[n][d] = 1;
  at::Tensor mask = at::eye(n + 1, at::kDouble);
  mask.select(1, n).fill_(1);
  at::Tensor sum = at::zeros({n + 1, d + 1}, at::kDouble);
  for (int64_t i = 0; i < neurons; ++i) {
    at::Tensor scores = at::zeros({d + 1, d + 1}, at::kDouble), written = at::zeros({d + 1, d + 1}, at::kDouble);
    scores.narrow(0, 0, d).select(1, d).copy_(-a2 * up.select(1, i));
    written.narrow(0, 0, d).narrow(1, 0, d).copy_(a1 * a2 * at::outer(up.select(1, i), down[i]));
    sum = sum + paper_head(wide, scores, written, mask);
  }
  const double error = relative_error(sum.narrow(0, 0, n).narrow(1, 0, d), expected);
  const double corner = std::max(sum[n].abs().max().item<double>(), sum.select(1, d).abs().max().item<double>());
  Outcome found;
  found.compared = {{fmt::format("{} heads against the MLP, relative error", neurons), "0", shown(error)},
                    {"what they write into the extra row and column", "0", shown(corner)}};
  found.verdict = error < 1e-13 && corner == 0 ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format("exact to {:.0e} without biases", error);
  return found;
}

// ---- and with biases: the extra coordinate is 0 on ordinary tokens, so it cannot carry one

Outcome neuron_with_bias(const Trial& trial) {
  const int64_t n = 6, d = 8;
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor x = gaussian({n, d}, 1, generator), up = gaussian({d}, 1, generator);
  const double bias = 0.8;
  const at::Tensor expected = at::silu(at::matmul(x, up) + bias);
  // The paper's tokens carry 0 in the extra coordinate: the bias's row of q meets zeros.
  const auto neuron = [&](double coordinate) {
    const at::Tensor score = at::matmul(x, up) + coordinate * bias;
    const at::Tensor seen = at::softmax(at::stack({score, at::zeros_like(score)}, 1), 1).select(1, 0);
    return seen * score;
  };
  const double as_in_paper = relative_error(neuron(0), expected), with_ones = relative_error(neuron(1), expected);
  Outcome found;
  found.compared = {{"neuron with bias, tokens X ⊕ [1] as in the paper", "0", shown(as_in_paper)},
                    {"ordinary tokens carry the 1, the extra token is zero", "not said", shown(with_ones)}};
  found.verdict = as_in_paper < 1e-13 ? ClaimVerdict::holds
                  : with_ones < 1e-13 ? ClaimVerdict::holds_corrected
                                      : ClaimVerdict::does_not_hold;
  found.because =
      "biases need a 1 on every ordinary token and a zero vector as the extra token: the paper has it the other way "
      "round";
  return found;
}

// ---- Section 2: how far SiLU(1.702 x)/1.702 is from GELU, and SiLU(c x)/c from ReLU

std::pair<double, double> largest(const std::function<at::Tensor(const at::Tensor&)>& difference) {
  double low = 0, high = 8;
  for (int round = 0; round < 6; ++round) {  // ever finer around the largest
    const at::Tensor grid = at::linspace(low, high, 100001, at::kDouble);
    const int64_t at = difference(grid).abs().argmax().item<int64_t>();
    const double step = (high - low) / 100000, middle = grid[at].item<double>();
    low = std::max(0.0, middle - 2 * step);
    high = middle + 2 * step;
  }
  const at::Tensor where = at::full({}, (low + high) / 2, at::kDouble);
  return {where.item<double>(), difference(where).abs().item<double>()};
}

Outcome activation_approximation(const Trial&) {
  const auto [gelu_at, gelu] = largest([](const at::Tensor& x) { return at::gelu(x) - at::silu(1.702 * x) / 1.702; });
  const auto [relu_at, relu] = largest([](const at::Tensor& x) { return at::relu(x) - at::silu(x); });
  Outcome found;
  found.compared = {
      {"largest error as GELU", "0.0203 at 2.27", fmt::format("{:.5f} at {:.3f}", gelu, gelu_at)},
      {"largest error as ReLU", "0.2785 / c at 1.278 / c", fmt::format("{:.5f} / c at {:.4f} / c", relu, relu_at)}};
  const bool holds =
      std::abs(gelu - 0.0203) < 5e-5 && std::abs(relu - 0.2785) < 5e-5 && std::abs(gelu_at - 2.27) < 5e-3;
  found.verdict = holds ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format("{:.5f} and {:.5f} / c", gelu, relu);
  return found;
}

// ---- Theorem 4 keeps norms by LayerNorm(X ⊕ [1]) = LayerNorm(X) ⊕ [1], which is no LayerNorm

Outcome norm_of_extended(const Trial& trial) {
  const int64_t n = 6, d = 64;
  at::Generator generator = generator_of(trial.seed);
  const at::Tensor x = gaussian({n, d}, 1, generator);
  const at::Tensor wide = at::cat({x, at::zeros({n, 1}, at::kDouble)}, 1);
  const double error = relative_error(layer_normed(wide, 1e-5).narrow(1, 0, d), layer_normed(x, 1e-5));
  Outcome found;
  found.compared = {{"LayerNorm over d + 1 coordinates, not d: error", "0", shown(error)},
                    {"a norm that acts on the first d coordinates only", "0", "0, by definition"}};
  found.verdict = error < 1e-12 ? ClaimVerdict::holds : ClaimVerdict::holds_corrected;
  found.because = "only with a norm that leaves the extra coordinate out; a standard LayerNorm does not";
  return found;
}

// ---- Section 5: a neuron is a head, so an MLP is many

Outcome heads_of_gpt3(const Trial&) {
  const nlohmann::json written = nlohmann::json::parse(R"({"width": 12288, "vocab": 50257, "context": 2048,
    "embedding": {"position": "learned"}, "head": {"tied": true}, "final_norm": {"kind": "layer"},
    "blocks": [{"repeat": 96, "attention": {"heads": 96, "head_width": 128, "norm": {"kind": "layer"}},
                "mlp": {"width": 49152, "activation": "gelu", "norm": {"kind": "layer"}}}]})");
  const Architecture gpt3 = architecture_from_json(written, "GPT-3");
  const std::map<Part, int64_t> parts = count(gpt3).parts;
  const int64_t attention =
      parts.at(Part::query) + parts.at(Part::key) + parts.at(Part::value) + parts.at(Part::output);
  const nlohmann::json& block = written.at("blocks").at(0);
  const int64_t mlps = parts.at(Part::mlp), heads = block.at("attention").at("heads").get<int64_t>(),
                neurons = block.at("mlp").at("width").get<int64_t>();
  const double by_parameters = static_cast<double>(mlps) / static_cast<double>(attention);
  const double by_heads = static_cast<double>(neurons) / static_cast<double>(heads);
  Outcome found;
  found.compared = {{"MLPs over attention, by parameters", "2:1", fmt::format("{:.2f}:1", by_parameters)},
                    {"by heads, a neuron for one", "500:1", fmt::format("{:.0f}:1", by_heads)}};
  const bool holds = std::round(by_parameters) == 2 && std::round(by_heads / 100) == 5;
  found.verdict = holds ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format("{} parameters against {}, {} neurons in a layer against {} heads", with_commas(mlps),
                              with_commas(attention), with_commas(neurons), heads);
  return found;
}

}  // namespace

std::vector<PaperClaim> claims_of_attention_only() {
  constexpr Paper paper = Paper::attention_only;
  constexpr ClaimVerdict holds = ClaimVerdict::holds, corrected = ClaimVerdict::holds_corrected;
  return {
      {"neuron-is-a-head", paper, "Theorem 2", "A SiLU neuron without bias is an attention head of width 1.", holds,
       "off by 5.4e-16", neuron_is_a_head},
      {"neuron-with-bias", paper, "Theorem 2", "The extra token serves as the bias term.", corrected,
       "0.147 as printed, 6.63e-18 with the roles swapped", neuron_with_bias},
      {"norm-of-extended", paper, "Theorem 4", "LayerNorm(X + [1]) = LayerNorm(X) + [1].", corrected, "off by 0.00797",
       norm_of_extended},
      {"activation-approximation", paper, "Section 2",
       "SiLU stands for GELU within 0.0203 and for ReLU within 0.2785 / c.", holds, "0.02033, and 0.27846 / c",
       activation_approximation},
      {"heads-of-gpt3", paper, "Section 5", "In GPT-3 MLPs outweigh attention 2:1 by parameters and 500:1 by heads.",
       holds, "2.00:1 and 512:1", heads_of_gpt3},
  };
}

}  // namespace pare
