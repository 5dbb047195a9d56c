// Dropout: at the rate that was asked for, true on average, only in training, and the same again by seed and step.

#include "pare/model/dropout.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "pare/train/initialise.h"
#include "pare/train/trainer.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

TrainConfig dropped_config(const nlohmann::json& rates) {
  return sorting_config({{"dropout", rates}, {"dtype", "float64"}, {"accumulate", 2}, {"batch", 4}});
}

struct DroppedRun {
  explicit DroppedRun(const TrainConfig& config)
      : batches(open_sequences(config), config),
        some({batches.training(0), batches.training(1)}),
        trainer(config, initial_model(config, some[0].inputs), at::kCPU) {}
  double loss(int64_t step) { return trainer.measure(some, step).loss; }
  Batches batches;
  std::vector<TrainBatch> some;
  Trainer trainer;
};

}  // namespace

TEST_CASE("numbers are left out at their rate, and what stays makes up for them") {
  for (const double rate : {0.1, 0.5, 0.9}) {
    CAPTURE(rate);
    constexpr int64_t count = 200'000;
    const at::Tensor x = at::full({count}, 3.0, at::kDouble);
    Dropout dropout({}, 5, at::kCPU);
    const at::Tensor y = dropout(x, rate);
    const double left_out = y.eq(0).to(at::kDouble).mean().item<double>();
    CHECK(std::abs(left_out - rate) < 5 * std::sqrt(rate * (1 - rate) / count));
    CHECK((y.eq(0) | (y - 3 / (1 - rate)).abs().lt(1e-12)).all().item<bool>());
    CHECK(std::abs(y.mean().item<double>() - 3) < 5 * 3 * std::sqrt(rate / (1 - rate) / count));
    CHECK(dropout(x, 0).is_same(x));
  }
}

TEST_CASE("the same seed leaves out the same numbers, and every step, batch and seed others") {
  const at::Tensor x = at::ones({1000}, at::kDouble);
  const auto drawn = [&x](uint64_t seed, uint64_t step, uint64_t batch) {
    return Dropout({}, dropout_seed(seed, step, batch), at::kCPU)(x, 0.5);
  };
  const at::Tensor first = drawn(1, 2, 3);
  CHECK(at::equal(first, drawn(1, 2, 3)));
  for (const at::Tensor& other : {drawn(2, 2, 3), drawn(1, 3, 3), drawn(1, 2, 4), drawn(2, 1, 3), drawn(1, 3, 2)}) {
    const double same = first.eq(other).to(at::kDouble).mean().item<double>();
    CHECK(same > 0.4);
    CHECK(same < 0.6);
  }
}

TEST_CASE("each rate of the configuration drops in training, by step, and never in evaluation") {
  DroppedRun plain(dropped_config(nlohmann::json::object()));
  const double without = plain.loss(0), evaluated = plain.trainer.evaluate(plain.batches).loss;
  CHECK(plain.loss(1) == without);
  for (const char* place : {"embedding", "attention", "residual"}) {
    CAPTURE(place);
    DroppedRun run(dropped_config({{place, 0.3}}));
    const double first = run.loss(0), second = run.loss(1);
    CHECK(first != without);
    CHECK(first != second);
    CHECK(run.loss(0) == first);
    CHECK(run.trainer.evaluate(run.batches).loss == evaluated);
    CHECK(std::abs(first - without) < 0.5);
  }
}

TEST_CASE("a rate that leaves out everything, or less than nothing, is refused") {
  CHECK_THROWS_WITH_AS(dropped_config({{"residual", 1.0}}), doctest::Contains("dropout.residual"), InputError);
  CHECK_THROWS_WITH_AS(dropped_config({{"attention", -0.1}}), doctest::Contains("dropout.attention"), InputError);
  CHECK_THROWS_WITH_AS(dropped_config({{"residuals", 0.1}}), doctest::Contains("residual"), InputError);
}

// The first layer's mean over many draws is what it is without: attention and residual are linear there.
TEST_CASE("what a sublayer writes is true on average") {
  const Architecture a = parse(causal("", "null"));
  const Inputs inputs = random_inputs(a, 2, 6);
  const at::NoGradGuard no_grad;
  Architecture one = a;
  one.blocks.resize(1);
  const Executor first({one, as_weights(generic_tensors(one))}, at::kDouble, at::kCPU, Use::training);
  const at::Tensor expected = first.head_input(inputs);
  at::Tensor sum = at::zeros_like(expected), squares = at::zeros_like(expected);
  constexpr int64_t draws = 4000;
  for (uint64_t seed = 0; seed < draws; ++seed) {
    Dropout dropout({.attention = 0.3, .residual = 0.2}, seed, at::kCPU);
    const at::Tensor found = first.head_input(inputs, &dropout);
    sum += found;
    squares += found.square();
  }
  const at::Tensor mean = sum / draws, deviation = (squares / draws - mean.square()).sqrt() / std::sqrt(1.0 * draws);
  CHECK(((mean - expected).abs() / deviation).max().item<double>() < 5.5);  // of 144 numbers
  CHECK(deviation.min().item<double>() > 0);
}

}  // namespace pare::test
