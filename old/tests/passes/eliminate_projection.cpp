// Paper 0 against its own formulas: every weight of a rewritten model computed a second time from the theorem, and the
// same logits for everything that attention may contain.

#include "pare/passes/pass.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "pare/algebra/basis.h"
#include "pare/algebra/operations.h"
#include "pare/rewrite/pipeline.h"
#include "pare/support/error.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8, V = 19, context = 12, L = 3;
const std::string all_biases = R"("bias": {"query": true, "key": true, "value": true, "output": true})";

// Theorem 4.2's form: a skip around attention alone, no norm. Patches change parts of it; "null" is no MLP.
Architecture skip_only(const std::string& model = "{}", const std::string& attention = "{}",
                       const std::string& mlp = "{}", int64_t blocks = L) {
  nlohmann::json block = nlohmann::json::parse(R"({"attention": {"heads": 2, "head_width": 4},
      "mlp": {"width": 11, "activation": "gelu", "skip": false}})");
  block["repeat"] = blocks;
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  block["mlp"].merge_patch(nlohmann::json::parse(mlp));
  nlohmann::json text = {{"width", d}, {"vocab", V}, {"context", context}, {"embedding", {{"position", "learned"}}}};
  text["blocks"] = nlohmann::json::array({block});
  text.merge_patch(nlohmann::json::parse(model));
  return architecture_from_json(text, "test");
}

Model model_of(const Architecture& architecture, const Tensors& tensors) {
  return {architecture, as_weights(tensors)};
}

PassStep step_of(const Model& model, const Options& options = {}) {
  return run_passes(model, {call_of(find_pass("eliminate_projection"), options)}).steps.at(0);
}

void check_same(const Model& before, const Model& after, double roundings) {
  CHECK(difference(before, after) <= 1e-13 * roundings);
}

Tensors loaded(const Model& model) {
  Tensors tensors;
  for (const auto& [name, weight] : model.weights) {
    tensors[name] = weight.load();
  }
  return tensors;
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a - b).abs().max().item<double>() <= 1e-9 * (1 + b.abs().max().item<double>());
}

at::Tensor identity(int64_t width) {
  return at::eye(width, at::kDouble);
}

at::Tensor solve(const at::Tensor& a, const at::Tensor& b) {
  return at::linalg_solve(a, b);
}

at::Tensor dual_of(const at::Tensor& a) {
  return solve(a, identity(a.size(0))).t();
}

// The Θ with now = before Θ, known from a writer with enough rows.
at::Tensor basis_between(const at::Tensor& before, const at::Tensor& now) {
  return at::matmul(at::linalg_pinv(before), now);
}

at::Tensor random_orthogonal(int64_t width, uint64_t seed) {
  at::manual_seed(seed);
  return std::get<0>(at::linalg_qr(at::randn({width, width}, at::kDouble)));
}

at::Tensor of_condition(int64_t width, double condition, uint64_t seed) {
  const at::Tensor values = at::pow(condition, at::linspace(0, -1, width, at::kDouble));
  return at::matmul(random_orthogonal(width, seed) * values, random_orthogonal(width, seed + 1));
}

const Precondition& first_failed(const PassStep& step) {
  for (const Precondition& p : step.proposal.preconditions) {
    if (!p.holds) {
      return p;
    }
  }
  FAIL("nothing was refused");
  return step.proposal.preconditions.front();
}

const Conditioning& chosen(const PassStep& step) {
  for (const Conditioning& c : step.proposal.conditioning) {
    if (c.chosen) {
      return c;
    }
  }
  FAIL("no matrix was chosen");
  return step.proposal.conditioning.front();
}

