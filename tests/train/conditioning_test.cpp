// The distance of a matrix to the nearest orthogonal one, against its singular values; and what a run makes of it.

#include "pare/train/conditioning.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>

#include "pare/arch/architecture_json.h"
#include "pare/train/train.h"
#include "tests/support/helpers.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

// Norm-free and without MLP skips: of each of its layers one square matrix can go.
nlohmann::json bare_json(int64_t kv_heads) {
  return {{"width", 12},
          {"vocab", 11},
          {"context", 16},
          {"blocks",
           {{{"repeat", 2},
             {"attention", {{"heads", 3}, {"kv_heads", kv_heads}, {"head_width", 4}, {"rope", {{"width", 4}}}}},
             {"mlp", {{"width", 24}, {"activation", "gelu"}, {"skip", false}}}}}}};
}

std::map<std::string, at::Tensor> parameters_of(const Architecture& a, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  std::map<std::string, at::Tensor> parameters;
  for (const TensorSpec& spec : tensor_table(a)) {
    parameters[spec.name] = at::randn(spec.shape, at::kDouble);
  }
  return parameters;
}

double squares_of(const at::Tensor& matrix) {
  return (at::linalg_svdvals(matrix) - 1).square().mean().item<double>();
}

}  // namespace

TEST_CASE("the penalty is the mean of (σ - 1)² of rows scaled to length one, plane by plane, and so is its gradient") {
  const Architecture a = architecture_from_json(bare_json(1), "test");
  std::map<std::string, at::Tensor> parameters = parameters_of(a, 3);
  const ConditioningLoss loss(a, at::kCPU);
  REQUIRE(!loss.empty());
  // By plain algebra: three heads share one key head, and RoPE turns dimensions i and i + 2 of each.
  const auto scaled = [](const at::Tensor& w) {
    const at::Tensor heads = w.view({3, 2, 2, 12});  // head, half, plane
    return (heads / heads.square().sum(3).mean(at::IntArrayRef({0, 1})).sqrt().view({1, 1, 2, 1})).view({12, 12});
  };
  double expected = 0;
  for (const char* name : {"blocks.0.attention.query.weight", "blocks.1.attention.query.weight"}) {
    at::Tensor& w = parameters.at(name);
    w = 0.4 * w + 2 * at::eye(12, at::kDouble);  // far enough from singular that 24 times reach the end
    expected += squares_of(scaled(w));
    w.requires_grad_(true);
  }
  const at::Tensor found = loss.penalty(a, parameters);
  CHECK(found.item<double>() == doctest::Approx(expected).epsilon(1e-9));
  found.backward();
  const at::Tensor w = parameters.at("blocks.1.attention.query.weight"),
                   again = w.detach().clone().requires_grad_(true);
  (at::linalg_svdvals(scaled(again)) - 1).square().mean().backward();
  CHECK((w.grad() - again.grad()).abs().max().item<double>() < 1e-6);
}

TEST_CASE("a gauge of the heads, a norm that has left and an orthogonal matrix change nothing that counts") {
  const Architecture a = architecture_from_json(bare_json(3), "test");
  std::map<std::string, at::Tensor> parameters = parameters_of(a, 4);
  const ConditioningLoss loss(a, at::kCPU);
  const double before = loss.penalty(a, parameters).item<double>();
  std::map<std::string, at::Tensor> gauged = parameters;
  at::Tensor& query = gauged.at("blocks.0.attention.query.weight");
  query = query * at::tensor({2., 5., 2., 5., .1, 3., .1, 3., 7., 1., 7., 1.}, at::kDouble).unsqueeze(1);
  CHECK(loss.penalty(a, gauged).item<double>() == doctest::Approx(before).epsilon(1e-9));
  nlohmann::json normed = bare_json(3);
  normed["blocks"][0]["attention"]["norm"] = {{"kind", "rms"}};
  const Architecture with_norm = architecture_from_json(normed, "test");
  const at::Tensor gain = at::rand({12}, at::kDouble) + 0.5;
  std::map<std::string, at::Tensor> unfolded = parameters;
  for (const int block : {0, 1}) {
    const std::string at = "blocks." + std::to_string(block) + ".attention.";
    unfolded[at + "norm.weight"] = gain;
    unfolded.at(at + "query.weight") = parameters.at(at + "query.weight") / gain;
  }
  CHECK(loss.penalty(with_norm, unfolded).item<double>() == doctest::Approx(before).epsilon(1e-9));
  for (const int block : {0, 1}) {
    at::Tensor& matrix = parameters.at("blocks." + std::to_string(block) + ".attention.query.weight");
    matrix = 4 * std::get<0>(at::linalg_qr(matrix));
  }
  CHECK(loss.penalty(a, parameters).item<double>() < 1e-12);
}

TEST_CASE("a run that asks for it ends well conditioned, and says so at each measurement") {
  const TemporaryFolder folder;
  nlohmann::json json = sorting_json();
  json["architecture"] = bare_json(1);
  json["architecture"]["context"] = 32;
  json["architecture"]["vocab"] = 16;
  json.merge_patch({{"batch", 4},
                    {"steps", 60},
                    {"optimiser", {{"lr", 1e-2}, {"warmup", 0}}},
                    {"init", {{"recipe", "norm_free"}}},
                    {"evaluate", {{"every", 30}, {"batches", 1}}}});
  const auto worst_of = [&](double weight, const char* name) {
    json["conditioning"]["weight"] = weight;
    const TrainConfig config = train_config_from_json(json, "test", no_architecture);
    train(config, open_sequences(config), {.folder = folder.path() / name});
    std::vector<double> worst;
    for (const nlohmann::json& line : read_metrics(folder.path() / name)) {
      if (line.contains("validation") && line.contains("conditions")) {
        CHECK(line["conditions"].size() == 2);
        CHECK(line["predicted_error"]["float32"].get<double>() > 0);
        double most = 0;
        for (const auto& [matrix, condition] : line["conditions"].items()) {
          most = std::max(most, condition.get<double>());
        }
        worst.push_back(most);
      }
    }
    return worst;
  };
  CHECK(worst_of(0, "without").empty());
  const std::vector<double> worst = worst_of(1, "with");
  REQUIRE(worst.size() == 3);
  CHECK(worst.front() > 5);
  CHECK(worst.back() < 2);
  json["architecture"]["blocks"][0]["attention"]["norm"] = {{"kind", "rms"}};
  CHECK(says(message_of<InputError>([&] { train_config_from_json(json, "test", no_architecture); }),
             "conditioning.weight: eliminate_projection will remove no matrix"));
}

}  // namespace pare::test
