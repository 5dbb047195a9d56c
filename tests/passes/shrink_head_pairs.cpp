// Every tensor of a shrunk pair against plain algebra, whom it refuses, and what pivots are good for: the leading
// block, taken as it comes, is in here as the wrong way.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/algebra/head_block.h"
#include "pare/algebra/operations.h"
#include "pare/rewrite/compatible.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 12, k = 3, H = 4, L = 2;
const std::string every_bias = R"("bias": {"query": true, "key": true, "value": true, "output": true})";

Architecture paired(const std::string& attention = "{}", const std::string& model = "{}") {
  nlohmann::json block = nlohmann::json::parse(R"({"repeat": 2, "attention": {"heads": 4, "head_width": 3},
      "mlp": {"width": 17, "activation": "gelu"}})");
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  nlohmann::json text = {{"width", d}, {"vocab", 23}, {"context", 12}, {"embedding", {{"position", "learned"}}}};
  text["blocks"] = nlohmann::json::array({block});
  text.merge_patch(nlohmann::json::parse(model));
  return architecture_from_json(text, "test");
}

PassStep shrink_step(const Model& model, const std::string& pairs = "all") {
  return run_passes(model, {call_of(find_pass("shrink_head_pairs"), {{"pairs", pairs}})}).steps.at(0);
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a - b).abs().max().item<double>() <= 1e-11 * (1 + b.abs().max().item<double>());
}

// Row j has 1 at pivot[j], 0 at the other pivots, and the stored numbers elsewhere, ascending: one entry at a time.
at::Tensor whole_head(const at::Tensor& rest, const at::Tensor& pivots) {  // [k, d - k], [k]
  at::Tensor whole = at::zeros({rest.size(0), rest.size(0) + rest.size(1)}, at::kDouble);
  std::vector<int64_t> places(pivots.data_ptr<int32_t>(), pivots.data_ptr<int32_t>() + pivots.numel());
  for (int64_t row = 0; row < rest.size(0); ++row) {
    int64_t next = 0;
    for (int64_t column = 0; column < whole.size(1); ++column) {
      const auto found = std::find(places.begin(), places.end(), column);
      if (found == places.end()) {
        whole[row][column] = rest[row][next++];
      } else {
        whole[row][column] = found - places.begin() == row ? 1 : 0;
      }
    }
  }
  return whole;
}

struct HeadBefore {
  at::Tensor matrix, bias;  // [k, d], [k]
};

// What one head of the new model must be, given the pivots that it names: B is those columns, and B⁻¹ is taken here.
void check_head(const HeadBefore& old, const at::Tensor& rest, const at::Tensor& pivots, const at::Tensor& bias,
                at::Tensor& block) {
  block = old.matrix.index_select(1, pivots.to(at::kLong));  // stored, so this is Bᵀ
  CHECK(rest.abs().max().item<double>() <= 1.0101);
  CHECK(close(whole_head(rest, pivots), at::linalg_solve(block, old.matrix)));
  if (bias.defined()) {
    CHECK(close(bias, at::linalg_solve(block, old.bias)));
  }
}

void check_algebra(int64_t kv_heads, bool biases) {
  const Architecture a = paired(fmt::format(R"({{"kv_heads": {}{}}})", kv_heads, biases ? ", " + every_bias : ""));
  const Tensors old = generic_tensors(a, 5);
  const PassStep step = shrink_step({a, as_weights(old)});
  REQUIRE(step.proposal.applies);
  CHECK(step.saved_parameters == 2 * L * kv_heads * k * k);
  Tensors now;
  for (const auto& [name, weight] : step.proposal.after.weights) {
    now[name] = weight.load();
  }
  for (const std::string at : {"blocks.0.attention.", "blocks.1.attention."}) {
    for (int64_t h = 0; h < H; ++h) {
      const int64_t g = h / (H / kv_heads);
      const auto head = [&](const Tensors& tensors, const std::string& name, int64_t number) {
        return biases || name.ends_with("weight") ? tensors.at(at + name).narrow(0, number * k, k) : at::Tensor();
      };
      at::Tensor b;
      check_head({head(old, "value.weight", g), head(old, "value.bias", g)}, now.at(at + "value.weight")[g],
                 now.at(at + "value.pivot")[g], head(now, "value.bias", g), b);
      CHECK(close(now.at(at + "output.weight").narrow(1, h * k, k),
                  at::matmul(old.at(at + "output.weight").narrow(1, h * k, k), b)));
      check_head({head(old, "key.weight", g), head(old, "key.bias", g)}, now.at(at + "key.weight")[g],
                 now.at(at + "key.pivot")[g], head(now, "key.bias", g), b);
      CHECK(close(head(now, "query.weight", h), at::matmul(b.t(), head(old, "query.weight", h))));
      if (biases) {
        CHECK(close(head(now, "query.bias", h), at::mv(b.t(), head(old, "query.bias", h))));
        CHECK(at::equal(now.at(at + "output.bias"), old.at(at + "output.bias")));
      }
    }
  }
  for (const char* same : {"embed.token.weight", "blocks.1.mlp.up.weight", "head.weight"}) {
    CHECK(at::equal(now.at(same), old.at(same)));
  }
}