// Theorem 4.2 written out in row vectors, with D the gauge of the target's heads.
void check_theorem(const std::string& target) {
  const Architecture a = skip_only(R"({"head": {"tied": true, "bias": true}})", "{" + all_biases + "}",
                                   R"({"bias": {"up": true, "down": true}})");
  const Tensors old = generic_tensors(a);
  const PassStep step = step_of(model_of(a, old), {{"target", target.substr(0, 1)}});
  REQUIRE(step.proposal.applies);
  const Tensors now = loaded(step.proposal.after);
  const auto same = [&](const std::string& name, const at::Tensor& expected) {
    CHECK_MESSAGE(close(now.at(name), expected), name);
  };

  std::vector<at::Tensor> theta = {basis_between(old.at("embed.token.weight"), now.at("embed.token.weight"))};
  for (int64_t n = 0; n < L; ++n) {
    const std::string down = fmt::format("blocks.{}.mlp.down.weight", n);
    theta.push_back(basis_between(old.at(down).t(), now.at(down).t()));
  }
  CHECK(close(theta.back(), dual_of(theta.front())));  // so that (E Θ)ᵀ is still the head
  CHECK(step.proposal.after.architecture.head.tied);
  same("embed.position.weight", at::matmul(old.at("embed.position.weight"), theta[0]));
  same("head.bias", old.at("head.bias"));

  for (size_t n = 0; n < L; ++n) {
    const std::string attention = fmt::format("blocks.{}.attention.", n), mlp = fmt::format("blocks.{}.mlp.", n);
    const auto row = [&](const std::string& name) { return old.at(name + ".weight").t(); };
    const at::Tensor gauge = solve(row(attention + target), theta[n]);
    CHECK(gauge.narrow(0, 0, 4).narrow(1, 4, 4).abs().max().item<double>() < 1e-9);  // head by head
    CHECK(gauge.narrow(0, 4, 4).narrow(1, 0, 4).abs().max().item<double>() < 1e-9);
    std::map<std::string, at::Tensor> gauges = {{"query", identity(d)}, {"key", identity(d)}, {"value", identity(d)}};
    gauges[target] = gauge;
    if (target != "value") {
      gauges[target == "query" ? "key" : "query"] = dual_of(gauge);
    }
    for (const auto& [name, g] : gauges) {
      same(attention + name + ".bias", at::matmul(old.at(attention + name + ".bias"), g));
      if (name != target) {
        same(attention + name + ".weight", solve(theta[n], at::matmul(row(attention + name), g)).t());
      }
    }
    CHECK_FALSE(now.contains(attention + target + ".weight"));
    same(attention + "output.weight", at::matmul(solve(gauges["value"], row(attention + "output")), theta[n]).t());
    same(attention + "output.bias", at::matmul(old.at(attention + "output.bias"), theta[n]));
    same(mlp + "up.weight", solve(theta[n], row(mlp + "up")).t());
    same(mlp + "up.bias", old.at(mlp + "up.bias"));
    same(mlp + "down.bias", at::matmul(old.at(mlp + "down.bias"), theta[n + 1]));
  }
}

struct Case {
  std::string name;
  Architecture architecture;
  int64_t saved;
  Options options = {};
};

