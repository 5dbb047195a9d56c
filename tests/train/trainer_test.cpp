// The optimiser against its formulas, the start, and steps that must be the same however they are cut.

#include <ATen/record_function.h>

#include <cmath>

#include "pare/train/initialise.h"
#include "pare/train/trainer.h"
#include "tests/model/helpers.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

Trainer trainer_of(const TrainConfig& config) {
  const Batches batches(open_sequences(config), config);
  return Trainer(config, initial_model(config, batches.training(0).inputs), at::kCPU);
}

std::vector<double> losses_of(const TrainConfig& config, int64_t steps) {
  const Batches batches(open_sequences(config), config);
  Trainer trainer = trainer_of(config);
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<TrainBatch> some;
    for (int64_t i = 0; i < config.accumulate; ++i) {
      some.push_back(batches.training(step * config.accumulate + i));
    }
    trainer.begin_step(some, {learning_rate(config.optimiser, config.steps, step)});
    losses.push_back(trainer.finish_step().loss);
  }
  return losses;
}

Tensors start_of(const TrainConfig& config) {
  const Batches batches(open_sequences(config), config);
  Tensors tensors;
  for (const auto& [name, weight] : initial_model(config, batches.training(0).inputs).weights) {
    tensors[name] = weight.load();
  }
  return tensors;
}

double deviation(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).std().item<double>();
}

}  // namespace

TEST_CASE("the learning rate rises in a line and falls in a cosine") {
  const OptimiserConfig config{.lr = 2, .min_lr = 0.5, .warmup = 4};
  CHECK(learning_rate(config, 24, 0) == 0.5);
  CHECK(learning_rate(config, 24, 3) == 2);
  CHECK(learning_rate(config, 24, 4) == 2);
  CHECK(learning_rate(config, 24, 14) == doctest::Approx(1.25));
  CHECK(learning_rate(config, 24, 24) == 0.5);
  CHECK(learning_rate({.lr = 2, .min_lr = 0.5, .warmup = 0}, 10, 0) == 2);
}

TEST_CASE("AdamW is its formula, and only matrices decay") {
  at::manual_seed(1);
  const OptimiserConfig config{.betas = {0.8, 0.9}, .epsilon = 1e-6, .decay = 0.3, .clip = 0};
  Tensors weights = {{"matrix", at::randn({3, 4}, at::kDouble)}, {"vector", at::randn({5}, at::kDouble)}};
  AdamW optimiser(config, weights, {"matrix"});
  Tensors expected, mean, square;
  for (const auto& [name, weight] : weights) {
    expected[name] = weight.clone();
    mean[name] = at::zeros_like(weight);
    square[name] = at::zeros_like(weight);
  }
  for (int step = 1; step <= 5; ++step) {
    std::vector<at::Tensor> gradients;
    const double rate = 0.01 * step;
    for (auto& [name, weight] : expected) {
      const at::Tensor gradient = at::randn_like(weight);
      gradients.push_back(gradient);
      mean[name] = 0.8 * mean[name] + 0.2 * gradient;
      square[name] = 0.9 * square[name] + 0.1 * gradient.square();
      const at::Tensor m = mean[name] / (1 - std::pow(0.8, step)), v = square[name] / (1 - std::pow(0.9, step));
      const double decay = name == "matrix" ? 0.3 : 0;
      weight = weight * (1 - rate * decay) - rate * m / (v.sqrt() + 1e-6);
    }
    optimiser.set_rate(rate);
    optimiser.step(gradients, at::zeros({}));
    for (const auto& [name, weight] : weights) {
      CHECK((weight - expected[name]).abs().max().item<double>() < 1e-13);
    }
  }
  const Architecture a =
      parse(R"({"width": 8, "vocab": 9, "context": 4, "embedding": {"position": "learned"}, "blocks": [{"attention":
    {"heads": 2, "head_width": 4, "bias": {"query": true, "output": true}, "scores": "collapsed", "norm": {"kind": "dyt", "bias": true}}}]})");
  std::string decayed;
  for (const TensorSpec& spec : tensor_table(a)) {
    decayed += is_decayed(spec) ? spec.name + " " : "";
  }
  CHECK(decayed.find("bias") == std::string::npos);
  CHECK(decayed.find("norm") == std::string::npos);
  CHECK(decayed.find("embed.token.weight") != std::string::npos);
  CHECK(decayed.find("attention.qk.weight") != std::string::npos);
}

