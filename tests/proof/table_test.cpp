// A first layer as a table: its columns are heads, in any gauge and order that heads may have, and with constants that
// nobody sees or that are in the output's bias.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "tests/proof/forms.h"

using namespace pare;
using namespace pare::test;

namespace {

std::string computing(const std::string& more) {
  return R"({"width": 12, "vocab": 40, "context": 9, "blocks": [{
      "attention": {"heads": 4, "kv_heads": 2, "head_width": 4, "norm": {"kind": "rms"},
                    "bias": {"query": true, "key": true, "value": true, "output": true})" +
         more +
         R"(}, "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms"}}}], "final_norm": {"kind": "rms"}})";
}

const std::string prefix = "blocks.0.attention.";

// What every token has: [vocab, heads, k].
struct Projected {
  at::Tensor x, query, key, value;
};

Projected projected(const Pair& pair) {
  const auto of = [&](const std::string& name) { return pair.ta.at(prefix + name); };
  const at::Tensor x = pair.ta.at("embed.token.weight");
  const at::Tensor normed =
      x * at::rsqrt(x.square().mean(1, true) + pair.a.blocks[0].attention.norm->epsilon) * of("norm.weight");
  const auto heads = [&](const std::string& name) {
    return (at::matmul(normed, of(name + ".weight").t()) + of(name + ".bias")).reshape({40, -1, 4});
  };
  return {x, heads("query"), heads("key"), heads("value")};
}

void store(Pair& pair, const Projected& rows) {
  pair.tb["embed.table.weight"] =
      at::cat({rows.x, rows.query.flatten(1), rows.key.flatten(1), rows.value.flatten(1)}, 1);
  pair.b.first_layer = FirstLayer::table;
  for (const char* gone :
       {"norm.weight", "query.weight", "query.bias", "key.weight", "key.bias", "value.weight", "value.bias"}) {
    pair.tb.erase(prefix + gone);
  }
  pair.tb.erase("embed.token.weight");
}

// q D⁻ᵀ, k D, v E⁻ᵀ for each group, and W_O E.
void change_gauges(Pair& pair, Projected& rows, const std::vector<at::Tensor>& scores,
                   const std::vector<at::Tensor>& values) {
  at::Tensor output = pair.tb.at(prefix + "output.weight").clone();
  for (int64_t h = 0; h < 4; ++h) {
    const auto g = static_cast<size_t>(h / 2);
    rows.query.select(1, h).copy_(at::matmul(rows.query.select(1, h).clone(), at::linalg_inv(scores[g]).t()));
    at::Tensor columns = output.narrow(1, h * 4, 4);
    columns.copy_(at::matmul(columns.clone(), values[g]));
  }
  for (int64_t g = 0; g < 2; ++g) {
    const auto at = static_cast<size_t>(g);
    rows.key.select(1, g).copy_(at::matmul(rows.key.select(1, g).clone(), scores[at]));
    rows.value.select(1, g).copy_(at::matmul(rows.value.select(1, g).clone(), at::linalg_inv(values[at]).t()));
  }
  pair.tb[prefix + "output.weight"] = output;
}

void change_order(Pair& pair, Projected& rows) {
  const at::Tensor groups = at::tensor({1, 0}), heads = at::tensor({3, 2, 0, 1});
  rows.query = rows.query.index_select(1, heads);
  rows.key = rows.key.index_select(1, groups);
  rows.value = rows.value.index_select(1, groups);
  pair.tb[prefix + "output.weight"] =
      pair.tb.at(prefix + "output.weight").reshape({12, 4, 4}).index_select(1, heads).reshape({12, 16});
}

void take_constants_off(Pair& pair, Projected& rows) {
  const at::Tensor value = pair.ta.at(prefix + "value.bias");
  rows.key = rows.key - pair.ta.at(prefix + "key.bias").view({2, 4});
  rows.value = rows.value - value.view({2, 4});
  const at::Tensor seen = value.view({2, 1, 4}).expand({2, 2, 4}).reshape({-1});
  pair.tb[prefix + "output.bias"] =
      pair.ta.at(prefix + "output.bias") + at::mv(pair.ta.at(prefix + "output.weight"), seen);
}

std::vector<at::Tensor> two_matrices(uint64_t seed) {
  return {random_matrix(4, seed), random_matrix(4, seed + 1)};
}

}  // namespace