std::vector<Case> exact_cases() {
  const std::string tied = R"({"head": {"tied": true}})", skip = R"({"skip": true})";
  const std::string vision =
      R"({"task": "classifier", "vocab": 0, "context": 5, "head": {"classes": 3},
          "embedding": {"position": "learned", "class_token": true, "patch": {"size": 2, "channels": 2, "image": 4}}})";
  return {
      {"4.2 untied", skip_only(), L * d * d},
      {"4.2 tied", skip_only(tied), L * d * d},
      {"biases", skip_only(R"({"head": {"bias": true}})", "{" + all_biases + "}", R"({"bias": {"down": true}})"),
       L * d * d},
      {"gated, biases",
       skip_only(tied, "{" + all_biases + "}", R"({"gated": true, "bias": {"up": true, "gate": true, "down": true}})"),
       L * d * d},
      {"rope", skip_only("{}", R"({"rope": {"theta": 100}})"), L * d * d},
      {"rope interleaved", skip_only("{}", R"({"rope": {"layout": "interleaved"}, )" + all_biases + "}"), L * d * d},
      {"rope in part", skip_only(tied, R"({"rope": {"width": 2}, )" + all_biases + "}"), L * d * d},
      {"rope in part, interleaved", skip_only("{}", R"({"rope": {"width": 2, "layout": "interleaved"}})"), L * d * d},
      {"rope, target k",
       skip_only("{}", R"({"rope": {"width": 2}, )" + all_biases + "}"),
       L * d * d,
       {{"target", "k"}}},
      {"one key/value head", skip_only("{}", R"({"kv_heads": 1, )" + all_biases + "}"), L * d * d},
      {"qk-norm", skip_only("{}", R"({"qk_norm": {"kind": "rms"}, "rope": {}})"), L * d * d},
      {"softcap", skip_only(tied, R"({"softcap": 0.7})"), L * d * d},
      {"gate", skip_only("{}", R"({"gate": "position"})"), L * d * d},
      {"alibi, window, scale", skip_only("{}", R"({"alibi": {}, "window": 3, "scale": 0.4})"), L * d * d},
      {"neuron heads", skip_only("{}", "{}", R"({"kind": "heads", "activation": null})"), L * d * d},
      {"token types", skip_only(R"({"embedding": {"types": 2}})"), L * d * d},
      {"embedding scale", skip_only(R"({"embedding": {"scale": 2.5}})"), L * d * d},
      {"factorised table", skip_only(R"({"embedding": {"factor": 5, "factor_bias": true}})"), L * d * d},
      {"factorised sum", skip_only(R"({"embedding": {"factor": 5, "factor_scope": "sum"}})"), L * d * d},
      {"head transform",
       skip_only(R"({"task": "masked_lm", "head": {"transform": {"activation": "gelu"}}})", R"({"mask": "full"})"),
       L * d * d},
      {"encoder", skip_only(R"({"task": "encoder"})", R"({"mask": "full"})"), L * d * d},
      {"patches and a class token", skip_only(vision, R"({"mask": "full"})"), L * d * d},
      {"computed positions become a table", skip_only(R"({"embedding": {"position": "sinusoidal"}})"),
       L * d * d - context * d},
      {"4.1 untied", skip_only("{}", "{}", skip), d * d},
      {"4.1 tied: the head is untied", skip_only(tied, "{}", skip), d * d - V * d},
      {"4.1 in layer 1", skip_only("{}", "{}", skip), d * d, {{"layer", "1"}, {"target", "q"}}},
      {"no MLP: one stream", skip_only("{}", "{}", "null"), d * d},
      {"no MLP and no skip", skip_only("{}", R"({"skip": false})", "null"), L * d * d},
      {"4.3 untied", skip_only(R"({"layers": [0, 0, 0]})", "{" + all_biases + "}", skip, 1), d * d},
      {"4.3 tied", skip_only(R"({"layers": [0, 0, 0], "head": {"tied": true}})", "{}", skip, 1), d * d - V * d},
      {"one block again and again", skip_only(R"({"layers": [0, 0, 0]})", "{}", "{}", 1), d * d},
      {"two blocks in turn: two streams", skip_only(R"({"layers": [0, 1, 0, 1]})", "{}", "{}", 2), 2 * d * d},
      {"there and back: one stream", skip_only(R"({"layers": [0, 1, 1, 0]})", "{}", "{}", 2), d * d},
      {"one twice, then another", skip_only(R"({"layers": [0, 0, 1, 2]})"), 2 * d * d},
      {"final norm", skip_only(R"({"final_norm": {"kind": "rms"}})"), L * d * d},
      {"final norm and a tied head: the first stays",
       skip_only(R"({"final_norm": {"kind": "rms"}, "head": {"tied": true}})"), (L - 1) * d * d},
  };
}

}  // namespace

TEST_CASE("eliminate_projection: every weight is the one of theorem 4.2, up to the gauge of the heads") {
  for (const std::string target : {"query", "key", "value"}) {
    INFO(target);
    check_theorem(target);
  }
}

TEST_CASE("eliminate_projection: without a gauge the new key is W_Q^-1 W_K itself") {
  const Architecture a = skip_only("{}", R"({"qk_norm": {"kind": "rms"}})");
  const Tensors old = generic_tensors(a);
  const Tensors now = loaded(step_of(model_of(a, old), {{"target", "q"}}).proposal.after);
  const at::Tensor query = old.at("blocks.0.attention.query.weight").t();
  CHECK(close(now.at("embed.token.weight"), at::matmul(old.at("embed.token.weight"), query)));
  CHECK(close(now.at("blocks.0.attention.key.weight").t(), solve(query, old.at("blocks.0.attention.key.weight").t())));
  CHECK(close(now.at("blocks.0.mlp.up.weight").t(), solve(query, old.at("blocks.0.mlp.up.weight").t())));
  // Untied: the last basis is I.
  CHECK(at::equal(now.at("blocks.2.mlp.down.weight"), old.at("blocks.2.mlp.down.weight")));
  CHECK(at::equal(now.at("head.weight"), old.at("head.weight")));
}

