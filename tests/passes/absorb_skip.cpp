// A skip that goes into its MLP: neurons turned round against plain sums, what a no means, and what widening costs.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "pare/algebra/flipped_neurons.h"
#include "pare/algebra/operations.h"
#include "pare/arch/count.h"
#include "pare/arch/mlp.h"
#include "pare/model/activation.h"
#include "pare/passes/pass.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8, f = 20, L = 2;

Architecture skipping(const std::string& mlp = "{}", const std::string& block_patch = "{}",
                      const std::string& model = "{}") {
  nlohmann::json block = nlohmann::json::parse(R"({"repeat": 2, "attention": {"heads": 2, "head_width": 4},
      "mlp": {"width": 20, "activation": "relu", "bias": {"up": true, "down": true}}})");
  block["mlp"].merge_patch(nlohmann::json::parse(mlp));
  block.merge_patch(nlohmann::json::parse(block_patch));
  return small_architecture(d, block, model);
}

const std::vector<int64_t> turned = {0, 2, 3, 5, 6, 7, 10, 11, 13, 16, 19};

// Down so that down[:,J] up[J,:] = wanted, and as random as that leaves it.
void plant(at::Tensor& down, const at::Tensor& up, const at::Tensor& wanted) {
  const at::Tensor j = at::tensor(turned), read = up.index_select(0, j), wrote = down.index_select(1, j);
  const at::Tensor right = (wanted - at::matmul(wrote, read));  // X read = right, X smallest
  const at::Tensor x = std::get<0>(at::linalg_lstsq(read.t(), right.t(), std::nullopt, "gelsd")).t();
  down.index_copy_(1, j, wrote + x);
}

Tensors planted(const Architecture& a, uint64_t seed = 1) {
  Tensors tensors = generic_tensors(a, seed);
  for (const char* name : {"blocks.0.mlp.", "blocks.1.mlp."}) {
    plant(tensors[std::string(name) + "down.weight"], tensors[std::string(name) + "up.weight"],
          -at::eye(d, at::kDouble));
  }
  return tensors;
}

PassStep step_of(const Model& model, const std::string& widen = "false") {
  return run_passes(model, {call_of(find_pass("absorb_skip"), {{"widen", widen}})}).steps.at(0);
}

double at2(const at::Tensor& t, int64_t i, int64_t j) {
  return t[i][j].item<double>();
}

}  // namespace

TEST_CASE("absorb_skip: the rows of J change sign, and W₂ b₁ over J joins b₂") {
  const Architecture a = skipping();
  const Tensors old = planted(a);
  const PassStep step = step_of({a, as_weights(old)});
  REQUIRE(step.proposal.applies);
  CHECK(step.saved_parameters == 0);
  CHECK(step.proposal.after.weights.size() == old.size());
  CHECK_FALSE(step.proposal.after.architecture.blocks[1].mlp->skip);
  std::vector<double> sign(f, 1);
  for (int64_t j : turned) {
    sign[j] = -1;
  }
  for (const std::string block : {"blocks.0.mlp.", "blocks.1.mlp."}) {
    const auto now = [&](const char* name) { return step.proposal.after.weights.at(block + name).load(); };
    const auto before = [&](const char* name) { return old.at(block + name); };
    CHECK(at::equal(now("down.weight"), before("down.weight")));
    for (int64_t j = 0; j < f; ++j) {
      const double s = sign[j];
      CHECK(now("up.bias")[j].item<double>() == s * before("up.bias")[j].item<double>());
      for (int64_t i = 0; i < d; ++i) {
        CHECK(at2(now("up.weight"), j, i) == s * at2(before("up.weight"), j, i));
      }
    }
    for (int64_t i = 0; i < d; ++i) {
      double expected = before("down.bias")[i].item<double>();
      for (int64_t j : turned) {
        expected += at2(before("down.weight"), i, j) * before("up.bias")[j].item<double>();
      }
      CHECK(now("down.bias")[i].item<double>() == doctest::Approx(expected).epsilon(1e-12));
    }
  }
}