TEST_CASE("table: heads in another gauge and order, and biases that nobody sees") {
  Pair pair = pair_of(computing(""));
  Projected rows = projected(pair);
  SUBCASE("as they are") {}
  SUBCASE("another gauge") {
    change_gauges(pair, rows, two_matrices(3), two_matrices(5));
  }
  SUBCASE("another order") {
    change_order(pair, rows);
  }
  SUBCASE("constants") {
    take_constants_off(pair, rows);
  }
  SUBCASE("all of it") {
    take_constants_off(pair, rows);
    change_gauges(pair, rows, two_matrices(3), two_matrices(5));
    change_order(pair, rows);
  }
  store(pair, rows);
  check_form(pair);
  std::swap(pair.a, pair.b);
  std::swap(pair.ta, pair.tb);
  const Proof back = proof_of(pair);
  CHECK_MESSAGE(back.complete, why(back));
}

TEST_CASE("table: what is no gauge, no order and no constant") {
  Pair pair = pair_of(computing(""));
  Projected rows = projected(pair);
  SUBCASE("another gauge for the values than the output has") {
    change_gauges(pair, rows, two_matrices(3), two_matrices(5));
    pair.tb[prefix + "output.weight"] = pair.ta.at(prefix + "output.weight");
  }
  SUBCASE("heads whose outputs stayed") {
    change_order(pair, rows);
    pair.tb[prefix + "output.weight"] = pair.ta.at(prefix + "output.weight");
  }
  SUBCASE("a constant in the values that no output has") {
    take_constants_off(pair, rows);
    pair.tb[prefix + "output.bias"] = pair.ta.at(prefix + "output.bias");
  }
  SUBCASE("a constant in the queries") {
    rows.query = rows.query - pair.ta.at(prefix + "query.bias").view({4, 4});
  }
  SUBCASE("a constant that one token has not") {
    rows.key = rows.key - pair.ta.at(prefix + "key.bias").view({2, 4});
    rows.key[17] += 1e-6 * pair.ta.at(prefix + "key.bias").view({2, 4});
  }
  store(pair, rows);
  CHECK(distance(pair) > float64_noise);
  const Proof proof = proof_of(pair);
  CHECK_FALSE(proof.complete);
}

// One token alone has a feature, to which keys and values are a thousand billion times as sensitive.
TEST_CASE("table: one loud token loosens no other's row") {
  Pair pair = pair_of(computing(""));
  constexpr int64_t feature = 11;
  at::Tensor x = pair.ta.at("embed.token.weight").clone();
  x.select(1, feature).zero_();
  x[0][feature] = 1;
  pair.ta["embed.token.weight"] = x;
  for (const char* loud : {"key.weight", "value.weight"}) {
    at::Tensor matrix = pair.ta.at(prefix + loud).clone();
    matrix.select(1, feature).mul_(1e13);
    pair.ta[prefix + loud] = matrix;
  }
  Projected rows = projected(pair);
  bool same = false;
  SUBCASE("as it is") {
    same = true;
  }
  SUBCASE("a key of another token") {
    rows.key[17] += 1e-3;
  }
  SUBCASE("a value of another token") {
    rows.value[17] += 1e-3;
  }
  store(pair, rows);
  const Proof proof = proof_of(pair);
  CHECK_MESSAGE(proof.complete == same, why(proof));
}

TEST_CASE("table: one strange token is named") {
  Pair pair = pair_of(computing(""));
  Projected rows = projected(pair);
  change_gauges(pair, rows, two_matrices(3), two_matrices(5));
  rows.value[39] *= 1.5;
  store(pair, rows);
  const Proof proof = proof_of(pair);
  CHECK_FALSE(proof.complete);
  CHECK(proof.strange_tokens == std::vector<int64_t>{39});
}

TEST_CASE("table: with RoPE or a softcap a key's constant is seen, and with RoPE few gauges are none") {
  for (const char* more : {R"(, "rope": {"theta": 100})", R"(, "softcap": 2)"}) {
    CAPTURE(more);
    Pair pair = pair_of(computing(more));
    Projected rows = projected(pair);
    rows.key = rows.key - pair.ta.at(prefix + "key.bias").view({2, 4});
    store(pair, rows);
    CHECK(distance(pair) > 1e-6);
    CHECK_FALSE(proof_of(pair).complete);
  }
  Pair pair = pair_of(computing(R"(, "rope": {"theta": 100})"));
  Projected rows = projected(pair);
  change_gauges(pair, rows, two_matrices(3), two_matrices(5));
  store(pair, rows);
  CHECK(distance(pair) > 1e-6);
  CHECK_FALSE(proof_of(pair).complete);
}
