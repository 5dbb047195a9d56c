// Runs of several seeds beside each other: what compare puts together, and what it refuses.

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "pare/train/compare.h"
#include "pare/train/run_folder.h"
#include "pare/train/train.h"
#include "tests/support/helpers.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

void run(const TrainConfig& config, const std::string& folder) {
  train(config, open_sequences(config), {.folder = folder});
}

}  // namespace

TEST_CASE("compare puts seeds together and refuses what is not fair") {
  const TemporaryFolder folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  nlohmann::json json = {{"steps", 14},
                         {"batch", 4},
                         {"optimiser", {{"warmup", 3}}},
                         {"evaluate", {{"every", 5}, {"batches", 2}}},
                         {"checkpoint", {{"every", 4}}}};
  run(sorting_config(json), path("base"));
  json["seed"] = 1;
  run(sorting_config(json), path("again"));
  json["architecture"] = {{"blocks",
                           {{{"repeat", 2},
                             {"attention", {{"heads", 2}, {"head_width", 8}}},
                             {"mlp", {{"width", 24}, {"activation", "gelu"}}}}}}};
  run(sorting_config(json), path("less"));
  const RunComparison found = compare_runs({path("base"), path("again"), path("less")});
  REQUIRE(found.rows.size() == 2);
  CHECK(found.step == 14);
  CHECK(found.rows[0].losses.size() == 2);
  const double a = found.rows[0].losses[0], b = found.rows[0].losses[1];
  CHECK(found.rows[0].loss == doctest::Approx((a + b) / 2));
  CHECK(found.rows[0].spread.value() == doctest::Approx(std::abs(a - b) / std::sqrt(2)));
  CHECK(found.rows[0].parameters - found.rows[1].parameters == 2 * 2 * 8 * 16);
  CHECK(!found.rows[1].spread);
  CHECK(found.rows[1].difference.count == 1);  // of one seed: no interval
  CHECK_FALSE(found.rows[1].difference.interval);
  CHECK(found.rows[0].outside_embeddings == found.rows[0].parameters - (16 + 32) * 16);

  // Curves against the files that they come from.
  const auto lines = [&](const char* name) { return read_metrics(path(name)); };
  std::map<int64_t, double> mean;
  for (const char* name : {"base", "again"}) {
    for (const nlohmann::json& line : lines(name)) {
      if (line.contains("loss")) {
        mean[line["step"]] += line["loss"].get<double>() / 2;
      }
    }
  }
  REQUIRE(found.window == 1);
  REQUIRE(found.rows[0].training.steps.size() == 14);
  CHECK(found.rows[0].training.loss[6] == doctest::Approx(mean.at(7)));
  CHECK(found.rows[0].training.spread.size() == 14);
  CHECK(found.rows[1].training.spread.empty());
  CHECK(found.rows[0].validation.steps == std::vector<int64_t>{0, 5, 10, 14});
  CHECK(found.rows[0].validation.loss.back() == found.rows[0].loss);
  CHECK(found.rows[1].differences.loss.back() ==
        doctest::Approx(found.rows[1].loss - b));  // of the seed that both have
  CHECK(found.rows[1].differences.spread.empty());

  json["seed"] = 0;
  run(sorting_config(json), path("less, again"));
  const std::vector<std::string> four = {path("base"), path("again"), path("less"), path("less, again")};
  const RunComparison both = compare_runs(four);
  REQUIRE(both.rows.size() == 2);
  const ComparedRuns& less = both.rows[1];  // seeds 1 and 0
  const double of_seed[] = {less.losses[1] - a, less.losses[0] - b};
  const double mean_of_both = (of_seed[0] + of_seed[1]) / 2, half = 12.7062047 * std::abs(of_seed[0] - of_seed[1]) / 2;
  REQUIRE(less.difference.interval);
  CHECK(less.difference.mean == doctest::Approx(mean_of_both));
  CHECK(less.difference.interval->most == doctest::Approx(mean_of_both + half));
  CHECK(less.differences.spread.size() == less.differences.steps.size());
  CHECK(less.differences.spread.back() == doctest::Approx(half));
  const bool told = std::abs(mean_of_both) > half;
  const std::string text = comparison_text(both);
  CHECK_MESSAGE((text.find("too few to tell") == std::string::npos) == told, text);
  CHECK_MESSAGE(text.find("equal within") == std::string::npos, text);  // no margin was named
  const std::string with_margin = comparison_text(compare_runs(four, 100));
  CHECK_MESSAGE(with_margin.find("equal within 100") != std::string::npos, with_margin);
  json["seed"] = 1;

  json["data"] = {{"seed", 3}};
  run(sorting_config(json), path("other order"));
  json["data"] = {{"seed", 0}};
  json["batch"] = 8;
  run(sorting_config(json), path("other batch"));
  const std::string message = message_of<InputError>([&] {
    compare_runs({path("base"), path("other order"), path("other batch")});
  });
  for (const char* part : {"order.seed of its data is 3, but 0", "sequences_per_step of its data is 8, but 4"}) {
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }
}

}  // namespace pare::test