at::Tensor orthonormal(int64_t rows, int64_t columns) {
  return std::get<0>(at::linalg_qr(at::randn({rows, columns}, at::kDouble)));
}

// Heads [n, k, d] of that condition number.
at::Tensor badly_conditioned(int64_t heads, double condition) {
  std::vector<at::Tensor> made;
  for (int64_t i = 0; i < heads; ++i) {
    const at::Tensor values = at::pow(condition, at::linspace(0, -1, k, at::kDouble));
    made.push_back(at::matmul(orthonormal(k, k) * values, orthonormal(d, k).t()));
  }
  return at::cat(made);
}

// Heads that are well conditioned but for their leading block.
at::Tensor bad_leading_blocks(int64_t heads, double condition) {
  std::vector<at::Tensor> made;
  for (int64_t i = 0; i < heads; ++i) {
    at::Tensor head = at::randn({k, d}, at::kDouble) / std::sqrt(static_cast<double>(d));
    head.narrow(1, 0, k).copy_(badly_conditioned(1, condition).narrow(1, 0, k));
    made.push_back(head);
  }
  return at::cat(made);
}

Model rounded_to(Model model, Dtype dtype) {
  for (auto& [name, weight] : model.weights) {
    weight = word(weight.dtype()).empty() ? weight : rounded(weight, dtype);
  }
  return model;
}

// The same model with identity blocks in the leading inputs, as a dense one.
Model leading_blocks(const Architecture& a, Tensors tensors) {
  for (int64_t n = 0; n < L; ++n) {
    const std::string at = fmt::format("blocks.{}.attention.", n);
    for (int64_t h = 0; h < H; ++h) {
      for (const auto& [own, partner] : {std::pair("value", "output"), std::pair("key", "query")}) {
        at::Tensor matrix = tensors.at(at + own + ".weight").narrow(0, h * k, k);
        const at::Tensor block = matrix.narrow(1, 0, k).clone();
        matrix.copy_(at::linalg_solve(block, matrix));
        const bool columns = std::string(partner) == "output";
        at::Tensor other = tensors.at(at + partner + ".weight").narrow(columns ? 1 : 0, h * k, k);
        other.copy_(columns ? at::matmul(other, block) : at::matmul(block.t(), other));
      }
    }
  }
  return {a, as_weights(tensors)};
}

}  // namespace

TEST_CASE("shrink_head_pairs: every tensor is what the theorem says, for the pivots that the file names") {
  for (const int64_t kv_heads : {4, 2, 1}) {
    check_algebra(kv_heads, false);
    check_algebra(kv_heads, true);
  }
}

TEST_CASE("shrink_head_pairs: the same function, and exactly as many parameters as promised") {
  struct Case {
    std::string name;
    Architecture architecture;
    int64_t saved;
    std::string pairs = "all";
  };
  const int64_t pair = L * H * k * k;
  for (const Case& c : std::vector<Case>{
           {"plain", paired(), 2 * pair},
           {"values alone", paired(), pair, "vo"},
           {"keys alone", paired(), pair, "qk"},
           {"biases", paired("{" + every_bias + "}"), 2 * pair},
           {"rope: values alone", paired(R"({"rope": {"width": 2}})"), pair},
           {"qk-norm: values alone", paired(R"({"qk_norm": {"kind": "rms"}})"), pair},
           {"query is key: values alone", paired(R"({"query": "key"})"), pair},
           {"softcap, alibi, window", paired(R"({"softcap": 1.5, "alibi": {}, "window": 3, )" + every_bias + "}"),
            2 * pair},
           {"gate", paired(R"({"gate": "position", )" + every_bias + "}"), 2 * pair},
           {"norms", paired(R"({"norm": {"kind": "layer", "bias": true}, "output_norm": {"kind": "rms"}})"), 2 * pair},
           {"identity query: values alone", paired(R"({"query": "identity"})"), pair},
           {"identity output: keys alone", paired(R"({"output": "identity"})"), pair},
           {"collapsed scores: values alone", paired(R"({"scores": "collapsed"})"), pair},
           {"inputs are cached", paired(R"({"cache": "x"})"), 2 * pair},
           {"keys of values: nothing reads two", paired(R"({"cache": "k"})"), 0},
           {"one key head", paired(R"({"kv_heads": 1})"), 2 * L * k * k},
           {"shared blocks", paired("{}", R"({"layers": [1, 0, 0, 1]})"), 2 * pair},
           {"encoder", paired(R"({"mask": "full"})", R"({"task": "encoder"})"), 2 * pair},
       }) {
    INFO(c.name);
    const Model before{c.architecture, as_weights(generic_tensors(c.architecture))};
    const PassStep step = shrink_step(before, c.pairs);
    CHECK(step.proposal.applies == (c.saved > 0));
    CHECK(step.saved_parameters == c.saved);
    CHECK(difference(before, step.proposal.after) < 1e-12);
    // Written out whole it is the same again, in the tensors of the source.
    const Model compat = compatible(step.proposal.after, c.architecture);
    CHECK(compat.architecture == c.architecture);
    CHECK(compat.weights.size() == before.weights.size());
    CHECK(difference(before, compat) < 1e-12);
  }
}