TEST_CASE("eliminate_projection: the same function in exactly as many parameters less as the theorem says") {
  for (const Case& c : exact_cases()) {
    INFO(c.name);
    const Model before = model_of(c.architecture, generic_tensors(c.architecture, 3));
    const PassStep step = step_of(before, c.options);
    REQUIRE(step.proposal.applies);
    CHECK(step.saved_parameters == c.saved);
    check_same(before, step.proposal.after, step.proposal.roundings);
    // Structure alone decides the same.
    const PassStep blind = step_of({.architecture = c.architecture}, c.options);
    CHECK(blind.saved_parameters == c.saved);
  }
}

TEST_CASE("eliminate_projection: theorem 4.1 frees one layer, the others keep their query in the new basis") {
  const Architecture a = skip_only("{}", R"({"qk_norm": {"kind": "rms"}})", R"({"skip": true})");
  const Tensors old = generic_tensors(a);
  const PassStep step = step_of(model_of(a, old), {{"target", "q"}, {"layer", "1"}});
  const Tensors now = loaded(step.proposal.after);
  const at::Tensor theta = old.at("blocks.1.attention.query.weight").t();
  CHECK_FALSE(now.contains("blocks.1.attention.query.weight"));
  for (const char* reader : {"blocks.0.attention.query", "blocks.2.attention.query", "blocks.2.mlp.up", "head"}) {
    const std::string name = std::string(reader) + ".weight";
    CHECK_MESSAGE(close(now.at(name).t(), solve(theta, old.at(name).t())), name);
  }
  CHECK_THROWS_WITH_AS(step_of(model_of(a, old), {{"layer", "3"}}),
                       "eliminate_projection{layer=3}: the model has 3 layers, counted from 0", InputError);
}

TEST_CASE("eliminate_projection: computed positions are stored, and an encoder's answer keeps its basis") {
  const Architecture a = skip_only(R"({"embedding": {"position": "sinusoidal"}})");
  const PassStep step = step_of(model_of(a, generic_tensors(a)));
  CHECK(step.proposal.after.architecture.embedding.position == Position::learned);
  CHECK(step.proposal.after.weights.at("embed.position.weight").shape() == Shape{context, d});

  const Architecture encoder = skip_only(R"({"task": "encoder"})", R"({"mask": "full"})");
  const Tensors old = generic_tensors(encoder);
  const Tensors now = loaded(step_of(model_of(encoder, old)).proposal.after);
  CHECK(at::equal(now.at("blocks.2.mlp.down.weight"), old.at("blocks.2.mlp.down.weight")));
  CHECK_FALSE(at::equal(now.at("blocks.1.mlp.down.weight"), old.at("blocks.1.mlp.down.weight")));
}

TEST_CASE("eliminate_projection: an orthogonal basis keeps a tied head tied") {
  const Architecture a = skip_only(R"({"head": {"tied": true}})", "{" + all_biases + "}", R"({"skip": true})");
  Tensors tensors = generic_tensors(a);
  tensors["blocks.1.attention.query.weight"] = random_orthogonal(d, 5);
  const PassStep step = step_of(model_of(a, tensors));
  CHECK(step.proposal.after.architecture.head.tied);
  CHECK(step.saved_parameters == d * d);
  check_same(model_of(a, tensors), step.proposal.after, step.proposal.roundings);

  // With one head the gauge makes any query orthogonal.
  const Architecture one =
      skip_only(R"({"head": {"tied": true}})", R"({"heads": 1, "head_width": 8})", R"({"skip": true})");
  const Model before = model_of(one, generic_tensors(one));
  const PassStep single = step_of(before);
  CHECK(single.proposal.after.architecture.head.tied);
  CHECK(single.saved_parameters == d * d);
  CHECK(single.proposal.roundings == doctest::Approx(std::sqrt(L)));
  check_same(before, single.proposal.after, L);
}

