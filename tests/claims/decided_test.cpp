// Numbers of claims that were decided by algebra, against the same algebra written out.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "pare/checkpoint/model_folder.h"
#include "pare/claims/probed_models.h"
#include "pare/claims/report.h"
#include "tests/support/helpers.h"

using namespace pare;

namespace {

const ClaimTable& table_with(const Measured& measured, const std::string& column) {
  for (const ClaimTable& table : measured.outcome.tables) {
    if (std::ranges::find(table.columns, column) != table.columns.end()) {
      return table;
    }
  }
  FAIL("no table has a column " << column);
  return measured.outcome.tables.front();
}

const std::vector<double>& row_of(const ClaimTable& table, const std::string& name) {
  const auto found = std::ranges::find(table.names, name);
  REQUIRE(found != table.names.end());
  return table.rows[static_cast<size_t>(found - table.names.begin())];
}

}  // namespace

TEST_CASE("affine symmetries of inputs are as many as algebra says") {
  const double n = 2, d = 4;
  const Measured measured = measure(*find_claim("input-symmetries"), {.seed = 3});
  const ClaimTable& table = table_with(measured, "invariances");
  const auto check = [&](const std::string& name, double fibre, double invariances, double symmetries) {
    CAPTURE(name);
    const std::vector<double>& row = row_of(table, name);
    CHECK(row[0] == fibre);
    CHECK(row[2] == invariances);
    CHECK(row[3] == symmetries);
  };
  // A generic bilinear form x M y is kept by d / 2 dimensions of maps of both sides.
  check("one head of width d", 0, 0, d / 2);
  check("two heads of width d/2", 0, 0, 0);
  check("two heads, causal", 0, 0, 0);
  check("two heads and a skip", 0, 0, 0);
  // Each token is multiplied by a number of its own.
  check("RMSNorm (epsilon 0), two heads", n, n, n);
  check("RMSNorm (epsilon 0.1), two heads", 0, 0, 0);
  // To each token a constant is added that may be any affine function of all entries; and each has a scale.
  const double constants = n * (n * d + 1);
  check("LayerNorm (epsilon 0), two heads", 2 * n, constants + n, constants + n);
  check("two pre-norm blocks, last LayerNorm", n, constants, constants);
  // A skip carries the constant to the answer, where a map takes it only if it does not depend on the input.
  check("LayerNorm, two heads, and a skip", 0, 0, n);
  check("two pre-norm blocks, no last norm", 0, 0, n);
  check("two pre-norm blocks, last RMSNorm", 0, 0, 0);
  check("a post-norm block, as BERT's", n, 0, 0);
}

TEST_CASE("directional energy is that of the matrices written out, and its order is free") {
  const Trial trial{.seed = 1};
  const Measured measured = measure(*find_claim("directional-energy"), trial);
  const ClaimTable& layers = table_with(measured, "energy");
  const Model model = probed_models(trial, 16, 6).at(0).model;
  const Attention& attention = model.architecture.blocks[0].attention;
  REQUIRE(layers.rows.size() == model.architecture.blocks.size());
  for (size_t n = 0; n < layers.rows.size(); ++n) {
    const auto heads = [&](const std::string& name) {
      const at::Tensor stored = model.weights.at("blocks." + std::to_string(n) + ".attention." + name).load();
      return stored.to(at::kDouble).view({attention.heads, attention.head_width, -1});
    };
    const at::Tensor m = at::matmul(heads("query.weight").transpose(1, 2), heads("key.weight"));
    const double energy = ((m - m.transpose(1, 2)) / 2).square().sum({1, 2}).mean().item<double>();
    CHECK(layers.rows[n][1] == doctest::Approx(energy).epsilon(1e-9));
  }
  const ClaimTable& models = table_with(measured, "reversed");
  CHECK(models.rows[0][4] == doctest::Approx(-models.rows[0][1]));
}

TEST_CASE("a singular matrix among many is found, and the claim then fails") {
  const TemporaryFolder folder;
  Model model = probed_models({}, 8, 1).at(0).model;
  Weight& query = model.weights.at("blocks.3.attention.query.weight");
  query = Weight::made(Formula("singular"), query.dtype(), query.shape(), {query}, [](std::vector<at::Tensor>& inputs) {
    at::Tensor changed = inputs[0].clone();
    changed[0].copy_(changed[1]);  // two rows alike
    return changed;
  });
  write_native_model(folder.path() / "model", model, false, uint64_t{1} << 30);
  const Measured measured = measure(*find_claim("invertible-matrices"), {.models = {folder.path() / "model"}});
  const std::vector<std::vector<double>>& rows = measured.outcome.tables.at(0).rows;
  const double square = 4 * 12 + 1;  // query, key, value and output of twelve blocks, and the matrix before the head
  REQUIRE(rows.size() == 2);
  CHECK(rows[0][0] == square);
  CHECK(rows[0][1] == square);
  CHECK(rows[1][0] == square);
  CHECK(rows[1][1] == square - 1);
  CHECK(measured.outcome.verdict == ClaimVerdict::does_not_hold);
}
