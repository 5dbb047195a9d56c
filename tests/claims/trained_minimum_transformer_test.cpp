// Paper 3's claim that trains: its judge is shown runs that were never trained, and every form takes a step on images.

#include "pare/claims/trained_claims.h"

#include <doctest/doctest.h>

#include <map>

#include "tests/claims/invented_runs.h"
#include "tests/support/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

const Trial small_trial = {.scale = ClaimScale::small};
const Trial full_trial = {.scale = ClaimScale::full};

struct Accuracies {
  double mnist_full = 0.99, mnist_minimum = 0.965, cifar_full = 0.6, cifar_minimum = 0.42;
};

Outcome judged(const Trial& trial, const Accuracies& a) {
  std::vector<TrainedRun> runs;
  for (const int64_t seed : {0, 1, 2}) {
    const double more = 0.0002 * static_cast<double>(seed), less = 0.0001 * static_cast<double>(seed);
    runs.push_back(invented_run("mnist-full", seed, 1, a.mnist_full + more, 300'000));
    runs.push_back(invented_run("mnist-minimum", seed, 1, a.mnist_minimum + less, 30'000));
    runs.push_back(invented_run("cifar10-full", seed, 1, a.cifar_full + more, 1'200'000));
    runs.push_back(invented_run("cifar10-minimum", seed, 1, a.cifar_minimum + less, 120'000));
  }
  return judged_by("minimum-transformer", trial, {runs, {}});
}

std::string idx(const std::vector<int64_t>& sizes, const std::string& bytes) {
  std::string text("\0\0\x08", 3);
  text += static_cast<char>(sizes.size());
  for (const int64_t size : sizes) {
    for (const int shift : {24, 16, 8, 0}) {
      text += static_cast<char>((size >> shift) & 0xFF);
    }
  }
  return text + bytes;
}

}  // namespace

TEST_CASE("minimum-transformer: each verdict") {
  CHECK(judged(small_trial, {}).verdict == ClaimVerdict::holds_corrected);
  CHECK(judged(small_trial, {.mnist_full = 0.966, .cifar_full = 0.422}).verdict == ClaimVerdict::holds);
  CHECK(judged(small_trial, {.cifar_minimum = 0.35}).verdict == ClaimVerdict::undecided);
  CHECK(judged(full_trial, {.cifar_minimum = 0.35}).verdict == ClaimVerdict::does_not_hold);
  CHECK(judged(full_trial, {.cifar_minimum = 0.388}).verdict ==
        ClaimVerdict::undecided);  // within the noise of testing
  CHECK(judged_by("minimum-transformer", small_trial, {{}, {"mnist-full-lr0.001-seed0"}}).verdict ==
        ClaimVerdict::undecided);
  CHECK(judged_by("minimum-transformer", small_trial, {{invented_run("mnist-full", 0, 1, 0.99)}, {}}).verdict ==
        ClaimVerdict::undecided);
  CHECK(judged({}, {}).verdict == ClaimVerdict::undecided);  // smoke
}

TEST_CASE("the rate that classifies best stands for a form, and its table has shares and overdetermination") {
  std::vector<TrainedRun> runs = {invented_run("mnist-full", 0, 0.1, 0.98, 300'000)};
  TrainedRun other = invented_run("mnist-full", 0, 0.2, 0.99, 300'000);
  other.name = "mnist-full-lr0.003-seed0";
  other.rate = 0.003;
  runs.push_back(other);
  runs.push_back(invented_run("mnist-minimum", 0, 0.2, 0.96, 30'000));
  const Outcome outcome = judged_by("minimum-transformer", small_trial, {runs, {}});
  const ClaimTable& table = outcome.tables.front();
  REQUIRE(table.names == std::vector<std::string>{"full", "minimum, W_QK"});
  CHECK(table.rows[0][0] == doctest::Approx(99));
  CHECK(table.rows[0][5] == 0.003);
  CHECK(table.rows[1][3] == doctest::Approx(10));                  // % of the parameters
  CHECK(table.rows[1][4] == doctest::Approx(600'000 / 30'000.0));  // ten outputs of 60,000 images
}

TEST_CASE("forms have the paper's shares of the parameters, and each takes a step on images") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "mnist");
  std::string pixels, labels;
  for (int64_t image = 0; image < 20; ++image) {
    labels += static_cast<char>(image % 10);
    pixels += std::string(28 * 28, static_cast<char>(25 * (image % 10)));
  }
  for (const std::string part : {"train", "t10k"}) {
    folder.write("mnist/" + part + "-images-idx3-ubyte", idx({20, 28, 28}, pixels));
    folder.write("mnist/" + part + "-labels-idx1-ubyte", idx({20}, labels));
  }
  std::filesystem::create_directories(folder.path() / "cifar10");
  std::string records;
  for (int64_t image = 0; image < 10; ++image) {
    records += static_cast<char>(image) + std::string(3 * 32 * 32, static_cast<char>(25 * image));
  }
  folder.write("cifar10/batch.bin", records);
  const Trial trial{.scale = ClaimScale::small, .data = folder.path()};
  std::vector<PlannedRun> plan;
  for (PlannedRun& run : plan_of("minimum-transformer", trial)) {
    const bool digits = run.variant.rfind("mnist-", 0) == 0;
    if (run.seed() == 0 && (digits || run.variant == "cifar10-full" || run.variant == "cifar10-minimum")) {
      run.config = changed(run.config, {{"steps", 1}, {"batch", 2}, {"dtype", "float32"}});
      if (!digits) {  // as batches: a build may have no JPEG
        run.config = changed(run.config, {{"data.train", {"cifar10/batch.bin"}},
                                          {"data.validation", {"cifar10/batch.bin"}},
                                          {"data.format", "cifar10"}});
      }
      plan.push_back(std::move(run));
    }
  }
  std::map<std::string, double> parameters;
  const TrainedRuns runs = trained_runs("minimum-transformer", trial, plan);
  for (const TrainedRun& run : runs.all()) {
    CAPTURE(run.name);
    CHECK(run.stopped.empty());
    CHECK(run.steps == 1);
    parameters[run.variant] = static_cast<double>(run.parameters);
  }
  CHECK(parameters.size() == 14);
  CHECK(parameters["mnist-minimum"] / parameters["mnist-full"] == doctest::Approx(0.10).epsilon(0.1));
  CHECK(parameters["cifar10-minimum"] / parameters["cifar10-full"] == doctest::Approx(0.10).epsilon(0.1));
  CHECK(parameters["mnist-symmetric"] / parameters["mnist-full"] == doctest::Approx(0.25).epsilon(0.1));
  CHECK(parameters["mnist-minimum-symmetric-4-heads"] == parameters["mnist-minimum"]);
  // Two matrices of every head, d x d: of four heads twice what they had, in each of six layers.
  CHECK(parameters["mnist-collapsed-4-heads"] == parameters["mnist-no-mlp-4-heads"] + 6 * 4 * 64 * 64);
  check_plan(plan_of("minimum-transformer", small_trial));
  check_plan(plan_of("minimum-transformer", full_trial));
  CHECK(run_of(plan_of("minimum-transformer", small_trial).front()).classifies);
}