TEST_CASE("absorb_skip: the same function, and exactly as many parameters as promised") {
  struct Case {
    std::string name;
    Architecture architecture;
    int64_t saved;
  };
  const std::string plain = R"({"bias": {"up": false, "down": false}})";
  for (const Case& c : std::vector<Case>{
           {"relu", skipping(), 0},
           {"gelu", skipping(R"({"activation": "gelu"})"), 0},
           {"gelu_tanh", skipping(R"({"activation": "gelu_tanh"})"), 0},
           {"quick_gelu", skipping(R"({"activation": "quick_gelu"})"), 0},
           {"silu", skipping(R"({"activation": "silu"})"), 0},
           {"no biases", skipping(plain), 0},
           {"a bias to take it is created", skipping(R"({"bias": {"down": false}})"), -L * d},
           {"a norm behind the sum", skipping(R"({"norm": {"kind": "layer", "place": "post", "bias": true}})"), 0},
           {"a norm of the attention", skipping("{}", R"({"attention": {"norm": {"kind": "rms"}, "skip": true}})"), 0},
           {"no skip around attention", skipping("{}", R"({"attention": {"skip": false}})"), 0},
           {"blocks run again", skipping("{}", "{}", R"({"layers": [0, 1, 0, 1]})"), 0},
           {"tied", skipping("{}", "{}", R"({"head": {"tied": true}})"), 0},
       }) {
    INFO(c.name);
    const Model before{c.architecture, as_weights(planted(c.architecture))};
    for (const char* widen : {"false", "true"}) {  // widening is not needed here
      const PassStep step = step_of(before, widen);
      REQUIRE(step.proposal.applies);
      CHECK(step.saved_parameters == c.saved);
      CHECK(difference(before, step.proposal.after) < 1e-12);
      CHECK(step.proposal.notes.size() == (c.saved == 0 ? 1 : 2));
    }
  }
  CHECK(step_of({skipping(R"({"bias": {"down": false}})")}).proposal.notes.at(0) ==
        "down biases have to be created: 16 parameters more");
}

TEST_CASE("absorb_skip: widening takes 4 d² parameters, and any weights") {
  for (const char* activation : {"relu", "gelu", "gelu_tanh", "quick_gelu", "silu"}) {
    for (const bool biased : {false, true}) {
      INFO(activation, biased);
      const Architecture a =
          skipping(nlohmann::json{{"activation", activation}, {"bias", {{"up", biased}, {"down", biased}}}}.dump());
      const Tensors old = generic_tensors(a);
      const Model before{a, as_weights(old)};
      CHECK_FALSE(step_of(before).proposal.applies);
      const PassStep step = step_of(before, "true");
      REQUIRE(step.proposal.applies);
      CHECK(step.saved_parameters == -L * (4 * d * d + (biased ? 2 * d : 0)));
      CHECK(step.proposal.roundings == 0);
      CHECK(difference(before, step.proposal.after) < 1e-13);
      CHECK(step.proposal.notes.at(0) ==
            (biased
                 ? "2 MLPs take 16 neurons more each, 544 parameters in all; the query that eliminate_projection can "
                   "then remove has 64"
                 : "2 MLPs take 16 neurons more each, 512 parameters in all; the query that eliminate_projection can "
                   "then remove has 64"));
      const at::Tensor up = step.proposal.after.weights.at("blocks.1.mlp.up.weight").load();
      const at::Tensor down = step.proposal.after.weights.at("blocks.1.mlp.down.weight").load();
      CHECK(at::equal(up.narrow(0, 0, f), old.at("blocks.1.mlp.up.weight")));
      CHECK(at::equal(up.narrow(0, f, d), at::eye(d, at::kDouble)));
      CHECK(at::equal(up.narrow(0, f + d, d), -at::eye(d, at::kDouble)));
      CHECK(at::equal(down.narrow(1, f, d), at::eye(d, at::kDouble)));
      CHECK(at::equal(down.narrow(1, f + d, d), -at::eye(d, at::kDouble)));
    }
  }
}