TEST_CASE("gradients that are too long together are shortened together") {
  AdamW optimiser({.clip = 2.5}, {{"a", at::zeros({1}, at::kDouble)}, {"b", at::zeros({1}, at::kDouble)}}, {});
  const std::vector<at::Tensor> gradients = {at::full({1}, 3.0, at::kDouble), at::full({1}, 4.0, at::kDouble)};
  CHECK(optimiser.clip(gradients).item<double>() == 5);
  CHECK(gradients[0].item<double>() == doctest::Approx(1.5).epsilon(1e-6));
  CHECK(optimiser.clip(gradients).item<double>() == doctest::Approx(2.5).epsilon(1e-6));
  CHECK(gradients[1].item<double>() == doctest::Approx(2.0).epsilon(1e-5));
}

TEST_CASE("accumulated batches are one batch, also where they ask for different numbers of tokens") {
  const nlohmann::json wide = {{"dtype", "float64"}, {"batch", 8}};
  const nlohmann::json narrow = {{"dtype", "float64"}, {"batch", 2}, {"accumulate", 4}};
  const std::vector<double> a = losses_of(sorting_config(wide), 5), b = losses_of(sorting_config(narrow), 5);
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(std::abs(a[i] - b[i]) < 1e-12);
  }
  const TrainConfig config = sorting_config(wide);
  TrainBatch first = open_sequences(config)->batch(false, {0, 1}, 0),
             second = open_sequences(config)->batch(false, {2, 3}, 0);
  second.targets.narrow(1, 7, 2).fill_(no_target);
  TrainBatch both{{.ids = at::cat({first.inputs.ids, second.inputs.ids})}, at::cat({first.targets, second.targets})};
  Trainer trainer = trainer_of(config);
  const StepMeasure apart = trainer.measure(std::vector<TrainBatch>{first, second});
  const StepMeasure together = trainer.measure(std::vector<TrainBatch>{both});
  CHECK(std::abs(apart.loss - together.loss) < 1e-12);
  CHECK(std::abs(apart.gradient_norm - together.gradient_norm) < 1e-12);
}

TEST_CASE("a batch that asks for everything is not searched for what it does not ask for") {
  static int64_t searches = 0;
  const at::CallbackHandle counts = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& called) -> std::unique_ptr<at::ObserverContext> {
        searches += std::string_view(called.name()) == "aten::nonzero";
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  const TrainConfig config = sorting_config();
  TrainBatch batch = open_sequences(config)->batch(false, {0, 1}, 0);
  Trainer trainer = trainer_of(config);
  CHECK_FALSE(batch.asks_all);
  trainer.measure({&batch, 1});
  CHECK(searches == 1);
  batch.targets = batch.targets.clone().clamp_min_(0);
  const StepMeasure looked = trainer.measure({&batch, 1});
  CHECK(searches == 2);
  batch.asks_all = true;
  const StepMeasure told = trainer.measure({&batch, 1});
  CHECK(searches == 2);
  CHECK(looked.loss == told.loss);  // bit for bit
  CHECK(looked.gradient_norm == told.gradient_norm);
  at::removeCallback(counts);
}

TEST_CASE("the same seed gives variants the same values where they have the same tensors") {
  const Tensors base = start_of(sorting_config());
  const Tensors variant =
      start_of(sorting_config({{"architecture", {{"final_norm", {{"kind", "rms"}}}, {"head", {{"tied", true}}}}}}));
  int64_t shared = 0;
  for (const auto& [name, tensor] : base) {
    if (const auto found = variant.find(name); found != variant.end()) {
      CAPTURE(name);
      CHECK(found->second.equal(tensor));
      ++shared;
    }
  }
  CHECK(shared > 8);
  CHECK(!start_of(sorting_config({{"seed", 1}})).at("embed.token.weight").equal(base.at("embed.token.weight")));
}