// 275,704 -> 1,649 was seen on badly scaled weights. Here a query whose columns shrink by four orders within each head.
TEST_CASE("eliminate_projection: the gauge of the heads takes bad scales out of the condition number") {
  const Architecture a = skip_only(R"({"width": 48})", R"({"heads": 4, "head_width": 12})", "{}", 1);
  Tensors tensors = generic_tensors(a, 2);
  const at::Tensor sizes = at::pow(10.0, at::linspace(0, -4, 12, at::kDouble)).repeat({4}).unsqueeze(1);
  tensors["blocks.0.attention.query.weight"] *= sizes;  // stored [out, in]
  const PassStep step = step_of(model_of(a, tensors), {{"target", "q"}});
  const Conditioning& query = chosen(step);
  CHECK(query.matrix == in_attention(0, Slot::query));
  CHECK(query.stored == doctest::Approx(condition_number(tensors["blocks.0.attention.query.weight"])));
  CHECK(query.stored > 1e5);
  CHECK(query.gauged < query.stored / 50);
  CHECK(step.proposal.roundings == query.gauged);
  check_same(model_of(a, tensors), step.proposal.after, query.gauged);
}

TEST_CASE("eliminate_projection: one gauge for each key/value head, shared by the queries of its group") {
  const Architecture a = skip_only("{}", R"({"heads": 4, "kv_heads": 2, "head_width": 2, )" + all_biases + "}");
  Tensors tensors = generic_tensors(a, 2);
  tensors["blocks.0.attention.query.weight"] *= at::tensor({1e0, 1e-4, 1e0, 1e-4, 1e0, 1e-4, 1e0, 1e-4}).unsqueeze(1);
  const PassStep step = step_of(model_of(a, tensors), {{"target", "q"}});
  CHECK(chosen(step).gauged < chosen(step).stored / 50);
  check_same(model_of(a, tensors), step.proposal.after, step.proposal.roundings);

  const Tensors now = loaded(step.proposal.after);
  const at::Tensor theta = basis_between(tensors["embed.token.weight"], now.at("embed.token.weight"));
  const at::Tensor gauge = solve(tensors["blocks.0.attention.query.weight"].t(), theta);
  const auto head = [&](int64_t n) { return gauge.narrow(0, 2 * n, 2).narrow(1, 2 * n, 2); };
  CHECK(close(head(0), head(1)));
  CHECK(close(head(2), head(3)));
  CHECK_FALSE(close(head(0), head(2)));
  const at::Tensor stacked = at::cat({theta.narrow(1, 0, 2), theta.narrow(1, 2, 2)});  // orthonormal together
  CHECK(close(at::matmul(stacked.t(), stacked), identity(2)));
}

TEST_CASE("eliminate_projection: where RoPE turns planes only their scales are evened out") {
  for (const std::string layout : {"half", "interleaved"}) {
    INFO(layout);
    const bool half = layout == "half";
    const Architecture a = skip_only("{}", fmt::format(R"({{"rope": {{"layout": "{}"}}, {}}})", layout, all_biases));
    // Planes of a head are (0, 2), (1, 3) for half and (0, 1), (2, 3) for interleaved.
    const at::Tensor planes = half ? at::tensor({1e0, 1e-5, 1e0, 1e-5}) : at::tensor({1e0, 1e0, 1e-5, 1e-5});
    const at::Tensor within = half ? at::tensor({1e0, 1e0, 1e-5, 1e-5}) : at::tensor({1e0, 1e-5, 1e0, 1e-5});
    for (const bool even : {true, false}) {
      Tensors tensors = generic_tensors(a, 4);
      at::Tensor& query = tensors["blocks.0.attention.query.weight"];
      query = query * (even ? planes : within).to(at::kDouble).repeat({2}).unsqueeze(1);
      const PassStep step = step_of(model_of(a, tensors), {{"target", "q"}, {"layer", "0"}});
      CHECK((chosen(step).gauged < chosen(step).stored / 50) == even);
      check_same(model_of(a, tensors), step.proposal.after, step.proposal.roundings);
    }
  }
}