TEST_CASE("absorb_skip: a gate that a constant holds open lets the skip through in d neurons, without a rounding") {
  const at::Tensor one = at::eye(d, at::kDouble);
  for (const char* activation :
       {"relu", "relu_squared", "gelu", "gelu_tanh", "quick_gelu", "silu", "sigmoid", "tanh", "identity"}) {
    for (const auto& [up_bias, gate_bias] : {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
      INFO(activation, up_bias, gate_bias);
      const Architecture a =
          skipping(nlohmann::json{{"activation", activation},
                                  {"gated", true},
                                  {"bias", {{"up", up_bias}, {"gate", gate_bias}, {"down", up_bias}}}}
                       .dump());
      const Tensors old = generic_tensors(a);
      const Model before{a, as_weights(old)};
      const PassStep refused = step_of(before);
      CHECK_FALSE(refused.proposal.applies);
      CHECK(refused.proposal.preconditions.at(1).remedy == "widen=true, which takes 8 neurons more");
      const PassStep step = step_of(before, "true");
      REQUIRE(step.proposal.applies);
      CHECK(step.proposal.roundings == 0);
      // σ(0) = 1/2 asks for no bias; any other gate has to have one.
      const bool created = !gate_bias && activation != std::string("sigmoid");
      const int64_t biases = (up_bias ? d : 0) + (gate_bias ? d : created ? f + d : 0);
      CHECK(step.saved_parameters == -L * (3 * d * d + biases));
      CHECK(count(step.proposal.after.architecture).total == count(a).total - step.saved_parameters);
      CHECK(step_of({a, {}}, "true").saved_parameters == step.saved_parameters);  // counts need no weights
      CHECK(step.proposal.notes.at(0).starts_with("2 MLPs take 8 neurons more each, "));
      CHECK((step.proposal.notes.at(1) == "gate biases have to be created: 56 of these parameters") == created);
      const Weights& now = step.proposal.after.weights;
      const std::string mlp = "blocks.1.mlp.";
      // What the new neurons compute, from their stored numbers as each type keeps them, is x and nothing else.
      for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
        const auto stored = [&](const std::string& name) { return load_double(rounded(now.at(mlp + name), dtype)); };
        const at::Tensor x = at::randn({5, d}, at::kDouble);
        const auto added = [&](const char* name, bool biased) {
          const at::Tensor product = at::matmul(x, stored(std::string(name) + ".weight").narrow(0, f, d).t());
          return biased ? product + stored(std::string(name) + ".bias").narrow(0, f, d) : product;
        };
        const at::Tensor gate =
            activate(std::get<DenseMlp>(a.blocks[1].mlp->kind).activation, added("gate", gate_bias || created));
        const at::Tensor out = at::matmul(gate * added("up", up_bias), stored("down.weight").narrow(1, f, d).t());
        CHECK(at::equal(out, x));
      }
      CHECK(difference(before, step.proposal.after) < 1e-13);
      for (const char* name : {"up", "gate"}) {
        CHECK(at::equal(now.at(mlp + name + ".weight").load().narrow(0, 0, f), old.at(mlp + name + ".weight")));
      }
      if (created) {
        CHECK(now.at(mlp + "gate.bias").load().narrow(0, 0, f).eq(0).all().item<bool>());
      }
    }
  }
}

