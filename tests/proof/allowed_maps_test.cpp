// What relations rest on: maps that commute with what stands between, and what is usual told by all entries.

#include "pare/proof/allowed_maps.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "pare/proof/head_relations.h"
#include "pare/proof/plain_form.h"
#include "tests/proof/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

at::Tensor rotation(int64_t size, uint64_t seed) {
  return std::get<0>(at::linalg_qr(random_matrix(size, seed)));
}

// Both sides of a pair as the prover sees them.
struct Sides {
  explicit Sides(const Pair& pair)
      : reference{pair.a, as_weights(pair.ta)},
        candidate{pair.b, as_weights(pair.tb)},
        forms(written_out(reference, candidate, at::kCPU)),
        a(reference, ModelView::Numbers::exact, at::kCPU, forms.reference),
        b(candidate, ModelView::Numbers::rounded, at::kCPU, forms.candidate),
        wide(b.in_float64()) {}

  Model reference, candidate;
  PlainForms forms;
  ModelView a, b, wide;
};

bool all_hold(const std::vector<NamedFinding>& found) {
  return std::all_of(found.begin(), found.end(), [](const auto& named) { return named.finding.holds(); });
}

const char* const plain_heads =
    R"({"width": 8, "vocab": 30, "context": 9, "blocks": [{"attention": {"heads": 2, "head_width": 4}}]})";
const char* const turning_heads =
    R"({"width": 8, "vocab": 30, "context": 9, "blocks": [{"attention": {"heads": 2, "head_width": 4, "rope": {}}}]})";
const char* const normed_heads =
    R"({"width": 8, "vocab": 30, "context": 9, "blocks": [{"attention": {"heads": 2, "head_width": 4, "qk_norm": {"kind": "rms", "gain": false}}}]})";

// q_A = D q_B and k_B = Dᵀ k_A, for every head: all relations of tensors hold, whatever D is.
bool holds_with_gauge(const char* json, const at::Tensor& gauge) {
  Pair pair = pair_of(json);
  const std::string name = "blocks.0.attention.";
  const auto heads = [](const at::Tensor& rows) { return rows.reshape({2, 4, 8}); };
  pair.tb[name + "query.weight"] = at::linalg_solve(gauge, heads(pair.ta.at(name + "query.weight"))).reshape({8, 8});
  pair.tb[name + "key.weight"] = at::matmul(gauge.t(), heads(pair.ta.at(name + "key.weight"))).reshape({8, 8});
  const Sides sides(pair);
  const HeadRelations attention(sides.a, sides.b, sides.wide, 0);
  return all_hold(attention.check({}, {}, {.scores = at::stack({gauge, gauge})}));
}

// All of it behind a norm without a gain, on a stream that the candidate has as z_A = Ψ z_B.
bool holds_behind_a_norm(const at::Tensor& map) {
  Pair pair = pair_of(
      R"({"width": 8, "vocab": 30, "context": 9, "final_norm": {"kind": "rms", "gain": false},
          "blocks": [{"attention": {"heads": 2, "head_width": 4, "norm": {"kind": "rms", "gain": false}}}]})");
  for (const char* const slot : {"query", "key", "value"}) {
    at::Tensor& tensor = pair.tb[fmt::format("blocks.0.attention.{}.weight", slot)];
    tensor = at::matmul(tensor, map);
  }
  at::Tensor& output = pair.tb["blocks.0.attention.output.weight"];
  output = at::linalg_solve(map, output);
  const Sides sides(pair);
  const BlockStreams& at = sides.a.streams().blocks[0];
  const std::vector<MapGroup> groups = groups_of_streams(sides.a, sides.b);
  CHECK(groups[at.attention_input] == MapGroup::rotation);
  const at::Tensor units = at::ones({8}, at::kDouble);
  const HeadRelations attention(sides.a, sides.b, sides.wide, 0);
  return all_hold(attention.check(stream_map(map, units, groups[at.attention_input]),
                                  stream_map(map, units, groups[at.attention_output]), {}));
}

}  // namespace

TEST_CASE("a gauge explains heads only where it commutes with what stands between, whoever found it") {
  const at::Tensor general = random_matrix(4, 3), turned = rotation(4, 4), nearly = turned * (1 + 1e-9);
  at::Tensor turning = at::zeros({4, 4}, at::kDouble);  // of layout `half`: planes (0, 2) and (1, 3)
  for (const auto& [row, column, value] :
       {std::tuple(0, 0, 2.0), {2, 2, 2.0}, {2, 0, 0.5}, {0, 2, -0.5}, {1, 1, 0.7}, {3, 3, 0.7}}) {
    turning[row][column] = value;
  }
  CHECK(holds_with_gauge(plain_heads, general));
  CHECK(holds_with_gauge(turning_heads, turning));
  CHECK(holds_with_gauge(normed_heads, turned));
  CHECK_FALSE(holds_with_gauge(turning_heads, general));
  CHECK_FALSE(holds_with_gauge(turning_heads, turned));
  CHECK_FALSE(holds_with_gauge(normed_heads, general));
  CHECK_FALSE(holds_with_gauge(normed_heads, turning));
  CHECK_FALSE(holds_with_gauge(normed_heads, nearly));  // by a million roundings
}

TEST_CASE("a basis explains what reads a norm only where it is a rotation") {
  const at::Tensor turned = rotation(8, 5);
  at::Tensor stretched = at::eye(8, at::kDouble);
  stretched[5][5] = 1.2;
  CHECK(holds_behind_a_norm(turned));
  CHECK_FALSE(holds_behind_a_norm(at::matmul(turned, stretched)));
  CHECK_FALSE(holds_behind_a_norm(turned * (1 + 1e-9)));
}

TEST_CASE("maps where none may be, and norms between different ones, are found") {
  const Pair pair = pair_of(
      R"({"width": 8, "vocab": 30, "context": 9, "final_norm": {"kind": "rms", "gain": false},
          "blocks": [{"attention": {"heads": 2, "head_width": 4, "norm": {"kind": "rms", "gain": false}}}]})");
  const Pair layered = pair_of(
      R"({"width": 8, "vocab": 30, "context": 9, "blocks": [{"attention": {"heads": 2, "head_width": 4, "norm": {"kind": "layer"}}}]})");
  const auto found = [](const Pair& of, const std::vector<at::Tensor>& maps) {
    const Sides sides(of);
    std::vector<StreamMap> all(sides.a.streams().all.size());
    for (size_t s = 0; s < all.size(); ++s) {
      all[s].map = maps[std::min(s, maps.size() - 1)];
    }
    return misplaced(sides.a, sides.b, all).size();
  };
  const at::Tensor one = rotation(8, 1), other = rotation(8, 2);
  CHECK(found(pair, {at::Tensor()}) == 0);
  CHECK(found(pair, {one}) == 0);
  CHECK(found(pair, {other, one}) > 0);
  CHECK(found(pair, {at::Tensor(), one}) > 0);
  CHECK(found(layered, {at::Tensor()}) == 0);
  CHECK(found(layered, {one}) > 0);
}

TEST_CASE("what is usual is told by all entries of a long row") {
  // Huge ones where a look at every eighth entry of a row, and every second of a column, sees mostly them.
  at::Tensor rows = at::ones({1024, 4096}, at::kDouble);
  rows.slice(0, 0, 640, 2).slice(1, 0, 2400, 8).fill_(1e6);
  CHECK(usual_size(rows).max().item<double>() < 10);
  CHECK(usual_size(at::ones({8, 4096}, at::kDouble)).sub(1).abs().max().item<double>() == 0);
}
