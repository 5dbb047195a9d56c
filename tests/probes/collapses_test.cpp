// Verdicts on streams whose singular values and common vector are chosen: what they are near to is known by algebra.

#include "pare/probes/collapses.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "pare/probes/recording.h"

namespace pare::test {

namespace {

constexpr int64_t n = 64;

// Sylvester's: orthogonal columns of ±1, the first all ones.
at::Tensor hadamard() {
  at::Tensor h = at::ones({1, 1}, at::kDouble);
  while (h.size(0) < n) {
    h = at::cat({at::cat({h, h}, 1), at::cat({h, -h}, 1)}, 0);
  }
  return h / std::sqrt(h.size(0));
}

// n tokens with these singular values, and no others. The first belongs to what all tokens have in common, so the
// others, as one length, are the distance to rank one; unless `opposite`, where half of the tokens have it with a
// minus.
at::Tensor tokens(const at::Tensor& values, bool opposite = false) {
  at::Tensor sizes = at::zeros({n}, at::kDouble);
  sizes.narrow(0, 0, values.size(0)).copy_(values);
  const at::Tensor left = opposite ? at::roll(hadamard(), -1, 1) : hadamard();
  return at::matmul(left * sizes, hadamard().t());
}

// One that is 1, and `count` others that together are at this distance.
at::Tensor one_and(int64_t count, double distance) {
  const double each = distance / std::sqrt((1 - distance * distance) * static_cast<double>(count));
  return at::cat({at::ones({1}, at::kDouble), at::full({count}, each, at::kDouble)});
}

double effective_rank(const at::Tensor& values) {
  return std::exp(at::special_entr(values / values.sum()).sum().item<double>());
}

// The finding for a model that makes `behind` of `embedded`, with the usual threshold.
CollapseFinding in_depth(const at::Tensor& behind, const at::Tensor& embedded = tokens(at::ones({n}, at::kDouble))) {
  ProbeResults results{.sequences = 1, .tokens = n, .shortest = n, .longest = n};
  for (const auto& [name, x] :
       {std::pair{"residual.0", embedded}, {"residual.0.mid", embedded}, {"residual.1", behind}}) {
    results.points.push_back({.name = name, .kind = PointKind::stream});
    record_ranks(results.points.back().ranks, stack_ranks(x.unsqueeze(0), {}));
  }
  return find_collapses(results, {}).at(0);
}

void check_finding(const at::Tensor& behind, CollapseVerdict verdict, double number) {
  const CollapseFinding finding = in_depth(behind);
  CHECK(std::string(word(finding.verdict)) == word(verdict));
  REQUIRE(finding.number.has_value());
  CHECK(*finding.number == doctest::Approx(number).epsilon(1e-9).scale(1));
  CHECK(finding.undecided.empty());
  CHECK(finding.place.starts_with(verdict == CollapseVerdict::none ? "residual." : "residual.1:"));
}

}  // namespace

TEST_CASE("rank in depth: one vector, one direction, or nothing at all is collapsed") {
  const at::Tensor one = at::ones({1}, at::kDouble);
  check_finding(tokens(one), CollapseVerdict::collapsed, 1);        // every token the same
  check_finding(tokens(one, true), CollapseVerdict::collapsed, 1);  // opposite tokens: distance 1, one direction
  check_finding(tokens(at::zeros({1}, at::kDouble)), CollapseVerdict::collapsed, 0);
  // What differs between tokens is 5 % of them, in many directions: the rank at 1e-3 is full, the effective rank 8.
  check_finding(tokens(one_and(n - 1, 0.05)), CollapseVerdict::collapsed, 0.05);
  CHECK(in_depth(tokens(one_and(n - 1, 0.05))).measure.find("distance to rank one") == 0);
}

TEST_CASE("rank in depth: a stream on its way to rank one is partly collapsed, whatever its rank") {
  // Distance 0.47, an effective rank of 12 in place of 64, and still rank 64 at 1e-3: one threshold saw nothing of it.
  at::Tensor values = at::cat({one_and(15, 0.47), at::full({n - 16}, 2e-3, at::kDouble)});
  const CollapseFinding finding = in_depth(tokens(values));
  check_finding(tokens(values), CollapseVerdict::partial, effective_rank(values));
  CHECK(effective_rank(values) < 14);
  CHECK(finding.measure.find("effective rank") == 0);
  CHECK(finding.place.find("distance to rank one 0.47, where the embedding has 64 and 0.992") != std::string::npos);
  // By the distance alone: more directions than half are left, but tokens are alike.
  values = one_and(n - 1, 0.45);
  CHECK(effective_rank(values) > n / 2);
  check_finding(tokens(values), CollapseVerdict::partial, 0.45);
}

TEST_CASE("rank in depth: limits are where they say") {
  const auto verdict = [](const at::Tensor& values) { return std::string(word(in_depth(tokens(values)).verdict)); };
  const double embedded = std::sqrt(63.0 / 64);
  CHECK(verdict(at::ones({33}, at::kDouble)) == "none");  // effective rank 33 of 64
  CHECK(verdict(at::ones({31}, at::kDouble)) == "partial");
  CHECK(verdict(one_and(n - 1, embedded * 0.51)) == "none");
  CHECK(verdict(one_and(n - 1, embedded * 0.49)) == "partial");
  CHECK(verdict(one_and(n - 1, 0.11)) == "partial");
  CHECK(verdict(one_and(n - 1, 0.09)) == "collapsed");
  CHECK(verdict(one_and(1, 0.15)) == "collapsed");  // effective rank 1.48
  CHECK(verdict(one_and(1, 0.20)) == "partial");    // 1.58
}

TEST_CASE("rank in depth: what is near rank one before the first layer decides nothing") {
  const at::Tensor alike = tokens(one_and(n - 1, 0.05));
  const CollapseFinding finding = in_depth(alike, alike);
  CHECK(finding.verdict == CollapseVerdict::undetermined);
  CHECK(finding.undecided == "the tokens are near rank one before the first layer, by the same rule");
}

}  // namespace pare::test
