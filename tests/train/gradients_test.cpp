// Gradients against finite differences in float64, of every tensor of every variant, through the loss that is trained.

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/train/trainer.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"
#include "tests/train/variants.h"

namespace pare::test {

namespace {

std::vector<std::pair<std::string, std::string>> stored_architectures() {
  const char* place = std::getenv("PARE_SHARED");
  const std::filesystem::path folder = std::filesystem::path(place ? place : "../shared") / "architectures";
  std::vector<std::pair<std::string, std::string>> list;
  if (!std::filesystem::is_directory(folder)) {
    MESSAGE("skipped: there is no " << folder.string());
    return list;
  }
  for (const std::filesystem::directory_entry& entry : entries_of(folder)) {
    list.emplace_back(entry.path().filename().string(), read_text_file(entry.path(), 1 << 20));
  }
  return list;
}

TrainBatch random_batch(const Architecture& a) {
  TrainBatch batch{random_inputs(a, 2, 6), {}};
  const bool of_tokens = a.task == Task::causal_lm || a.task == Task::masked_lm;
  const int64_t answers = of_tokens ? a.vocab : a.head.classes.value_or(1);
  const std::vector<int64_t> tokens = {2, 6}, sequences = {2};
  const bool each = of_tokens || a.task == Task::token_classifier || a.task == Task::question_answering;
  batch.targets = at::randint(answers, each ? tokens : sequences, at::kLong);
  if (each) {
    batch.targets[0][1].fill_(no_target);
  }
  return batch;
}

// Generic, and so small that the loss is nearly straight over the distances that are measured: a block that is run four
// times with matrices of scale one has third derivatives of 1e9.
Tensors calm_tensors(const Architecture& a) {
  Tensors tensors = generic_tensors(a);
  for (const TensorSpec& spec : tensor_table(a)) {
    if (spec.shape.size() >= 2 && !spec.index) {
      tensors[spec.name].mul_(0.5);
    }
  }
  return tensors;
}

void check_gradients(TrainConfig config) {
  const Architecture& a = config.architecture;
  config.dtype = TrainDtype::float64;
  config.optimiser.clip = 0;
  Trainer trainer(config, {a, as_weights(calm_tensors(a))}, at::kCPU);
  const std::vector<TrainBatch> batches = {random_batch(a)};
  trainer.measure(batches);
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [name, gradient] : trainer.gradients()) {
    gradients[name] = gradient.clone();
  }
  constexpr double step = 1e-5;
  for (const auto& [name, leaf] : trainer.executor().parameters()) {
    CAPTURE(name);
    const at::NoGradGuard no_grad;
    const at::Tensor start = leaf.clone();
    at::Tensor direction;
    const auto loss_at = [&](double distance) {
      leaf.copy_(start + distance * direction);
      const at::AutoGradMode grad(true);
      return trainer.measure(batches).loss;
    };
    // The kink of a ReLU between two points shows in the differences themselves: then another direction is taken.
    double near = 0, far = 1;
    for (int draw = 0; draw < 5 && std::abs(near - far) > 1e-6 * (1 + std::abs(near)); ++draw) {
      direction = at::randn_like(leaf);
      near = (loss_at(step) - loss_at(-step)) / (2 * step);
      far = (loss_at(2 * step) - loss_at(-2 * step)) / (4 * step);
    }
    leaf.copy_(start);
    const double expected = (4 * near - far) / 3;  // wrong by the fifth derivative times step^4
    const double found = (gradients.at(name) * direction).sum().item<double>();
    CHECK(std::abs(found - expected) < 2e-8 * (1 + std::abs(expected)));
  }
}

}  // namespace

TEST_CASE("gradients of every variant of the papers are finite differences") {
  for (const Variant& variant : paper_variants()) {
    CAPTURE(variant.name);
    check_gradients(config_of(variant));
  }
}

TEST_CASE("gradients of everything the schema can say are finite differences") {
  for (const auto& [name, text] : every_architecture()) {
    const Architecture a = parse(text);
    if (a.task == Task::encoder || a.head.sequence) {  // no answer, or a second one that no loss here asks for
      continue;
    }
    CAPTURE(name);
    check_gradients({.architecture = a});
  }
}

TEST_CASE("gradients of the stored architectures are finite differences") {
  for (const auto& [name, text] : stored_architectures()) {
    CAPTURE(name);
    check_gradients({.architecture = parse(text)});
  }
}

// What is left out is decided by seed and step, and stays the same while a weight is moved: the masked function has
// gradients like any other.
TEST_CASE("gradients under dropout are finite differences of the same mask") {
  for (const Variant& variant : paper_variants()) {
    if (variant.name != "baseline" && variant.name != "skipless, shaped" && variant.name != "collapsed QK and VO") {
      continue;
    }
    CAPTURE(variant.name);
    TrainConfig config = config_of(variant);
    config.dropout = {.embedding = 0.2, .attention = 0.3, .residual = 0.1};
    check_gradients(config);
  }
}

}  // namespace pare::test
