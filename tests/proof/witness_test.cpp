// A verdict rests on what is checked of a witness, whoever hands it over: here the test does, and nothing is searched.

#include "pare/proof/witness.h"

#include "pare/proof/prover.h"
#include "tests/proof/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

// No norm, and skips around everything: one stream. Two groups of two heads.
const char* const plain =
    R"({"width": 8, "vocab": 30, "context": 9,
        "blocks": [{"attention": {"heads": 4, "kv_heads": 2, "head_width": 4},
                    "mlp": {"width": 6, "activation": "relu", "bias": {"up": true, "down": true}}}]})";

Proof judged(const Pair& pair, const std::vector<BlockOrder>& orders, const StreamBasis& basis = {},
             const Gauges& gauges = {}) {
  const Model reference{pair.a, as_weights(pair.ta)}, candidate{pair.b, as_weights(pair.tb)};
  Prover prover(reference, candidate, at::kCPU);
  Relations& relations = prover.in_order(orders);
  for (size_t s = 0; s < prover.reference().streams().all.size(); ++s) {
    relations.set_basis(s, basis);
  }
  relations.set_gauges(0, gauges);
  return prover.verdict();
}

// z_A = Ψ z_B: readers become A Ψ, writers Ψ⁻¹ A.
Pair in_basis(const at::Tensor& map) {
  Pair pair = pair_of(plain);
  for (const TensorSpec& spec : tensor_table(pair.a)) {
    at::Tensor& tensor = pair.tb[spec.name];
    for (const Axis& axis : spec.axes) {
      const at::Tensor along = tensor.movedim(axis.axis, -1);
      tensor = (axis.role == Role::reader ? at::matmul(along, map) : at::matmul(along, at::linalg_inv(map).t()))
                   .movedim(-1, axis.axis)
                   .contiguous();
    }
  }
  return pair;
}

at::Tensor numbers(const std::vector<int64_t>& list) {
  return at::tensor(list, at::kLong);
}

}  // namespace

TEST_CASE("a basis is checked, not believed") {
  const at::Tensor map = random_matrix(8, 7), units = at::ones({8}, at::kDouble);
  const Pair pair = in_basis(map);
  CHECK_MESSAGE(judged(pair, {}, {map, units}).complete, why(judged(pair, {}, {map, units})));
  CHECK_FALSE(judged(pair, {}).complete);
  CHECK_FALSE(judged(pair, {}, {map * (1 + 1e-9), units}).complete);
  CHECK_FALSE(judged(pair, {}, {random_matrix(8, 8), units}).complete);
}

TEST_CASE("a gauge is checked, not believed") {
  Pair pair = pair_of(plain);
  const at::Tensor gauge = random_matrix(4, 3), both = at::stack({gauge, gauge});
  at::Tensor &query = pair.tb["blocks.0.attention.query.weight"], &key = pair.tb["blocks.0.attention.key.weight"];
  key = at::matmul(gauge.t(), key.reshape({2, 4, 8})).reshape({8, 8});  // k_B = Dᵀ k_A
  CHECK_FALSE(judged(pair, {}, {}, {.scores = both}).complete);
  query = at::linalg_solve(gauge, query.reshape({4, 4, 8})).reshape({16, 8});  // q_A = D q_B
  CHECK(judged(pair, {}, {}, {.scores = both}).complete);
  CHECK_FALSE(judged(pair, {}).complete);
  // Under a wrong one the products of queries and keys still say that the two are the same, and they are.
  CHECK(judged(pair, {}, {}, {.scores = at::stack({gauge, at::eye(4, at::kDouble)})}).complete);
}

TEST_CASE("an order is checked, not believed: every neuron once, with factors that the activation lets through") {
  Pair pair = pair_of(plain);
  const at::Tensor order = numbers({2, 0, 1, 5, 3, 4}),
                   factors = at::tensor({2.0, 1.0, 0.5, 3.0, 1.0, 1.0}, at::kDouble);
  // Of the candidate's, number order[i] is the reference's i, its reading divided by factors[i].
  const at::Tensor back = order.argsort();
  at::Tensor &up = pair.tb["blocks.0.mlp.up.weight"], &bias = pair.tb["blocks.0.mlp.up.bias"],
             &down = pair.tb["blocks.0.mlp.down.weight"];
  up = (up / factors.unsqueeze(1)).index_select(0, back);
  bias = (bias / factors).index_select(0, back);
  down = (down * factors).index_select(1, back);
  const auto with = [&](const at::Tensor& index, const at::Tensor& by) {
    return judged(pair, {{.neurons = {index, {{Slot::up, by}}}}});
  };
  CHECK_MESSAGE(with(order, factors).complete, why(with(order, factors)));
  CHECK_FALSE(with(back, factors).complete);
  CHECK_FALSE(with(order, factors * 1.001).complete);
  const auto is_refused = [&](const Proof& proof) {
    return why(proof).find("cannot be in such an order") != std::string::npos;
  };
  CHECK_FALSE(is_refused(with(back, factors)));
  CHECK(is_refused(with(numbers({2, 0, 1, 5, 3, 3}), factors)));
  CHECK(is_refused(with(numbers({0, 1, 2}), factors)));
  CHECK(is_refused(with(order, -factors)));
  CHECK(is_refused(with(order, factors * 0)));
  CHECK(is_refused(judged(pair, {{.neurons = {order, {{Slot::down, factors}}}}})));
}

TEST_CASE("an order is checked, not believed: heads stay with their keys and values") {
  Pair pair = pair_of(plain);
  const at::Tensor heads = numbers({3, 2, 0, 1}), groups = numbers({1, 0});
  const auto moved = [](const at::Tensor& rows, const at::Tensor& units) {
    return rows.reshape({units.numel(), 4, -1}).index_select(0, units.argsort()).reshape(rows.sizes());
  };
  const std::string name = "blocks.0.attention.";
  for (const auto& [slot, units] : {std::pair("query", heads), {"key", groups}, {"value", groups}}) {
    at::Tensor& tensor = pair.tb[name + slot + ".weight"];
    tensor = moved(tensor, units);
  }
  at::Tensor& output = pair.tb[name + "output.weight"];
  output = moved(output.t().contiguous(), heads).t().contiguous();
  CHECK(judged(pair, {{.heads = HeadOrder{groups, heads}}}).complete);
  CHECK_FALSE(judged(pair, {}).complete);
  CHECK_FALSE(judged(pair, {{.heads = HeadOrder{groups, numbers({2, 3, 0, 1})}}}).complete);
  const Proof torn = judged(pair, {{.heads = HeadOrder{numbers({0, 1}), heads}}});
  CHECK(why(torn).find("its heads cannot be in such an order") != std::string::npos);
}