// Against the standard library's functions, where the activation itself has rounded what is missing away.
TEST_CASE("open_gate: what is missing of a gate that is open is nothing that float64 could tell") {
  const auto missing = [](Activation activation) -> double {  // of 1, in what α multiplies z with or tends to
    const double at = open_gate(activation).at;
    switch (activation) {
      case Activation::gelu:
        return std::erfc(at / std::sqrt(2.0)) / 2;
      case Activation::gelu_tanh:
        return 1 / (1 + std::exp(2 * std::sqrt(2 / std::acos(-1.0)) * (at + 0.044715 * at * at * at)));
      case Activation::quick_gelu:
        return 1 / (1 + std::exp(1.702 * at));
      case Activation::silu:
        return 1 / (1 + std::exp(at));
      case Activation::tanh:
        return 2 / (1 + std::exp(2 * at));
      default:
        return 0;
    }
  };
  for (const Activation activation :
       {Activation::gelu, Activation::gelu_tanh, Activation::quick_gelu, Activation::relu, Activation::relu_squared,
        Activation::silu, Activation::sigmoid, Activation::tanh, Activation::identity}) {
    const OpenGate open = open_gate(activation);
    CAPTURE(static_cast<int>(activation));
    CHECK(missing(activation) < 0x1p-64);
    for (const double number : {open.at, open.value}) {
      int exponent = 0;
      CHECK((number == 0 || std::frexp(number, &exponent) == 0.5));
    }
    CHECK(open.value > 0);
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      CHECK(activate(activation, at::full({3}, open.at, type)).to(at::kDouble).eq(open.value).all().item<bool>());
    }
  }
}

TEST_CASE("absorb_skip: the query of a gated block can go behind it, and MLPs of both kinds are counted") {
  const Architecture a = skipping(R"({"activation": "silu", "gated": true, "bias": {"up": false, "down": false}})",
                                  R"({"attention": {"skip": true}})");
  const Model before{a, as_weights(generic_tensors(a))};
  const Pipeline wide = run_passes(before, {call_of(find_pass("absorb_skip"), {{"widen", "true"}}),
                                            call_of(find_pass("eliminate_projection"), {{"target", "q"}})});
  REQUIRE(wide.steps[1].proposal.applies);
  CHECK(wide.steps[1].saved_parameters == L * d * d);
  CHECK(difference(before, wide.after) < 1e-10);
  const nlohmann::json attention = {{"heads", 2}, {"head_width", 4}};
  nlohmann::json mixed = {{"width", d}, {"vocab", 19}, {"context", 12}};
  mixed["blocks"] = {{{"attention", attention}, {"mlp", {{"width", f}, {"activation", "gelu"}}}},
                     {{"attention", attention}, {"mlp", {{"width", f}, {"activation", "gelu"}, {"gated", true}}}}};
  const Architecture both = architecture_from_json(mixed, "test");
  const PassStep step = step_of({both, as_weights(generic_tensors(both))}, "true");
  CHECK(step.proposal.notes.at(0).starts_with("2 MLPs take 8 (with a gate) or 16 neurons more each, 476 parameters"));
}

TEST_CASE("absorb_skip: the block is then attention-skip-only, and its query can go") {
  const Architecture a = skipping("{}", R"({"attention": {"skip": true}})");
  const Model before{a, as_weights(planted(a))};
  const PassCall query = call_of(find_pass("eliminate_projection"), {{"target", "q"}});
  CHECK(run_passes(before, {query}).steps[0].saved_parameters == d * d);  // one stream, one matrix
  const Pipeline both = run_passes(before, {call_of(find_pass("absorb_skip")), query});
  REQUIRE(both.steps[1].proposal.applies);
  CHECK(both.steps[1].saved_parameters == L * d * d);
  CHECK(difference(before, both.after) < 1e-10);
  const Pipeline wide =
      run_passes({a, as_weights(generic_tensors(a))}, {call_of(find_pass("absorb_skip"), {{"widen", "true"}}), query});
  CHECK(wide.steps[1].saved_parameters == L * d * d);
  CHECK(difference({a, as_weights(generic_tensors(a))}, wide.after) < 1e-10);
}

