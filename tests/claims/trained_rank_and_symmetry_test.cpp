// Paper 4's claims that train: gates and positions, MLPs of half the width, ranks while a model learns. Each judge is
// shown runs that were never trained, so that it has to say each of its verdicts.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "pare/claims/finished_run.h"
#include "pare/claims/trained_claims.h"
#include "pare/model/init.h"
#include "tests/claims/invented_runs.h"
#include "tests/support/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

const Trial small_trial = {.scale = ClaimScale::small};

using Json = nlohmann::ordered_json;

// Layers of heads whose gates follow the position as far as `slope` says; the rest is a pattern that goes with nothing.
Json gates(double slope, double pattern, size_t layers = 6, size_t heads = 12) {
  Json all = Json::array();
  for (size_t layer = 0; layer < layers; ++layer) {
    Json one = {{"asymmetry", Json::array()}, {"sensitivity", Json::array()}};
    for (size_t h = 0; h < heads; ++h) {
      const double asymmetry = 0.6 + 0.02 * static_cast<double>(h), other = h % 4 == 1 || h % 4 == 2 ? 1 : -1;
      one["asymmetry"].push_back(asymmetry);
      one["sensitivity"].push_back(static_cast<double>(layer) + slope * asymmetry + pattern * other);
    }
    all.push_back(one);
  }
  return all;
}

TrainedRun gated(const std::string& variant, int64_t seed, const Json& end) {
  TrainedRun run = invented_run(variant, seed, 1.2);
  run.seen = {{"start", gates(0, 1)}, {"end", end}};
  return run;
}

// A run whose layers' asymmetries and written ranks change by these.
TrainedRun learned(const std::string& variant, int64_t seed, const std::vector<std::pair<double, double>>& changes) {
  TrainedRun run = invented_run(variant, seed, 1.2);
  Json first = Json::array(), last = Json::array();
  for (const auto& [asymmetry, rank] : changes) {
    first.push_back({{"stream", 50}, {"stream_rank", 64}, {"attention", 30}, {"asymmetry", 0.7}, {"alignment", 0.5}});
    last.push_back({{"stream", 40},
                    {"stream_rank", 64},
                    {"attention", 30 + rank},
                    {"asymmetry", 0.7 + asymmetry},
                    {"alignment", 0.6}});
  }
  run.seen = Json::array({{{"step", 0}, {"layers", first}}, {{"step", 800}, {"layers", last}}});
  return run;
}

ClaimVerdict verdict_of(const std::string& claim, std::vector<TrainedRun> runs) {
  return judged_by(claim, small_trial, {std::move(runs), {}}).verdict;
}

}  // namespace

TEST_CASE("the slope of a position's encoding is what its differences say") {
  const int64_t tokens = 9, width = 10;
  const double step = 1e-5;
  const at::Tensor slopes = sinusoidal_slopes(tokens, width);
  REQUIRE(slopes.sizes() == at::IntArrayRef({tokens, width}));
  const auto encoding = [&](double position, int64_t column) {
    const double angle =
        position * std::pow(10000.0, -static_cast<double>(column / 2 * 2) / static_cast<double>(width));
    return column % 2 == 0 ? std::sin(angle) : std::cos(angle);
  };
  for (int64_t i = 0; i < tokens; ++i) {
    for (int64_t c = 0; c < width; ++c) {
      const double at = static_cast<double>(i);
      const double difference = (encoding(at + step, c) - encoding(at - step, c)) / (2 * step);
      CHECK(slopes[i][c].item<double>() == doctest::Approx(difference).epsilon(1e-6));
    }
  }
}

