// Neurons as heads of width one: against attention written out over the extra token, paper 2's own construction, and
// the true errors of its two approximations.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "pare/arch/count.h"
#include "pare/passes/pass.h"
#include "pare/rewrite/pipeline.h"
#include "pare/support/error.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8, f = 11, L = 2;

Architecture with_mlp(const std::string& mlp = "{}", const std::string& block_patch = "{}",
                      const std::string& model = "{}") {
  nlohmann::json block = nlohmann::json::parse(R"({"repeat": 2, "attention": {"heads": 4, "head_width": 2},
      "mlp": {"width": 11, "activation": "silu", "bias": {"up": true, "down": true}}})");
  block["mlp"].merge_patch(nlohmann::json::parse(mlp));
  block.merge_patch(nlohmann::json::parse(block_patch));
  return small_architecture(d, block, model);
}

PassStep step_of(const Model& model, Options options = {}) {
  return run_passes(model, {call_of(find_pass("lower_mlp_to_heads"), std::move(options))}).steps.at(0);
}

double silu(double x) {
  return x / (1 + std::exp(-x));
}

double gelu(double x) {
  return x * std::erfc(-x / std::sqrt(2.0)) / 2;
}

double gelu_tanh(double x) {
  return x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2;
}

// One head over N tokens and the extra one, with the mask {self, extra}, all N + 1 scores written out.
std::vector<double> one_head(const at::Tensor& x, const at::Tensor& q, const at::Tensor& u) {
  const int64_t tokens = x.size(0);
  std::vector<double> written;
  for (int64_t i = 0; i < tokens; ++i) {
    double total = 0, sum = 0;
    for (int64_t j = 0; j <= tokens; ++j) {
      const bool extra = j == tokens, seen = extra || j == i;
      double score = 0, value = 0;  // the extra token is the zero vector
      for (int64_t c = 0; c <= d && !extra; ++c) {
        const double entry = c < d ? x[j][c].item<double>() : 1;
        score += entry * q[c].item<double>();
        value += entry * u[c].item<double>();
      }
      const double weight = seen ? std::exp(score) : 0;
      total += weight;
      sum += weight * value;
    }
    written.push_back(sum / total);
  }
  return written;
}

struct Worst {
  double error = 0, at = 0;
};

Worst worst_error(double (*exact)(double), double (*near)(double, double), double slope, double from, double to) {
  Worst worst;
  constexpr int64_t steps = 400'000;
  for (int64_t i = 0; i <= steps; ++i) {
    const double x = from + (to - from) * static_cast<double>(i) / steps;
    const double error = std::abs(exact(x) - near(x, slope));
    if (error > worst.error) {
      worst = {error, x};
    }
  }
  return worst;
}

double near_silu(double x, double slope) {
  return silu(slope * x) / slope;
}

}  // namespace

TEST_CASE("lower_mlp_to_heads: a neuron is a head over {self, extra token}, written out") {
  for (const bool gated : {false, true}) {
    const Architecture a =
        with_mlp(gated ? R"({"activation": "sigmoid", "gated": true, "bias": {"gate": true}})" : "{}");
    const Tensors old = generic_tensors(a);
    const PassStep step = step_of({a, as_weights(old)});
    REQUIRE(step.proposal.applies);
    const auto now = [&](const char* name) {
      return step.proposal.after.weights.at(std::string("blocks.1.mlp.") + name);
    };
    const at::Tensor q = now("query.weight").load(), u = gated ? now("value.weight").load() : q;
    at::manual_seed(4);
    const at::Tensor x = at::randn({5, d}, at::kDouble);
    const auto plain = [&](const char* name, int64_t token, int64_t neuron) {
      double sum = old.at(std::string("blocks.1.mlp.") + name + ".bias")[neuron].item<double>();
      for (int64_t c = 0; c < d; ++c) {
        sum += x[token][c].item<double>() *
               old.at(std::string("blocks.1.mlp.") + name + ".weight")[neuron][c].item<double>();
      }
      return sum;
    };
    for (int64_t i = 0; i < f; ++i) {
      const std::vector<double> head = one_head(x, q[i], u[i]);
      for (int64_t token = 0; token < 5; ++token) {
        const double expected =
            gated ? plain("up", token, i) / (1 + std::exp(-plain("gate", token, i))) : silu(plain("up", token, i));
        CHECK(head[token] == doctest::Approx(expected).epsilon(1e-12));
      }
    }
    CHECK(at::equal(now("output.weight").load(), old.at("blocks.1.mlp.down.weight")));
    CHECK(at::equal(now("output.bias").load(), old.at("blocks.1.mlp.down.bias")));
  }
}