TEST_CASE("choose_passes: a skip is absorbed where that lets others save more, and only there") {
  const Architecture a = skipping("{}", R"({"attention": {"skip": true}})");
  const Model before{a, as_weights(planted(a))};
  const auto takes = [](const Pipeline& pipeline, const char* id) {
    return std::any_of(pipeline.steps.begin(), pipeline.steps.end(),
                       [&](const PassStep& step) { return step.call.pass->id == id && step.proposal.applies; });
  };
  const Pipeline chosen = choose_passes(before);
  CHECK(takes(chosen, "absorb_skip"));
  CHECK(difference(before, chosen.after) < 1e-9);
  const Pipeline generic = choose_passes({a, as_weights(generic_tensors(a))});
  CHECK_FALSE(takes(generic, "absorb_skip"));
  // One matrix more goes, and with it a pair that could have been shrunk.
  CHECK(count(generic.after.architecture).total - count(chosen.after.architecture).total == d * d - 2 * 4 * 4);
  CHECK_FALSE(takes(choose_passes({a, {}}), "absorb_skip"));  // a structure does not know
  // What it would free is over the error allowed: it is left out, and that is said.
  const Pipeline poor = choose_passes(before, {1e-15, Dtype::f64, "test"});
  CHECK_FALSE(takes(poor, "absorb_skip"));
  CHECK(std::any_of(poor.left_out.begin(), poor.left_out.end(), [](const std::string& text) {
    return text.starts_with("absorb_skip: saves nothing itself, and what it frees for others");
  }));
  // Norms before the attentions keep what the MLP's skip would free.
  const Architecture normed = skipping("{}", R"({"attention": {"norm": {"kind": "rms"}}})");
  const Pipeline kept = choose_passes({normed, as_weights(planted(normed))});
  CHECK_FALSE(takes(kept, "absorb_skip"));
  CHECK(std::find(kept.saving_nothing.begin(), kept.saving_nothing.end(), "absorb_skip") != kept.saving_nothing.end());
}

TEST_CASE("absorb_skip: what the structure refuses, and why; doing it anyway would show") {
  struct Case {
    Architecture architecture;
    std::string where, found;
  };
  for (const Case& c : std::vector<Case>{
           {skipping(R"({"norm": {"kind": "rms"}})"), "blocks.1.mlp.norm",
            "the MLP reads a norm's output, the skip does not"},
           {skipping(R"({"output_norm": {"kind": "rms"}})"), "blocks.1.mlp.output_norm", "the skip is added behind it"},
           {skipping(R"({"activation": "tanh"})"), "blocks.1.mlp", "tanh"},
           {skipping(R"({"activation": "relu_squared"})"), "blocks.1.mlp", "relu_squared"},
           {skipping("{}", R"({"wiring": "parallel"})"), "blocks.1.mlp", "attention and MLP share one skip"},
       }) {
    INFO(c.found);
    const Tensors old = planted(c.architecture);
    for (const char* widen : {"false", "true"}) {
      const PassStep step = step_of({c.architecture, as_weights(old)}, widen);
      CHECK_FALSE(step.proposal.applies);
      CHECK(step.proposal.after.architecture == c.architecture);
      REQUIRE(step.proposal.preconditions.size() == L);
      CHECK(step.proposal.preconditions[1].where == c.where);
      CHECK(step.proposal.preconditions[1].found == c.found);
      CHECK_FALSE(step.proposal.preconditions[1].remedy.empty());
    }
    if (c.architecture.blocks[0].wiring == Wiring::parallel) {
      continue;
    }
    Architecture without = c.architecture;
    Tensors anyway = old;
    for (size_t n = 0; n < 2; ++n) {
      without.blocks[n].mlp->skip = false;
      const std::string name = "blocks." + std::to_string(n) + ".mlp.up.";
      const at::Tensor j = at::tensor(turned);
      anyway[name + "weight"] = old.at(name + "weight").index_copy(0, j, -old.at(name + "weight").index_select(0, j));
      anyway[name + "bias"] = old.at(name + "bias").index_copy(0, j, -old.at(name + "bias").index_select(0, j));
    }
    CHECK(difference({c.architecture, as_weights(old)}, {without, as_weights(anyway)}) > 1e-3);
  }
  const PassStep none = step_of({skipping(R"({"skip": false})")});
  CHECK(none.proposal.preconditions[0].found == "there is no skip");
  CHECK(none.proposal.preconditions[0].remedy.empty());
  const PassStep heads = step_of({skipping(R"({"kind": "heads", "activation": null, "bias": null})")});
  CHECK(heads.proposal.preconditions[0].found == "neuron heads");
}