TEST_CASE("a gate that reads positions alone is as sensitive as its differences say") {
  const Architecture shape =
      train_config_from_json(changed(usual_run({}), {{"architecture.blocks.*.attention.gate", "position"}}), "test",
                             [](const std::string&) { return Architecture(); })
          .architecture;
  Model model{shape, random_weights(shape, 3, Dtype::f64, Draw::generic)};
  const std::string gate = "blocks.1.attention.gate.";
  const Weight& drawn = model.weights.at(gate + "weight");
  const Shape sizes = drawn.shape();
  const at::Tensor position = model.weights.at(gate + "position").load(), bias = model.weights.at(gate + "bias").load();
  model.weights[gate + "weight"] =
      Weight::leaf(drawn.formula(), Dtype::f64, sizes, [sizes] { return at::zeros(sizes, at::kDouble); });
  const int64_t tokens = 7, width = shape.width;
  const auto gates = gates_of(model, {.ids = at::randint(shape.vocab, {3, tokens}, at::kLong)});
  const auto gate_at = [&](double at, int64_t head) {
    double sum = bias[head].item<double>();
    for (int64_t c = 0; c < width; ++c) {
      const double angle = at * std::pow(10000.0, -static_cast<double>(c / 2 * 2) / static_cast<double>(width));
      sum += position[head][c].item<double>() * (c % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
    return 1 / (1 + std::exp(-sum));
  };
  for (int64_t head = 0; head < 4; ++head) {
    double slope = 0, mean = 0;
    for (int64_t i = 0; i < tokens; ++i) {
      const double at = static_cast<double>(i), step = 1e-5;
      slope += std::abs(gate_at(at + step, head) - gate_at(at - step, head)) / (2 * step) / tokens;
      mean += gate_at(at, head) / tokens;
    }
    const size_t h = static_cast<size_t>(head);
    CHECK(gates[1]["sensitivity"][h].get<double>() == doctest::Approx(slope).epsilon(1e-4));
    CHECK(gates[1]["gate"][h].get<double>() == doctest::Approx(mean).epsilon(1e-4));
  }
}

TEST_CASE("heads are correlated within their layers, whatever the layers differ in") {
  // Two layers far apart, in each of which the one falls as the other rises: r is -1, where all together give +.
  const Estimate found = correlation_within({{{0.1, 0.2, 0.3}, {3, 2, 1}}, {{0.7, 0.8, 0.9}, {13, 12, 11}}});
  CHECK(found.interval);
  CHECK(found.mean == doctest::Approx(-1));
  CHECK(found.count == 6);
  CHECK_FALSE(correlation_within({{{0.1, 0.2, 0.3}, {3, 2, 1}}}).interval);
  CHECK_FALSE(correlation_within({}).interval);
  // Fisher's interval, by hand: 12 heads of one layer, z ± 1.96 / 3.
  const Estimate one = correlation_within({{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},  //
                                            {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10}}});
  REQUIRE(one.interval);
  CHECK(one.interval->least == doctest::Approx(std::tanh(std::atanh(one.mean) - 1.96 / 3)));
  CHECK(one.interval->most == doctest::Approx(std::tanh(std::atanh(one.mean) + 1.96 / 3)));
}

TEST_CASE("pgop: each verdict") {
  const Json follows = gates(1, 0.01), ignores = gates(0, 1), half = gates(1, 0.1);
  CHECK(verdict_of("pgop", {gated("gate", 0, follows)}) == ClaimVerdict::holds);
  CHECK(verdict_of("pgop", {gated("gate", 0, ignores)}) == ClaimVerdict::does_not_hold);
  CHECK(verdict_of("pgop", {gated("gate", 0, follows), gated("encoder-gate", 0, ignores)}) ==
        ClaimVerdict::holds_corrected);
  CHECK(verdict_of("pgop", {gated("gate", 0, ignores), gated("encoder-gate", 0, follows)}) ==
        ClaimVerdict::holds_corrected);
  CHECK(verdict_of("pgop", {gated("gate", 0, half)}) == ClaimVerdict::undecided);
  CHECK(verdict_of("pgop", {}) == ClaimVerdict::undecided);
  Json uneven = follows;
  uneven[2] = gates(0, 0.01)[0];
  CHECK(verdict_of("pgop", {gated("gate", 0, uneven), gated("gate", 1, uneven), gated("gate", 2, uneven)}) ==
        ClaimVerdict::holds_corrected);
  CHECK(judged_by("pgop", {}, {{gated("gate", 0, follows)}, {}}).verdict == ClaimVerdict::undecided);  // smoke
  TrainedRun astray = gated("encoder-gate", 0, ignores);  // it diverged: its gates say nothing
  astray.validation = {{0, 9}, {50, 0.5}, {100, 1.2}};
  CHECK(verdict_of("pgop", {gated("gate", 0, follows), astray}) == ClaimVerdict::holds);
}

TEST_CASE("ffn-width: each verdict") {
  const auto judged = [](const std::vector<double>& wide, const std::vector<double>& gated_half) {
    std::vector<TrainedRun> runs;
    for (size_t seed = 0; seed < wide.size(); ++seed) {
      runs.push_back(invented_run("ffn4", static_cast<int64_t>(seed), wide[seed]));
    }
    for (size_t seed = 0; seed < gated_half.size(); ++seed) {
      runs.push_back(invented_run("ffn2-gate", static_cast<int64_t>(seed), gated_half[seed]));
    }
    return verdict_of("ffn-width", runs);
  };
  CHECK(judged({1.20, 1.21, 1.22}, {1.202, 1.2121, 1.222}) == ClaimVerdict::holds_corrected);  // the work is not 57 %
  CHECK(judged({1.20, 1.21, 1.22}, {1.10, 1.11, 1.121}) == ClaimVerdict::holds_corrected);
  CHECK(judged({1.20, 1.21, 1.22}, {1.25, 1.26, 1.271}) == ClaimVerdict::does_not_hold);
  CHECK(judged({1.20, 1.21, 1.22}, {1.25, 1.20, 1.22}) == ClaimVerdict::undecided);
  CHECK(judged({1.20}, {1.25, 1.252}) == ClaimVerdict::undecided);  // of one pair
  CHECK(judged({1.20}, {1.25}) == ClaimVerdict::undecided);
  CHECK(judged({1.20}, {}) == ClaimVerdict::undecided);
  CHECK(judged({}, {}) == ClaimVerdict::undecided);
}

TEST_CASE("ffn-width: the work is what multiplications say") {
  // BERT-base, one layer, 128 tokens, multiplications a token by hand.
  const double attention = 4 * 768 * 768 + 2 * 128 * 768, mlp = 2 * 768 * 3072, gate = 12 * (768 + 768);
  const Outcome outcome = judged_by("ffn-width", {}, {{}, {}});
  CHECK(mlp / (attention + mlp) == doctest::Approx(0.648).epsilon(1e-3));  // as the paper has it
  CHECK(outcome.compared.at(0).measured == fmt::format("{:.1f} %", 100 * mlp / (attention + mlp)));
  CHECK(
      outcome.compared.back().measured ==
      std::to_string(1000 * (attention + mlp / 2 + gate) / (attention + mlp)).substr(0, 2) + "." +
          std::to_string(static_cast<int>(std::lround(1000 * (attention + mlp / 2 + gate) / (attention + mlp))) % 10) +
          " %");
}

TEST_CASE("rank-dynamics: each verdict") {
  using Pairs = std::vector<std::pair<double, double>>;
  const Pairs more_falls_more = {{0.01, -1}, {0.02, -2}, {0.03, -3}, {0.04, -4}, {0.05, -5}, {0.06, -6}};
  const Pairs more_falls_less = {{0.01, -6}, {0.02, -5.2}, {0.03, -4}, {0.04, -3}, {0.05, -2}, {0.06, -1}};
  const Pairs both_rise = {{0.01, 1}, {0.02, 2}, {0.03, 3}, {0.04, 4}, {0.05, 5}, {0.06, 6}};
  const Pairs mixed = {{0.01, 1}, {0.02, -2}, {0.03, 3}, {0.04, -4}, {0.05, 5}, {0.06, -6}};
  const auto judged = [](const Pairs& changes) {
    return verdict_of("rank-dynamics", {learned("baseline", 0, changes), learned("baseline", 1, changes),
                                        learned("no-skips", 0, changes)});
  };
  CHECK(judged(more_falls_more) == ClaimVerdict::holds);
  CHECK(judged(more_falls_less) == ClaimVerdict::holds_corrected);
  CHECK(judged(both_rise) == ClaimVerdict::does_not_hold);
  CHECK(judged(mixed) == ClaimVerdict::undecided);
  CHECK(judged({{-0.01, 1}, {-0.02, -2}}) == ClaimVerdict::undecided);  // no head became more directional
  // Layers of one run learned together.
  CHECK(verdict_of("rank-dynamics", {learned("baseline", 0, both_rise)}) == ClaimVerdict::undecided);
  CHECK(verdict_of("rank-dynamics", {}) == ClaimVerdict::undecided);
  TrainedRun astray = learned("baseline", 2, both_rise);  // it diverged: its ranks say nothing
  astray.validation = {{0, 9}, {50, 0.5}, {100, 1.2}};
  CHECK(verdict_of("rank-dynamics", {learned("baseline", 0, more_falls_more), learned("baseline", 1, more_falls_more),
                                     astray}) == ClaimVerdict::holds);
  CHECK(verdict_of("rank-dynamics", {learned("no-skips", 0, more_falls_more)}) == ClaimVerdict::undecided);
}

TEST_CASE("what the larger scales would train can be trained") {
  for (const ClaimScale scale : {ClaimScale::small, ClaimScale::full}) {
    for (const char* claim : {"pgop", "ffn-width", "rank-dynamics"}) {
      check_plan(plan_of(claim, {.scale = scale}));
    }
  }
}

TEST_CASE("plans are trained, looked at and judged on a text, in small") {
  const TemporaryFolder folder;
  std::string text;
  for (int64_t i = 0; i < 4000; ++i) {
    text += static_cast<char>('a' + i * i % 23);
  }
  folder.write("novels-train.txt", text);
  folder.write("novels-val.txt", text.substr(0, 1000));
  const Trial trial{.scale = ClaimScale::small, .data = folder.path()};
  const auto trained = [&](std::vector<PlannedRun> plan) {
    std::erase_if(plan, [](const PlannedRun& run) { return run.seed() > 0; });
    for (PlannedRun& run : plan) {
      nlohmann::json& architecture = run.config["architecture"];
      architecture["width"] = 24;
      architecture["context"] = 32;
      nlohmann::json& block = architecture["blocks"][0];
      block["repeat"] = 2;
      block["attention"]["head_width"] = 24 / block["attention"]["heads"].get<int64_t>();
      if (!block["mlp"].is_null()) {
        block["mlp"]["width"] = block["mlp"]["width"].get<int64_t>() / 16;
      }
      run.config = changed(run.config, {{"steps", 2}, {"batch", 2}, {"dtype", "float32"}, {"checkpoint.every", 1}});
    }
    TrainedRuns runs = trained_runs("a-claim", trial, plan);
    CHECK(runs.missing().empty());
    return runs;
  };

  const TrainedRuns gates = trained(plan_of("pgop", trial));
  CHECK(judged_by("pgop", trial, gates).tables.size() == 1 + 3);  // losses; causal, encoder, longer encoder
  for (const TrainedRun& run : gates.all()) {
    if (run.variant != "plain") {
      REQUIRE(run.seen.at("end").size() == 2);
      CHECK(run.seen["end"][1]["sensitivity"].size() == 12);
      CHECK(run.seen["end"] != run.seen["start"]);
    }
  }

  const TrainedRuns widths = trained(plan_of("ffn-width", trial));
  CHECK(judged_by("ffn-width", trial, widths).tables.at(0).rows.size() == 2 + 2 * 5);
  CHECK(widths.best("ffn1")->parameters < widths.best("ffn1-gate")->parameters);

  const TrainedRuns ranks = trained(plan_of("rank-dynamics", trial));
  CHECK(judged_by("rank-dynamics", trial, ranks).tables.size() == 4);
  for (const TrainedRun& run : ranks.all()) {
    CAPTURE(run.name);
    REQUIRE(run.seen.size() == 3);  // checkpoints
    for (const char* number : {"stream", "stream_rank", "attention", "asymmetry", "alignment"}) {
      CAPTURE(number);
      CHECK(run.seen[2]["layers"].at(1).at(number).is_number());
    }
  }
}

TEST_CASE("a look at a run sees what it was measured on, from all over it, and nothing that it learned from") {
  const TemporaryFolder folder;
  folder.write("novels-train.txt", std::string(2000, 'a'));
  std::string text;  // eight windows of 16 and the byte after, each of a letter of its own
  for (int64_t i = 0; i < 8 * 16 + 1; ++i) {
    text += static_cast<char>('b' + i / 16);
  }
  folder.write("novels-val.txt", text);
  nlohmann::json config = changed(usual_run({}), {{"task", "causal_lm"}, {"steps", 1}, {"batch", 1}, {"context", 16}});
  config["architecture"]["vocab"] = 256;
  config["data"] = {{"train", {"novels-train.txt"}}, {"validation", {"novels-val.txt"}}};
  Inputs inputs;
  std::vector<StoredCheckpoint> stored;
  const auto look = [&](const std::filesystem::path& run) {
    inputs = held_out(run, 4, 5);
    stored = checkpoints_of(run);
    return Json();
  };
  config["checkpoint"]["keep"] = 0;
  trained_runs("a-claim", {.scale = ClaimScale::small, .data = folder.path()},
               {{.variant = "any", .config = config, .look = look}});
  REQUIRE(inputs.ids.sizes() == at::IntArrayRef({4, 5}));
  const at::Tensor letters = at::tensor({'b' + 0, 'b' + 2, 'b' + 4, 'b' + 6}, at::kLong);
  CHECK(inputs.ids.equal(letters.unsqueeze(1).expand({4, 5})));
  REQUIRE(stored.size() == 2);
  CHECK(stored[0].step == 0);
  CHECK(stored[1].step == 1);
}