// Theorem 2 as it is printed: X ⊕ [1], without biases. It writes the same as the form with the zero token.
TEST_CASE("lower_mlp_to_heads: paper 2's own construction gives the same without biases") {
  at::manual_seed(5);
  const int64_t tokens = 4;
  const at::Tensor x = at::randn({tokens, d}, at::kDouble), v = at::randn({d}, at::kDouble),
                   w = at::randn({d}, at::kDouble);
  at::Tensor wide = at::zeros({tokens + 1, d + 1}, at::kDouble);
  wide.narrow(0, 0, tokens).narrow(1, 0, d).copy_(x);
  wide[tokens][d] = 1;
  at::Tensor qk = at::zeros({d + 1, d + 1}, at::kDouble), ov = at::zeros({d + 1, d + 1}, at::kDouble);
  qk.narrow(0, 0, d).select(1, d).copy_(-v);
  ov.narrow(0, 0, d).narrow(1, 0, d).copy_(at::outer(v, w));
  at::Tensor mask = at::eye(tokens + 1, at::kDouble);
  mask.select(1, tokens).fill_(1);
  const at::Tensor weights = at::exp(at::matmul(at::matmul(wide, qk), wide.t())) * mask;
  const at::Tensor written = at::matmul(at::matmul(weights / weights.sum(1, true), wide), ov);
  const at::Tensor expected = at::outer(at::silu(at::mv(x, v)), w);
  CHECK((written.narrow(0, 0, tokens).narrow(1, 0, d) - expected).abs().max().item<double>() < 1e-13);
  CHECK(written[tokens].abs().max().item<double>() == 0);

  // A bias in coordinate d + 1 of v does nothing there: that coordinate is 0 on ordinary tokens.
  at::Tensor biased = qk.clone();
  biased[d][d] = -3;
  const at::Tensor other = at::exp(at::matmul(at::matmul(wide, biased), wide.t())) * mask;
  CHECK((other / other.sum(1, true) - weights / weights.sum(1, true)).narrow(0, 0, tokens).abs().max().item<double>() <
        1e-15);
}

// Theorem 6: under the mask I a head is a linear map, whatever it scores. Theorem 7: with unit matrices for up and
// down, the neurons are an activation alone.
TEST_CASE("lower_mlp_to_heads: linear maps and activations alone are heads too") {
  at::manual_seed(6);
  const at::Tensor x = at::randn({5, d}, at::kDouble), qk = at::randn({d, d}, at::kDouble),
                   ov = at::randn({d, d}, at::kDouble);
  const at::Tensor weights = at::exp(at::matmul(at::matmul(x, qk), x.t())) * at::eye(5, at::kDouble);
  const at::Tensor written = at::matmul(at::matmul(weights / weights.sum(1, true), x), ov);
  CHECK((written - at::matmul(x, ov)).abs().max().item<double>() < 1e-13);

  const Architecture a = with_mlp(R"({"width": 8, "bias": {"up": false, "down": false}})");
  Tensors tensors = generic_tensors(a);
  for (const char* name : {"blocks.0.mlp.up.weight", "blocks.0.mlp.down.weight"}) {
    tensors[name] = at::eye(d, at::kDouble);
  }
  const Model lowered = step_of({a, as_weights(tensors)}).proposal.after;
  const at::Tensor q = lowered.weights.at("blocks.0.mlp.query.weight").load();
  for (int64_t i = 0; i < d; ++i) {
    const std::vector<double> head = one_head(x, q[i], q[i]);
    for (int64_t token = 0; token < 5; ++token) {
      CHECK(head[token] == doctest::Approx(silu(x[token][i].item<double>())).epsilon(1e-12));
    }
  }
}

