// Paper 4, Section 12: as maps of inputs, models with generic weights are said to have no symmetry, since attention is
// injective. Both are counted: the directions that move no answer at a generic input, and the affine maps of the input
// that do no more to the answer than an affine map of it would.

#include "pare/claims/claim.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/claims/draws.h"
#include "pare/support/interrupt.h"

namespace pare {

namespace {

using Map = std::function<at::Tensor(const at::Tensor& x)>;  // [n, d] to [n, d], differentiable

// Of the answer by the input, both in one row.
at::Tensor jacobian_of(const Map& map, const at::Tensor& input) {
  const at::AutoGradMode grad(true);
  const at::Tensor x = input.detach().clone().requires_grad_(true);
  const at::Tensor answer = map(x).flatten();
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < answer.numel(); ++i) {
    answer[i].backward({}, /*retain_graph=*/true);
    rows.push_back(x.grad().flatten().clone());
    x.mutable_grad().reset();
  }
  return at::stack(rows);
}

// Of a matrix with no fewer rows than columns: how many singular values are rounding, and how far above these the
// others are.
struct Kernel {
  int64_t dimension = 0;
  double gap = 0;
};

Kernel kernel_of(const at::Tensor& matrix) {
  constexpr double rounding = 1e-15;
  const at::Tensor values = at::linalg_svdvals(std::get<1>(at::linalg_qr(matrix, "r")));
  const double largest = values[0].item<double>();
  const int64_t rank = (values > exact_threshold * largest).sum().item<int64_t>();
  const double next = rank < values.size(0) ? values[rank].item<double>() : 0;
  return {matrix.size(1) - rank, values[rank - 1].item<double>() / std::max(next, rounding * largest)};
}

// f(A x + c) = B f(x) + e to first order about the identity, at so many inputs that what is left holds at all:
// J (A x + c) - B f(x) - e = 0, linear in A, c, B and e.
struct Counted {
  Kernel still;         // directions of one input that move no answer
  Kernel invariances;   // (A, c) with B = 0 and e = 0
  Kernel any, outputs;  // (A, c, B, e); those among them that move no input
  int64_t symmetries() const { return any.dimension - outputs.dimension; }
  double gap() const { return std::min({still.gap, invariances.gap, any.gap, outputs.gap}); }
};

Counted count_symmetries(const Map& map, int64_t n, int64_t d, at::Generator& generator) {
  const int64_t size = n * d, samples = 2 * (2 * size + 2) + 8;
  std::vector<at::Tensor> of_inputs, of_outputs;
  at::Tensor jacobian;
  for (int64_t i = 0; i < samples; ++i) {
    check_interrupt();
    const at::Tensor x = gaussian({n, d}, 1, generator), answer = map(x).flatten();
    jacobian = jacobian_of(map, x);
    of_inputs.push_back(at::cat({at::kron(jacobian, x.reshape({1, size})), jacobian}, 1));
    const at::Tensor one = at::eye(size, at::kDouble);
    of_outputs.push_back(at::cat({at::kron(one, answer.unsqueeze(0)), one}, 1));
  }
  const at::Tensor inputs = at::cat(of_inputs), outputs = at::cat(of_outputs);
  return {kernel_of(jacobian), kernel_of(inputs), kernel_of(at::cat({inputs, -outputs}, 1)), kernel_of(outputs)};
}

// ---- The maps

enum class Sees { all, past };

at::Tensor attended(const RandomHeads& heads, const at::Tensor& x, Sees sees) {
  const int64_t n = x.size(0);
  at::Tensor scores = at::matmul(at::matmul(x, heads.scores), x.t()) / std::sqrt(static_cast<double>(heads.k));
  if (sees == Sees::past) {
    scores = scores.masked_fill(at::ones({n, n}, at::kBool).triu(1), -std::numeric_limits<double>::infinity());
  }
  return at::matmul(at::matmul(at::matmul(at::softmax(scores, -1), x), heads.value), heads.output).sum(0);
}

at::Tensor rms_normed(const at::Tensor& rows, double epsilon) {
  return rows / (rows.square().mean(1, true) + epsilon).sqrt();
}

// An epsilon is what keeps a scale from being a symmetry. A small one keeps it so little that the gap is lost.
constexpr double plain_epsilon = 0.1;

// Attention and an MLP of GELU, with norms before both or after both.
enum class Norms { before, after };
Map random_block(int64_t d, int64_t k, Norms norms, at::Generator& generator) {
  const RandomHeads heads = random_heads(d / k, d, k, generator);
  const at::Tensor up = gaussian({d, 4 * d}, 1 / std::sqrt(static_cast<double>(d)), generator);
  const at::Tensor down = gaussian({4 * d, d}, 1 / std::sqrt(4.0 * static_cast<double>(d)), generator);
  const at::Tensor bias = gaussian({4 * d}, 0.5, generator);
  return [=](const at::Tensor& x) {
    const auto attention = [&](const at::Tensor& rows) { return attended(heads, rows, Sees::all); };
    const auto mlp = [&](const at::Tensor& rows) { return at::matmul(at::gelu(at::matmul(rows, up) + bias), down); };
    if (norms == Norms::before) {
      const at::Tensor mid = x + attention(layer_normed(x, plain_epsilon));
      return mid + mlp(layer_normed(mid, plain_epsilon));
    }
    const at::Tensor mid = layer_normed(x + attention(x), plain_epsilon);
    return layer_normed(mid + mlp(mid), plain_epsilon);
  };
}

struct Case {
  std::string name;
  Map map;
  int64_t still = 0;      // predicted dimension of what moves no answer
  bool is_plain = false;  // heads that span the width, and no norm
};

std::vector<Case> cases_of(int64_t n, int64_t d, at::Generator& generator) {
  const int64_t k = d / 2;
  const RandomHeads narrow = random_heads(1, d, k, generator), wide = random_heads(1, d, d, generator);
  const RandomHeads both = random_heads(2, d, k, generator);
  const auto of = [](const RandomHeads& heads, Sees sees = Sees::all) -> Map {
    return [heads, sees](const at::Tensor& x) { return attended(heads, x, sees); };
  };
  const auto behind = [](const Map& map, const auto& norm, double epsilon) -> Map {
    return [=](const at::Tensor& x) { return map(norm(x, epsilon)); };
  };
  const auto before = [](const Map& map, const auto& norm, double epsilon) -> Map {
    return [=](const at::Tensor& x) { return norm(map(x), epsilon); };
  };
  const auto skipped = [](const Map& map) -> Map { return [map](const at::Tensor& x) { return x + map(x); }; };
  const Map heads = of(both), first = random_block(d, k, Norms::before, generator),
            second = random_block(d, k, Norms::before, generator);
  const Map pre = [=](const at::Tensor& x) { return second(first(x)); };
  const Map post = random_block(d, k, Norms::after, generator);
  return {{"one head of width d/2, as printed", of(narrow), n * (d - k)},
          {"one head of width d", of(wide), 0},
          {"two heads of width d/2", heads, 0, true},
          {"two heads, causal", of(both, Sees::past), 0, true},
          {"two heads and a skip", skipped(heads), 0, true},
          {"LayerNorm (epsilon 0), two heads", behind(heads, layer_normed, 0), 2 * n},
          {"RMSNorm (epsilon 0), two heads", behind(heads, rms_normed, 0), n},
          {"RMSNorm (epsilon 0.1), two heads", behind(heads, rms_normed, plain_epsilon), 0},
          {"LayerNorm, two heads, and a skip", skipped(behind(heads, layer_normed, plain_epsilon)), 0},
          {"two pre-norm blocks, no last norm", pre, 0},
          {"two pre-norm blocks, last RMSNorm", before(pre, rms_normed, plain_epsilon), 0},
          {"two pre-norm blocks, last LayerNorm", before(pre, layer_normed, plain_epsilon), n},
          {"a post-norm block, as BERT's", post, n}};
}

Outcome input_symmetries(const Trial& trial) {
  const bool whole = trial.scale == ClaimScale::small;
  const int64_t n = whole ? 3 : 2, d = whole ? 6 : 4;
  at::Generator generator = generator_of(trial.seed);
  Outcome found;
  found.how =
      "Generic weights, in float64. Fibre: directions of one input that move no answer, the kernel of the Jacobian; "
      "invariances: maps x to A x + c near the identity that leave every answer; symmetries: those that do to it what "
      "some map y to B y + e does";
  ClaimTable table{fmt::format("{} tokens of width {}: dimensions", n, d),
                   {"fibre", "predicted", "invariances", "symmetries"},
                   {},
                   "dimensions",
                   {},
                   "map"};
  bool plain = true, trivial = true, predicted = true;
  double gap = std::numeric_limits<double>::infinity();
  for (const Case& one : cases_of(n, d, generator)) {
    const Counted count = count_symmetries(one.map, n, d, generator);
    const int64_t still = count.still.dimension, all = still + count.invariances.dimension + count.symmetries();
    table.names.push_back(one.name);
    table.rows.push_back({static_cast<double>(still), static_cast<double>(one.still),
                          static_cast<double>(count.invariances.dimension), static_cast<double>(count.symmetries())});
    plain = plain && (!one.is_plain || all == 0);
    trivial = trivial && all == 0;
    predicted = predicted && still == one.still;
    gap = std::min(gap, count.gap());
  }
  const RandomHeads heads = random_heads(2, d, d / 2, generator);
  const at::Tensor x = gaussian({n, d}, 1, generator);
  const auto turned = [&](Sees sees) {
    return relative_error(attended(heads, x.flip(0), sees), attended(heads, x, sees).flip(0));
  };
  const double negated = relative_error(attended(heads, -x, Sees::all), -attended(heads, x, Sees::all));
  const auto row = [&](size_t i, size_t column) { return shown(table.rows[i][column]); };
  found.compared = {{"one head as printed: fibre", "0: injective", row(0, 0)},
                    {"one head of width d: symmetries", "0", row(1, 3)},
                    {"two heads: fibre and symmetries", "0", row(2, 0) + " and " + row(2, 3)},
                    {"two pre-norm blocks: fibre and symmetries", "0", row(9, 0) + " and " + row(9, 3)},
                    {"the same, last LayerNorm: fibre and invariances", "0", row(11, 0) + " and " + row(11, 2)},
                    {"a post-norm block: fibre and invariances", "0", row(12, 0) + " and " + row(12, 2)},
                    {"tokens in another order, encoder: difference", "not 0", shown(turned(Sees::all))},
                    {"the same, causal", "not 0", shown(turned(Sees::past))},
                    {"f(-x) and -f(x), no biases: difference", "not 0", shown(negated)},
                    {"least gap of singular values", "not said", fmt::format("{:.0e}", gap)}};
  found.tables = {table};
  constexpr double least_gap = 1e3;
  found.verdict = gap < least_gap || !predicted ? ClaimVerdict::undecided
                  : !plain                      ? ClaimVerdict::does_not_hold
                  : trivial                     ? ClaimVerdict::holds
                                                : ClaimVerdict::holds_corrected;
  found.because = fmt::format(
      "no fibre and no continuous symmetry where heads together span the width and there is no norm; but one head "
      "narrower than the stream is not injective (a fibre of {}), nor is a model that ends in a LayerNorm ({}); a "
      "pre-norm model passes on a constant that is added to a token, and a last LayerNorm removes it ({} invariances); "
      "one head of width d has {} symmetries, and encoders commute with permutations of tokens",
      row(0, 0), row(11, 0), row(11, 2), row(1, 3));
  return found;
}

}  // namespace

std::vector<PaperClaim> claims_of_input_symmetries() {
  return {
      {"input-symmetries", Paper::rank_and_symmetry, "Section 12",
       "With generic weights no transformation of inputs but the identity leaves the forward pass unchanged, because "
       "attention is generically injective.",
       ClaimVerdict::holds_corrected, "0 without norms; one head 9, a last LayerNorm 3", input_symmetries}};
}

}  // namespace pare