TEST_CASE("recipes have the deviations that they promise") {
  const nlohmann::json wide = {{"architecture",
                                {{"width", 64},
                                 {"blocks",
                                  {{{"repeat", 2},
                                    {"attention", {{"heads", 2}, {"head_width", 32}}},
                                    {"mlp", {{"width", 128}, {"activation", "gelu"}, {"skip", false}}}}}}}}};
  nlohmann::json gpt2 = wide, plain = wide, free = wide, keyed = wide;
  keyed["init"]["key"] = 0.5;
  plain["init"]["recipe"] = "plain";
  free["init"]["recipe"] = "norm_free";
  const Tensors a = start_of(sorting_config(gpt2)), b = start_of(sorting_config(plain)),
                c = start_of(sorting_config(free));
  CHECK(deviation(a.at("blocks.0.attention.query.weight")) == doctest::Approx(0.02).epsilon(0.1));
  CHECK(deviation(a.at("blocks.0.attention.output.weight")) ==
        doctest::Approx(0.01).epsilon(0.1));  // a skip, two layers
  const Tensors other = start_of(sorting_config(keyed));
  for (const auto& [name, tensor] : a) {  // and nothing else changes
    CAPTURE(name);
    CHECK(other.at(name).equal(name.find("attention.key") != std::string::npos ? tensor / 2 : tensor));
  }
  CHECK(deviation(a.at("blocks.1.mlp.down.weight")) == doctest::Approx(0.02).epsilon(0.1));  // no skip
  CHECK(deviation(b.at("blocks.1.mlp.down.weight")) == doctest::Approx(1 / std::sqrt(128.0)).epsilon(0.1));
  CHECK(deviation(c.at("embed.token.weight")) == doctest::Approx(0.7).epsilon(0.1));

  const TrainConfig config = sorting_config(free);
  const Batches batches(open_sequences(config), config);
  const Inputs inputs = batches.training(0).inputs;
  Taps taps;
  taps.record("residual.*");
  const Executor model(initial_model(config, inputs), at::kFloat);
  model.forward(inputs, nullptr, &taps);
  CHECK(deviation(taps.recorded().at("residual.1")) == doctest::Approx(1).epsilon(1e-4));
  CHECK(deviation(taps.recorded().at("residual.2")) == doctest::Approx(1).epsilon(1e-4));
}

TEST_CASE("bfloat16 with float32 weights follows float32, and learns in steps that it could not store") {
  const nlohmann::json changes = {{"optimiser", {{"lr", 1e-2}, {"min_lr", 1e-3}, {"warmup", 5}}}, {"steps", 60}};
  nlohmann::json narrow = changes;
  narrow["dtype"] = "bfloat16";
  const std::vector<double> wide = losses_of(sorting_config(changes), 60),
                            found = losses_of(sorting_config(narrow), 60);
  CHECK(std::abs(found.front() - wide.front()) < 0.01);
  CHECK(std::abs(found.back() - wide.back()) < 0.2);
  CHECK(found.back() < 0.8 * found.front());

  TrainConfig tiny = sorting_config(narrow);
  Trainer trainer = trainer_of(tiny);
  const Batches batches(open_sequences(tiny), tiny);
  const at::Tensor before = trainer.model().weights.at("embed.token.weight").load();
  trainer.begin_step(std::vector<TrainBatch>{batches.training(0)}, {1e-7});
  const at::Tensor after = trainer.model().weights.at("embed.token.weight").load();
  CHECK((after.scalar_type() == at::kFloat));
  CHECK(!after.equal(before));  // though no bfloat16 near 0.02 is so close to another
}

TEST_CASE("a small model learns to sort") {
  const TrainConfig config =
      sorting_config({{"optimiser", {{"lr", 1e-2}, {"min_lr", 1e-3}, {"warmup", 20}}}, {"steps", 300}});
  const std::vector<double> losses = losses_of(config, 300);
  CHECK(losses.front() > 2.5);  // ln 16 is 2.77
  CHECK(losses.back() < 1.0);
}

TEST_CASE("a start is the same in every type") {
  for (const char* recipe : {"plain", "gpt2", "norm_free", "orthogonal"}) {
    CAPTURE(recipe);
    const nlohmann::json start = {{"init", {{"recipe", recipe}}}};
    nlohmann::json wide = start;
    wide["dtype"] = "float64";
    const Tensors narrow = start_of(sorting_config(start));
    for (const auto& [name, tensor] : start_of(sorting_config(wide))) {
      CHECK(tensor.equal(narrow.at(name).to(tensor.scalar_type())));
    }
  }
}

TEST_CASE("from a bad step on nothing moves") {
  const TrainConfig config = sorting_config({{"steps", 10}});
  const Batches batches(open_sequences(config), config);
  const std::vector<TrainBatch> batch = {batches.training(0)};
  Trainer trainer = trainer_of(config);
  const auto table = [&] { return trainer.model().weights.at("embed.token.weight").load(); };
  const at::Tensor start = table();
  trainer.begin_step(batch, {1e-3});
  const double loss = trainer.finish_step().loss;
  const at::Tensor moved = table();
  CHECK(!moved.equal(start));
  trainer.begin_step(batch, {1e-3, 0, 0.5 * loss});  // above the limit
  trainer.begin_step(batch, {1e-3});                 // begun before anybody could know
  CHECK(trainer.finish_step().loss < loss);
  CHECK(trainer.finish_step().loss > 0.5 * loss);
  CHECK(table().equal(moved));
}

}  // namespace pare::test