TEST_CASE("lower_mlp_to_heads: the same function, and exactly as many parameters as promised") {
  struct Case {
    std::string name;
    Architecture architecture;
    int64_t saved;
    bool rounds = false;
  };
  const std::string glu = R"({"activation": "sigmoid", "gated": true, "bias": {"up": false}})";
  for (const Case& c : std::vector<Case>{
           {"silu", with_mlp(), 0},
           {"no up bias", with_mlp(R"({"bias": {"up": false}})"), -L * f},
           {"no biases", with_mlp(R"({"bias": {"up": false, "down": false}})"), -L * f},
           {"quick_gelu is a SiLU", with_mlp(R"({"activation": "quick_gelu"})"), 0, true},
           {"sigmoid-gated", with_mlp(R"({"activation": "sigmoid", "gated": true, "bias": {"gate": true}})"), 0},
           {"sigmoid-gated without biases", with_mlp(glu), -2 * L * f},
           {"norms of all places",
            with_mlp(R"({"norm": {"kind": "layer", "bias": true}, "output_norm": {"kind": "rms"}})"), 0},
           {"post-norm", with_mlp(R"({"norm": {"kind": "layer", "place": "post"}})"), 0},
           {"no skip", with_mlp(R"({"skip": false})"), 0},
           {"parallel", with_mlp("{}", R"({"wiring": "parallel"})"), 0},
           {"shared blocks", with_mlp("{}", "{}", R"({"layers": [1, 0, 0, 1]})"), 0},
           {"a first-layer table",
            with_mlp("{}", "{}", R"({"first_layer": "table", "embedding": {"position": "none"}})"), 0},
       }) {
    INFO(c.name);
    const Model before{c.architecture, as_weights(generic_tensors(c.architecture))};
    const PassStep step = step_of(before);
    REQUIRE(step.proposal.applies);
    CHECK(step.saved_parameters == c.saved);
    CHECK(step.proposal.approximation.empty());
    CHECK((step.proposal.roundings > 0) == c.rounds);
    CHECK(difference(before, step.proposal.after) < 1e-13);
    CHECK(step.proposal.notes.size() == (c.saved == 0 ? 1 : 2));
    for (const Block& block : step.proposal.after.architecture.blocks) {
      CHECK(std::holds_alternative<NeuronHeads>(block.mlp->kind));
    }
  }
}

TEST_CASE("lower_mlp_to_heads: gates that are no sigmoid and other activations are refused, and why") {
  struct Case {
    std::string mlp, found, remedy;
  };
  for (const Case& c : std::vector<Case>{
           {R"({"gated": true})", "silu-gated", "none: silu(g) v is a product of three, a head makes one of two"},
           {R"({"gated": true, "activation": "gelu"})", "gelu-gated",
            "none: gelu(g) v is a product of three, a head makes one of two"},
           {R"({"activation": "gelu"})", "gelu", "approximate=gelu, within --max-error"},
           {R"({"activation": "relu"})", "relu", "approximate=relu, within --max-error"},
           {R"({"activation": "tanh"})", "tanh", "none: it is not a sigmoid times its input"},
       }) {
    const PassStep step = step_of({with_mlp(c.mlp)});
    CHECK_FALSE(step.proposal.applies);
    REQUIRE(step.proposal.preconditions.size() == L);
    CHECK(step.proposal.preconditions[1].where == "blocks.1.mlp");
    CHECK(step.proposal.preconditions[1].found == c.found);
    CHECK(step.proposal.preconditions[1].remedy == c.remedy);
  }
  CHECK(step_of({with_mlp(R"({"kind": "heads", "activation": null, "bias": null})")}).proposal.preconditions[0].found ==
        "neuron heads");
  CHECK(step_of({with_mlp("{}", R"({"mlp": null})")}).proposal.preconditions[0].found == "there is no MLP");
  // SwiGLU lowered as if its gate were a sigmoid is another function.
  const Architecture swiglu = with_mlp(R"({"gated": true})"),
                     glu = with_mlp(R"({"gated": true, "activation": "sigmoid"})");
  const Tensors tensors = generic_tensors(glu);
  CHECK(difference({swiglu, as_weights(tensors)}, step_of({glu, as_weights(tensors)}).proposal.after) > 1e-2);
}

