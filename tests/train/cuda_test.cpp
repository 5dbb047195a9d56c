// The same losses on a GPU, where there is one, in steps that are recorded once and never wait for it.

#include <cstdio>

#include "pare/model/device_graph.h"
#include "pare/train/initialise.h"
#include "pare/train/trainer.h"
#include "tests/model/cuda.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

std::vector<double> losses_on(const TrainConfig& config, at::Device device, bool watched) {
  const Batches batches(open_sequences(config), config);
  Trainer trainer(config, initial_model(config, batches.training(0).inputs), device);
  std::vector<double> losses;
  for (int64_t step = 0; step < config.steps; ++step) {
    std::vector<TrainBatch> some;
    for (int64_t i = 0; i < config.accumulate; ++i) {
      some.push_back(batches.training(step * config.accumulate + i));
    }
    std::optional<NoWaiting> watch;
    if (watched && step > 4) {  // the first run as they come, the fourth is recorded
      watch.emplace();
    }
    trainer.begin_step(some, {learning_rate(config.optimiser, config.steps, step)});
    watch.reset();
    losses.push_back(trainer.finish_step().loss);
  }
  return losses;
}

}  // namespace

TEST_CASE("CUDA trains as the CPU does") {
  if (!has_cuda()) {
    return;
  }
  if (!DeviceGraph::works_on(at::kCUDA)) {
    std::puts("skipped recorded steps: this build has no libpare_cuda beside the program");
  }
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    for (const int accumulate : {1, 3}) {
      CAPTURE(dtype);
      CAPTURE(accumulate);
      const TrainConfig config = sorting_config({{"dtype", dtype}, {"accumulate", accumulate}, {"steps", 25}});
      const std::vector<double> expected = losses_on(config, at::kCPU, false),
                                found = losses_on(config, at::Device(at::kCUDA, 0), wait_mode() != nullptr);
      const double allowed = dtype == std::string("float64") ? 1e-9 : dtype == std::string("float32") ? 1e-4 : 0.05;
      for (size_t i = 0; i < found.size(); ++i) {
        CHECK(found[i] == doctest::Approx(expected[i]).epsilon(allowed));
      }
      CHECK(found.back() < found.front());
    }
  }
}

}  // namespace pare::test