TEST_CASE("shrink_head_pairs: what it refuses, where and why") {
  struct Refusal {
    std::string attention, pairs, where, found;
    bool remedied;
  };
  for (const Refusal& r : std::vector<Refusal>{
           {R"({"rope": {"width": 2}})", "qk", "blocks.0.attention.key", "RoPE rotates 2 of 3 dimensions", true},
           {R"({"qk_norm": {"kind": "rms"}})", "qk", "blocks.0.attention.key", "the key is normalised in its own basis",
            true},
           {R"({"query": "key"})", "qk", "blocks.0.attention.key", "the query is the key", true},
           {R"({"query": "identity"})", "qk", "blocks.0.attention.key", "there is none", true},
           {R"({"output": "identity"})", "vo", "blocks.0.attention.value", "there is none", true},
           {R"({"value": "identity"})", "vo", "blocks.0.attention.value", "it has no matrix", false},
           {R"({"pairs": {"value_output": "shrunk"}})", "vo", "blocks.0.attention.value", "it is shrunk already",
            false},
           {R"({"values": "collapsed"})", "vo", "blocks.0.attention.value", "it is one with the output", false},
           {R"({"scores": "collapsed"})", "qk", "blocks.0.attention.key", "it is one with the query", false},
           {R"({"cache": "k"})", "qk", "blocks.0.attention.key", "values are computed from them", true},
           {R"({"cache": "v"})", "vo", "blocks.0.attention.value", "keys are computed from them", true},
           {R"({"cache": "k"})", "vo", "blocks.0.attention.value", "it is computed from the key", false},
           {R"({"heads": 1, "head_width": 12})", "vo", "blocks.0.attention.value", "12 and 12", true},
           {R"({"heads": 2, "head_width": 13})", "qk", "blocks.0.attention.key", "13 and 12", true},
       }) {
    INFO(r.attention, " ", r.pairs);
    const PassStep step = shrink_step({.architecture = paired(r.attention)}, r.pairs);
    CHECK_FALSE(step.proposal.applies);
    REQUIRE(step.proposal.preconditions.size() == L);
    CHECK(step.proposal.preconditions[0].where == r.where);
    CHECK(step.proposal.preconditions[0].found == r.found);
    CHECK(step.proposal.preconditions[0].remedy.empty() != r.remedied);
  }
  const PassStep table = shrink_step({.architecture = paired(R"({"rope": {"width": 2}})", R"({"first_layer": "table",
      "embedding": {"position": "none"}})")});
  CHECK(table.saved_parameters == H * k * k);
  CHECK(table.proposal.preconditions[0].found == "it is inside the first-layer table");
}

// However badly conditioned a head is, the rows of largest volume give it back; and in bfloat16 the leading ones do
// not.
TEST_CASE("shrink_head_pairs: from condition number 1e2 to 1e12 within what is predicted, unlike the leading block") {
  const Architecture a = paired();
  for (const bool whole : {true, false}) {
    for (const double condition : {1e2, 1e4, 1e6, 1e8, 1e10, 1e12}) {
      INFO("whole heads: ", whole, ", condition ", condition);
      at::manual_seed(3);
      Tensors tensors = generic_tensors(a);
      for (auto& [name, tensor] : tensors) {
        if (name.ends_with("value.weight") || name.ends_with("key.weight")) {
          tensor = whole ? badly_conditioned(H, condition) : bad_leading_blocks(H, condition);
        }
      }
      const Inputs inputs = random_inputs(a, 4, 12);
      for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16}) {
        const Model before = rounded_to({a, as_weights(tensors)}, dtype);
        const at::Tensor truth = answer(before, inputs);
        const PassStep step = shrink_step(before);
        REQUIRE(step.proposal.applies);
        CHECK(step.proposal.roundings == doctest::Approx(std::sqrt(2 * L)));
        const double error = relative_error(answer(rounded_to(step.proposal.after, dtype), inputs), truth);
        CHECK(error < (dtype == Dtype::f64 ? 10 : 2) * predicted_error(step.proposal.roundings, dtype));
        if (dtype == Dtype::bf16 && !whole) {
          Tensors loaded;
          for (const auto& [name, weight] : before.weights) {
            loaded[name] = load_double(weight);
          }
          const Model leading = rounded_to(leading_blocks(a, loaded), dtype);
          const double worse = relative_error(answer(leading, inputs), truth);
          CHECK(worse > (condition < 1e3 ? 3 : 30) * error);
        }
      }
    }
  }
}

