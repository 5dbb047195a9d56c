// The same losses on a GPU, where there is one, in steps that are recorded once and never wait for it.

#include <cstdio>
#include <memory>

#include "pare/model/device_graph.h"
#include "pare/train/initialise.h"
#include "pare/train/trainer.h"
#include "tests/model/cuda.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

// Of a run with all that its configuration asks for; its teacher is the model that another seed draws.
std::vector<double> losses_on(const TrainConfig& config, at::Device device, bool watched) {
  const Batches batches(open_sequences(config), config);
  Model start = initial_model(config, batches.training(0).inputs);
  TrainCompany company;
  if (config.distillation.weight == 1) {
    TrainConfig other = config;
    other.seed = config.seed + 1;
    company.teacher = std::make_shared<const Teacher>(initial_model(other, batches.training(0).inputs),
                                                      arithmetic_of(config.dtype), device);
  }
  if (config.morph.to) {
    const MorphPlan plan = plan_morph(config.architecture, *config.morph.to, "morph.to");
    start = morph_start(plan, start);
    company.morph = std::make_shared<const Morph>(plan, config.morph.steps, start, device);
  }
  Trainer trainer(config, start, device, company);
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
    if (company.morph) {
      company.morph->go_to(step);
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
  const nlohmann::json bare = {{"blocks",
                                {{{"repeat", 2},
                                  {"attention", {{"heads", 2}, {"head_width", 8}}},
                                  {"mlp", {{"width", 32}, {"activation", "gelu"}, {"skip", false}}}}}}};
  const nlohmann::json kinds = {
      {{"name", "plain"}},
      {{"name", "a teacher alone, of a vocabulary that is padded"}, {"distillation", {{"weight", 1}}}},
      {{"name", "a projection leaves"}, {"morph", {{"to", {{"attention", {{"query", "identity"}}}}}, {"steps", 40}}}},
      {{"name", "neurons leave"}, {"morph", {{"to", {{"mlp", {{"width", 16}}}}}, {"steps", 40}}}},
      {{"name", "conditions"}, {"conditioning", {{"weight", 0.5}}}, {"architecture", bare}}};
  for (const auto& [dtype, kind] : [&] {
         std::vector<std::pair<std::string, nlohmann::json>> all;
         for (const char* type : {"float64", "float32", "bfloat16"}) {
           for (const nlohmann::json& one : kinds) {
             all.emplace_back(type, one);
           }
         }
         return all;
       }()) {
    for (const int accumulate : {1, 3}) {
      CAPTURE(dtype);
      CAPTURE(kind.at("name"));
      CAPTURE(accumulate);
      nlohmann::json changes = kind;
      changes.update({{"dtype", dtype}, {"accumulate", accumulate}, {"steps", 40}});
      const TrainConfig config = sorting_config(changes);
      const std::vector<double> expected = losses_on(config, at::kCPU, false),
                                found = losses_on(config, at::Device(at::kCUDA, 0), wait_mode() != nullptr);
      const double allowed = dtype == "float64" ? 1e-9 : dtype == "float32" ? 1e-4 : 0.05;
      for (size_t i = 0; i < found.size(); ++i) {
        CHECK(found[i] == doctest::Approx(expected[i]).epsilon(allowed));
      }
      CHECK((kind.contains("morph") || found.back() < found.front()));
    }
  }
}

}  // namespace pare::test