TEST_CASE("absorb_skip: weights that do not allow it are refused, and a no that is not certain says so") {
  const auto found = [](const Architecture& a, const Tensors& tensors) {
    const PassStep step = step_of({a, as_weights(tensors)});
    CHECK_FALSE(step.proposal.applies);
    CHECK(step.proposal.preconditions[0].remedy == "widen=true, which takes 16 neurons more");
    CHECK(step.proposal.preconditions[0].measured.value() > 1);
    return step.proposal.preconditions[0].found;
  };
  const Architecture relu = skipping();
  CHECK(found(relu, generic_tensors(relu)) == "no set of neurons comes close, and no other solution exists");
  const Architecture gelu = skipping(R"({"activation": "gelu"})");
  CHECK(found(gelu, generic_tensors(gelu)) ==
        "no set of neurons comes close; whether there is another way is open for gelu");
  const std::string up = "blocks.0.mlp.up.", down = "blocks.0.mlp.down.weight";

  const auto says = [&](const std::string& words, const std::function<void(Tensors&)>& change) {
    Tensors tensors = generic_tensors(relu);
    change(tensors);
    const std::string text = found(relu, tensors);
    CHECK_MESSAGE(text.find("; undetermined, since ") != std::string::npos, text);
    CHECK_MESSAGE(text.find(words) != std::string::npos, text);
  };
  says("up has rank 7 of 8", [&](Tensors& t) { t[up + "weight"].select(1, 0).zero_(); });
  says("down has rank 7 of 8", [&](Tensors& t) { t[down].select(0, 0).zero_(); });
  says("1 neurons read nothing", [&](Tensors& t) { t[up + "weight"].select(0, 3).zero_(); });
  says("1 neurons write nothing", [&](Tensors& t) { t[down].select(1, 3).zero_(); });
  says("2 neurons read the same direction as another", [&](Tensors& t) {
    t[up + "weight"][3].copy_(-2 * t[up + "weight"][4]);
    t[up + "bias"][3].copy_(-2 * t[up + "bias"][4]);
  });
  // Larger weights reach -I with some s between 0 and 1, so that it has to be solved for.
  const auto enlarge = [&](Tensors& t) {
    t[up + "weight"] *= 4;
    t[down] *= 4;
  };
  Tensors large = generic_tensors(relu);
  enlarge(large);
  CHECK(found(relu, large) == "no set of neurons comes close, and no other solution exists");
  says("the equations for the neurons have more than one solution", [&](Tensors& t) {
    enlarge(t);
    t[up + "weight"][3].copy_(t[up + "weight"][4]);
    t[down].select(1, 3).copy_(t[down].select(1, 4));
  });
  const Architecture wide = skipping(R"({"width": 70})");
  Tensors many = generic_tensors(wide);
  enlarge(many);
  const std::string text = found(wide, many);
  CHECK_MESSAGE(text.find("70 neurons are more than the 64 equations") != std::string::npos, text);
}