TEST_CASE("shrink_head_pairs: a head without rank shrinks too, but not with a bias that it cannot hold") {
  const Architecture plain = paired();
  Tensors tensors = generic_tensors(plain);
  tensors["blocks.0.attention.value.weight"][1].zero_();
  tensors["blocks.1.attention.key.weight"].zero_();
  const Model before{plain, as_weights(tensors)};
  const PassStep step = shrink_step(before);
  CHECK(step.saved_parameters == 2 * L * H * k * k);
  CHECK(difference(before, step.proposal.after) < 1e-12);

  const Architecture biased = paired("{" + every_bias + "}");
  for (const double condition : {1e4, 1e12}) {
    INFO("condition ", condition);
    at::manual_seed(3);
    Tensors with = generic_tensors(biased);
    with["blocks.1.attention.value.weight"] = badly_conditioned(H, condition);
    const Model source{biased, as_weights(with)};
    const PassStep partial = shrink_step(source);
    const bool all = condition < 1e9;
    CHECK(partial.saved_parameters == (all ? 4 : 3) * H * k * k);
    const auto refused = std::find_if(partial.proposal.preconditions.begin(), partial.proposal.preconditions.end(),
                                      [](const Precondition& p) { return !p.holds; });
    CHECK((refused == partial.proposal.preconditions.end()) == all);
    if (!all) {
      CHECK(refused->where == "blocks.1.attention.value");
      CHECK(refused->remedy == "fold_value_bias first");
      CHECK(refused->measured.value_or(0) > 1e9);
    }
    CHECK(difference(source, partial.proposal.after) < 10 * predicted_error(partial.proposal.roundings, Dtype::f64));
    // Folded away first, there is nothing left to refuse.
    const Pipeline folded = run_passes(source, parse_passes("fold_value_bias,shrink_head_pairs"));
    CHECK(folded.steps.at(1).saved_parameters == 4 * H * k * k);
    CHECK(difference(source, folded.after) < 1e-12);
  }
}

TEST_CASE("shrink_head_pairs: spends its budget on what is best conditioned, and says what it left") {
  const Architecture a = paired(R"({"bias": {"value": true}})");
  at::manual_seed(3);
  Tensors tensors = generic_tensors(a);
  tensors["blocks.0.attention.value.weight"] = badly_conditioned(H, 1e5);
  const Model model{a, as_weights(tensors)};
  const Budget budget{1e-4, Dtype::f32, "--max-error"};
  const Proposal proposal = find_pass("shrink_head_pairs").propose(model, {{"pairs", "vo"}}, budget);
  CHECK(proposal.applies);
  CHECK(proposal.over_budget);
  CHECK(is<Dense>(proposal.after.architecture.blocks[0].attention.value));
  CHECK(is<Shrunk>(proposal.after.architecture.blocks[1].attention.value));
  REQUIRE(proposal.notes.size() == 1);
  CHECK(proposal.notes[0].starts_with("blocks.0.attention.value stays whole: predicted error "));
}

// The block is the same however many heads are chosen together, and the pivots are k different ones, ascending.
TEST_CASE("shrink_head_pairs: blocks of many heads at once are those of each head alone") {
  at::manual_seed(9);
  const at::Tensor heads = at::randn({40, 8, 4000}, at::kDouble), blocks = identity_blocks(heads);
  CHECK(rest_part(blocks).abs().max().item<double>() <= 1.0101);
  for (const int64_t h : {0, 31, 33, 39}) {
    CHECK(at::equal(pivot_part(identity_blocks(heads.narrow(0, h, 1)))[0], pivot_part(blocks)[h]));
  }
  const at::Tensor steps = pivot_part(blocks).diff(1, 1);
  CHECK(steps.min().item<double>() >= 1);
}

}  // namespace pare::test