TEST_CASE("lower_mlp_to_heads: the approximations are off by what they say, and no more") {
  const Worst of_gelu = worst_error(gelu, near_silu, 1.702, 0, 10);
  CHECK(of_gelu.error == doctest::Approx(0.02033).epsilon(2e-4));
  CHECK(of_gelu.at == doctest::Approx(2.270).epsilon(1e-3));
  CHECK(worst_error(gelu, near_silu, 1.702, -10, 0).error == doctest::Approx(of_gelu.error).epsilon(1e-9));
  CHECK(worst_error(gelu_tanh, near_silu, 1.702, -10, 10).error == doctest::Approx(0.02066).epsilon(2e-4));
  const auto relu = [](double x) { return std::max(x, 0.0); };
  for (const double c : {1.0, 30.0, 1000.0}) {
    const Worst of_relu = worst_error(relu, near_silu, c, 0, 10 / c);
    CHECK(c * of_relu.error == doctest::Approx(0.27846).epsilon(1e-4));
    CHECK(c * of_relu.at == doctest::Approx(1.2785).epsilon(1e-3));
  }
}

TEST_CASE("lower_mlp_to_heads: what is approximate says so, and is as far off as its activation") {
  for (const char* activation : {"gelu", "gelu_tanh"}) {
    const Architecture a = with_mlp(nlohmann::json{{"activation", activation}}.dump());
    const Tensors old = generic_tensors(a);
    const PassStep step = step_of({a, as_weights(old)}, {{"approximate", "gelu"}});
    REQUIRE(step.proposal.applies);
    CHECK(step.proposal.approximation == fmt::format("GELU(z) ≈ SiLU(1.702 z) / 1.702, off by up to {} in a neuron",
                                                     std::string(activation) == "gelu" ? "0.0204" : "0.0207"));
    const double error = difference({a, as_weights(old)}, step.proposal.after);
    CHECK(error > 1e-5);
    CHECK(error < 0.1);
    // It is the quick_gelu model exactly.
    const Architecture quick = with_mlp(R"({"activation": "quick_gelu"})");
    CHECK(difference({quick, as_weights(old)}, step.proposal.after) < 1e-13);
    const at::Tensor query = step.proposal.after.weights.at("blocks.0.mlp.query.weight").load();
    CHECK(at::allclose(query.select(1, d), 1.702 * old.at("blocks.0.mlp.up.bias"), 1e-14, 0));
  }
  const Architecture a = with_mlp(R"({"activation": "relu"})");
  const Model before{a, as_weights(generic_tensors(a))};
  double last = 1;
  for (const char* sharpness : {"10", "1000", "100000"}) {
    const PassStep step = step_of(before, {{"approximate", "relu"}, {"sharpness", sharpness}});
    REQUIRE(step.proposal.applies);
    const double error = difference(before, step.proposal.after);
    CHECK(error < last / 20);
    CHECK(error > 0);
    last = error;
  }
  CHECK(step_of(before, {{"approximate", "relu"}, {"sharpness", "50"}}).proposal.approximation ==
        "ReLU(z) ≈ SiLU(50 z) / 50, off by up to 0.00557 in a neuron");
  CHECK_FALSE(step_of(before, {{"approximate", "gelu"}}).proposal.applies);
  CHECK_THROWS_WITH_AS(step_of(before, {{"sharpness", "0"}}),
                       "lower_mlp_to_heads{sharpness=0}: expected a number from 1 on, by which SiLU is sharpened",
                       InputError);
  const Pipeline asked = run_passes(before, {call_of(find_pass("lower_mlp_to_heads"), {{"approximate", "relu"}})});
  CHECK(is_approximate(asked));
  CHECK_FALSE(is_approximate(choose_passes(before)));
}

}  // namespace pare::test