// W₁ = [I; -I] absorbs any skip without any J: so where hypotheses fail, a no would be wrong.
TEST_CASE("absorb_skip: collinear rows can absorb a skip that no signs absorb") {
  const Architecture a = skipping(R"({"width": 16, "bias": {"up": false, "down": false}})", R"({"repeat": 1})");
  Tensors tensors = generic_tensors(a);
  const at::Tensor one = at::eye(d, at::kDouble);
  tensors["blocks.0.mlp.up.weight"] = at::cat({one, -one}, 0);
  const PassStep step = step_of({a, as_weights(tensors)});
  CHECK_FALSE(step.proposal.applies);
  CHECK(step.proposal.preconditions[0].found.find("undetermined") != std::string::npos);
  Tensors absorbed = tensors;
  absorbed["blocks.0.mlp.down.weight"] = tensors["blocks.0.mlp.down.weight"] + at::cat({one, -one}, 1);
  Architecture without = a;
  without.blocks[0].mlp->skip = false;
  CHECK(difference({a, as_weights(tensors)}, {without, as_weights(absorbed)}) < 1e-13);
}

TEST_CASE("absorb_skip: a relation that holds up to the stored type's rounding is recognised, a worse one is not") {
  const Architecture a = skipping();
  const Tensors exact = planted(a);
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Weights stored;
    for (const auto& [name, weight] : as_weights(exact)) {
      stored[name] = rounded(weight, dtype);
    }
    const PassStep step = step_of({a, stored});
    REQUIRE(step.proposal.applies);
    CHECK(step.proposal.preconditions[0].measured.value() <= 1);
    const double error = difference({a, stored}, step.proposal.after);
    CHECK(error < 20 * predicted_error(step.proposal.roundings, dtype));
    CHECK(error > predicted_error(step.proposal.roundings, dtype) / 200);
  }
  Tensors moved = exact;
  moved["blocks.1.mlp.up.weight"][2][3] += 1e-9;  // far beyond a rounding of float64
  const PassStep step = step_of({a, as_weights(moved)});
  CHECK(step.proposal.applies);  // of block 0
  CHECK(step.proposal.preconditions[0].holds);
  CHECK_FALSE(step.proposal.preconditions[1].holds);
  CHECK(step.proposal.after.architecture.blocks[1].mlp->skip);
}

// Corollary 8.4.1: from a skip Z to a skip Z'. No Architecture has a matrix in its skip, so this is algebra only.
TEST_CASE("find_flips: any change of the skip's map, by the same solve") {
  at::manual_seed(3);
  const at::Tensor up = at::randn({f, d}, at::kDouble), bias = at::randn({f}, at::kDouble);
  const at::Tensor z = at::randn({d, d}, at::kDouble), other = at::randn({d, d}, at::kDouble);
  at::Tensor down = at::randn({d, f}, at::kDouble);
  plant(down, up, other - z);
  const Flips flips = find_flips({up, bias, down, 1.2e-16}, other - z);
  REQUIRE(flips.found);
  CHECK(flips.neurons == turned);
  CHECK(flips.distance < 1e-9);
  const at::Tensor x = at::randn({d, 50}, at::kDouble), j = at::tensor(turned);
  const at::Tensor scores = at::matmul(up, x) + bias.unsqueeze(1);
  const at::Tensor turned_scores = scores.index_copy(0, j, -scores.index_select(0, j));
  const at::Tensor before = at::matmul(down, at::relu(scores)) + at::matmul(z, x);
  const at::Tensor moved = at::matmul(down.index_select(1, j), bias.index_select(0, j).unsqueeze(1));
  // Turned round, J takes (Z' - Z) x and its bias away; the skip Z' brings the first back.
  const at::Tensor after = at::matmul(down, at::relu(turned_scores)) + moved + at::matmul(other, x);
  CHECK((after - before).abs().max().item<double>() < 1e-11);
  for (const double size : {0.1, 4.0}) {  // out of reach, and to be solved for
    const Flips none = find_flips({size * up, bias, size * down, 1.2e-16}, z);
    CHECK_FALSE(none.found);
    CHECK(none.open.empty());
    CHECK(std::isinf(none.residual) == (size < 1));
  }
}

}  // namespace pare::test