TEST_CASE("eliminate_projection: what it refuses, and how it says so") {
  struct Refusal {
    std::string name;
    Architecture architecture;
    std::string where, found;
    Options options = {{"target", "q"}};
  };
  const std::string skip = R"({"skip": true})";
  for (const Refusal& r : std::vector<Refusal>{
           {"pre-norm", skip_only("{}", R"({"norm": {"kind": "layer"}})"), "blocks.0",
            "blocks.0.attention.norm writes it"},
           {"post-norm", skip_only("{}", R"({"norm": {"kind": "rms", "place": "post"}})", skip), "blocks.0",
            "blocks.0.attention.norm reads it"},
           {"embedding norm", skip_only(R"({"embedding": {"norm": {"kind": "rms"}}})", "{}", "{}", 1), "blocks.0",
            "embed.norm writes it"},
           {"final norm on the one stream", skip_only(R"({"final_norm": {"kind": "rms"}})", "{}", skip), "blocks.0",
            "norm reads it"},
           {"the answer on the one stream", skip_only(R"({"task": "encoder"})", R"({"mask": "full"})", skip),
            "blocks.0", "it is the model's answer (hidden)"},
           {"an identity key", skip_only("{}", R"({"key": "identity"})"), "blocks.0",
            "blocks.0.attention.key has no matrix"},
           {"an identity query", skip_only("{}", R"({"query": "identity"})"), "blocks.0.attention.query",
            "there is none"},
           {"keys of one head",
            skip_only("{}", R"({"kv_heads": 1})"),
            "blocks.0.attention.key",
            "it is 4 x 8",
            {{"target", "k"}}},
           {"wide heads", skip_only("{}", R"({"head_width": 6})"), "blocks.0.attention.query", "it is 12 x 8"},
       }) {
    INFO(r.name);
    const Model before = model_of(r.architecture, generic_tensors(r.architecture));
    const PassStep step = step_of(before, r.options);
    CHECK_FALSE(step.proposal.applies);
    CHECK(step.saved_parameters == 0);
    CHECK(step.proposal.after.architecture == r.architecture);
    CHECK(first_failed(step).where == r.where);
    CHECK(first_failed(step).found == r.found);
  }
}

TEST_CASE("eliminate_projection: a matrix that cannot be inverted is refused with its condition number") {
  const Architecture a = skip_only("{}", R"({"qk_norm": {"kind": "rms"}})");  // no gauge helps
  for (const auto& [condition, applies] : {std::pair(9e8, true), std::pair(1.1e9, false)}) {
    Tensors tensors = generic_tensors(a);
    tensors["blocks.1.attention.query.weight"] = of_condition(d, condition, 3);
    const PassStep step = step_of(model_of(a, tensors), {{"target", "q"}, {"layer", "1"}});
    CHECK(step.proposal.applies == applies);
    const Precondition& p = step.proposal.preconditions.at(0);
    CHECK(p.where == "blocks.1.attention.query");
    CHECK(p.holds == applies);
    CHECK(p.found == fmt::format("condition number {:.3g}", condition));
    CHECK(p.measured.value_or(0) == doctest::Approx(condition).epsilon(1e-4));
    CHECK(p.limit == 1e9);
  }
  // One bad layer keeps what was asked for by name; where any will do, another target takes its place.
  Tensors tensors = generic_tensors(a);
  tensors["blocks.1.attention.query.weight"][0].zero_();
  const PassStep asked = step_of(model_of(a, tensors), {{"target", "q"}});
  CHECK_FALSE(asked.proposal.applies);
  CHECK(first_failed(asked).where == "blocks.1.attention.query");
  const PassStep best = step_of(model_of(a, tensors));
  CHECK(best.saved_parameters == L * d * d);
  check_same(model_of(a, tensors), best.proposal.after, best.proposal.roundings);
}

// Two heads whose column spaces almost coincide: no gauge changes that, so cond(Θ) is what the test says.
TEST_CASE("eliminate_projection: the error is about u times the condition numbers, their squares added") {
  const Architecture a = skip_only(R"({"width": 16, "vocab": 61})", R"({"heads": 2, "head_width": 8})");
  for (const double condition : {1e2, 1e4, 1e6, 1e8}) {
    Tensors tensors = generic_tensors(a, 11);
    for (int64_t n = 0; n < L; ++n) {
      const at::Tensor both = random_orthogonal(16, 20 + static_cast<uint64_t>(n));
      const double angle = 2 * std::atan(1 / condition);
      const at::Tensor first = both.narrow(0, 0, 8), second = both.narrow(0, 8, 8);
      tensors[fmt::format("blocks.{}.attention.query.weight", n)] =
          at::cat({first, std::cos(angle) * first + std::sin(angle) * second});
    }
    const Model before = model_of(a, tensors);
    const PassStep step = step_of(before, {{"target", "q"}});
    CHECK(step.proposal.roundings == doctest::Approx(std::sqrt(L) * condition).epsilon(1e-3));
    const Inputs inputs = random_inputs(a, 4, context);
    const at::Tensor expected = answer(before, inputs);
    for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
      Model stored = step.proposal.after;
      for (auto& [name, weight] : stored.weights) {
        weight = rounded(weight, dtype);
      }
      const double error = relative_error(answer(stored, inputs), expected);
      const double ratio = error / predicted_error(step.proposal.roundings, dtype);
      CHECK(ratio < 2 * std::sqrt(L));  // planted so that all err the same way: then they add up as they are
      CHECK(ratio > 1e-3);              // and the loss is real
    }
  }
}

TEST_CASE("eliminate_projection: a block run three times counts three times, collapsed scores squared") {
  const Architecture three = skip_only(R"({"layers": [0, 0, 0]})", "{}", "{}", 1);
  const PassStep again = step_of(model_of(three, generic_tensors(three)));
  CHECK(again.proposal.roundings == doctest::Approx(3 * chosen(again).gauged));
  const Architecture collapsed = skip_only("{}", R"({"scores": "collapsed"})", "{}", 1);
  const Model before = model_of(collapsed, generic_tensors(collapsed));
  const PassStep step = step_of(before);
  CHECK(step.proposal.roundings == doctest::Approx(chosen(step).gauged * chosen(step).gauged));
  check_same(before, step.proposal.after, step.proposal.roundings);
}

TEST_CASE("parse_passes: what is wrong is named, with what is nearest to it") {
  const auto complaint = [](const std::string& text) -> std::string {
    try {
      parse_passes(text);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(complaint("eliminate_projektion")
            .starts_with("there is no pass 'eliminate_projektion'; did you mean eliminate_projection? (passes: "));
  CHECK(complaint("").starts_with("there is no pass ''"));
  CHECK(complaint("drop_key_bias,,fold_value_bias").starts_with("there is no pass ''"));
  CHECK(complaint("eliminate_projection{taget=q}") ==
        "pass eliminate_projection has no option 'taget'; did you mean target? (options: target, layer)");
  CHECK(complaint("drop_key_bias{target=q}") == "pass drop_key_bias has no option 'target' (options: none)");
  CHECK(complaint("eliminate_projection{target=o}") == "eliminate_projection{target=o}: expected one of q|k|v|best");
  CHECK(complaint("eliminate_projection{layer=-1}") == "eliminate_projection{layer=-1}: expected one of all|N");
  CHECK(complaint("eliminate_projection{layer=N}") == "eliminate_projection{layer=N}: expected one of all|N");
  CHECK(complaint("eliminate_projection{target}") == "eliminate_projection{target=}: expected one of q|k|v|best");
  CHECK(complaint("eliminate_projection{target=q").starts_with("pass 'eliminate_projection{target=q': expected {"));

  const std::vector<PassCall> calls = parse_passes("drop_key_bias,eliminate_projection{layer=2,target=k}");
  REQUIRE(calls.size() == 2);
  CHECK(text_of(calls[0]) == "drop_key_bias");
  CHECK(text_of(calls[1]) == "eliminate_projection{layer=2,target=k}");
  CHECK(text_of(parse_passes("eliminate_projection")[0]) == "eliminate_projection{layer=all,target=best}");
}

}  // namespace pare::test
