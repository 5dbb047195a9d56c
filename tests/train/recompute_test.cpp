// Layers that are run again on the way back: the same numbers, bit for bit, from a fraction of the memory.

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>

#include "pare/model/forward.h"
#include "pare/train/initialise.h"
#include "tests/model/architectures.h"
#include "tests/train/gradient_check.h"
#include "tests/train/variants.h"

namespace pare::test {

namespace {

// Counts the bytes of tensors on the CPU while one stands.
class CountedMemory final : public at::Allocator {
 public:
  static CountedMemory& install() {
    static CountedMemory counting;
    counting.plain_ = at::getCPUAllocator();
    c10::SetCPUAllocator(&counting);
    alive = 0, peak = 0;
    return counting;
  }
  void remove() { c10::SetCPUAllocator(plain_); }

  at::DataPtr allocate(size_t bytes) override {
    auto block = std::make_unique<Block>(Block{plain_->allocate(bytes), static_cast<int64_t>(bytes)});
    peak = std::max<int64_t>(peak, alive += block->bytes);
    void* data = block->data.get();
    return {data, block.release(), &free, at::kCPU};
  }
  at::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  static inline std::atomic<int64_t> alive = 0, peak = 0;

 private:
  struct Block {
    at::DataPtr data;
    int64_t bytes;
  };
  static void free(void* block) {
    alive -= static_cast<Block*>(block)->bytes;
    delete static_cast<Block*>(block);
  }
  at::Allocator* plain_ = nullptr;
};

struct Memory {
  int64_t between = 0;  // bytes that a forward pass leaves for the way back
  int64_t most = 0;     // at once in a step, more than before it
};

Memory memory_of(int64_t layers, bool recompute, const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json json = {{"architecture",
                          {{"width", 32},
                           {"blocks",
                            {{{"repeat", layers},
                              {"attention", {{"heads", 2}, {"head_width", 16}, {"norm", {{"kind", "rms"}}}}},
                              {"mlp", {{"width", 128}, {"activation", "gelu"}}}}}}}},
                         {"dtype", "float64"},
                         {"recompute", recompute}};
  json.merge_patch(changes);
  const TrainConfig config = sorting_config(json);
  const Batches batches(open_sequences(config), config);
  const std::vector<TrainBatch> some = {batches.training(0)};
  Trainer trainer(config, initial_model(config, some[0].inputs), at::kCPU);
  trainer.measure(some);  // tables, and gradients where none were
  CountedMemory& counted = CountedMemory::install();
  Memory memory;
  {
    const at::Tensor x = trainer.executor().head_input(some[0].inputs);
    memory.between = CountedMemory::alive;
  }
  trainer.measure(some);  // whose gradients were made uncounted until here
  const int64_t left = CountedMemory::alive;
  CountedMemory::peak = left;
  trainer.measure(some);
  memory.most = CountedMemory::peak - left;
  CHECK(CountedMemory::alive == left);  // nothing stays behind
  counted.remove();
  return memory;
}

std::vector<TrainBatch> two_batches(const Architecture& a) {
  std::vector<TrainBatch> batches = {random_batch(a), random_batch(a)};
  batches[1].inputs = random_inputs(a, 2, 6, 8);
  return batches;
}

void check_config(TrainConfig config, TrainDtype dtype) {
  const Architecture& a = config.architecture;
  const Model start{a, as_weights(calm_tensors(a))};
  config.dtype = dtype;
  Trainer kept(config, start, at::kCPU);
  config.recompute = true;
  Trainer again(config, start, at::kCPU);
  check_same_step(kept, again, two_batches(a));
}

}  // namespace

TEST_CASE("layers that are run again change no bit, of everything that the schema can say") {
  for (const auto& [name, text] : every_architecture()) {
    const Architecture a = parse(text);
    if (a.task == Task::encoder || a.head.sequence || a.head.classes == 1) {  // nothing here has a loss for it
      continue;
    }
    CAPTURE(name);
    const DropoutRates rates{.embedding = 0.2, .attention = 0.3, .residual = 0.1};
    check_config({.architecture = a, .dropout = rates}, TrainDtype::float64);
    check_config({.architecture = a}, TrainDtype::float32);
  }
}

TEST_CASE("nor of what the papers train, nor where the loss asks for conditions") {
  for (const Variant& variant : paper_variants()) {
    CAPTURE(variant.name);
    TrainConfig config = config_of(variant);
    config.dropout = {.attention = 0.2, .residual = 0.1};
    check_config(config, TrainDtype::bfloat16);
  }
  const nlohmann::json bare = {{"repeat", 2}, {"attention", {{"heads", 2}, {"head_width", 8}}}};
  check_config(sorting_config({{"architecture", {{"blocks", {bare}}}}, {"conditioning", {{"weight", 0.5}}}}),
               TrainDtype::float64);
}

TEST_CASE("whole runs are the same, also of padded sequences") {
  const nlohmann::json changes = {
      {"accumulate", 2}, {"dropout", {{"residual", 0.1}, {"attention", 0.1}}}, {"steps", 6}};
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    CAPTURE(dtype);
    std::vector<std::vector<double>> losses;
    for (const bool recompute : {false, true}) {
      nlohmann::json json = changes;
      json.update({{"dtype", dtype}, {"recompute", recompute}});
      const TrainConfig config = sorting_config(json);
      const Batches batches(open_sequences(config), config);
      Trainer trainer(config, initial_model(config, batches.training(0).inputs), at::kCPU);
      std::vector<double>& found = losses.emplace_back();
      for (int64_t step = 0; step < config.steps; ++step) {
        std::vector<TrainBatch> some = {batches.training(2 * step), batches.training(2 * step + 1)};
        some[0].inputs.mask = at::ones_like(some[0].inputs.ids, at::kBool);  // the last two of a sequence are padding
        some[0].inputs.mask[1].narrow(0, some[0].inputs.ids.size(1) - 2, 2).fill_(false);
        trainer.begin_step(some, {1e-2, step});
        found.push_back(trainer.finish_step().loss);
      }
    }
    CHECK(losses[0] == losses[1]);
    CHECK(losses[0].back() != losses[0].front());
  }
}

TEST_CASE("a forward pass keeps one input for each layer, and a step the activations of one layer") {
  const int64_t input = 16 * 10 * 32 * 8;  // sequences, tokens, width, bytes
  const Memory kept = memory_of(4, false), more_kept = memory_of(12, false);
  const Memory again = memory_of(4, true), more_again = memory_of(12, true);
  CHECK(more_again.between - again.between == 8 * input);
  CHECK(more_kept.between - kept.between > 8 * 10 * input);
  const int64_t weights = 8 * (4 * 32 * 32 + 2 * 32 * 128 + 32) * 8;  // of eight layers: their gradients stay
  CHECK(more_again.most - again.most <= 8 * input + weights);
  CHECK(more_again.most < more_kept.most / 3);
}

TEST_CASE("a source of blocks may fetch weights for a layer and drop them after it, both times") {
  const Architecture a = parse(causal(""));
  const Weights weights = as_weights(generic_tensors(a));
  const Inputs inputs = random_inputs(a, 2, 6);
  const Executor kept({a, weights}, at::kDouble, at::kCPU, Use::training);
  kept.head_input(inputs).square().sum().backward();

  const Arithmetic arithmetic{at::kDouble, at::kCPU};
  const Tables tables(arithmetic);
  Loader loader(a, weights, arithmetic, /*training=*/true);
  const EmbeddingLayer embedding = load_embedding(loader, a);
  const HeadLayer head = load_head(loader, a, embedding);
  OneBlock one(loader, a);  // each time with leaves of its own
  std::vector<int64_t> fetched;
  const Blocks blocks = [&](int64_t n) -> const BlockLayer& {
    fetched.push_back(n);
    return one(n);
  };
  Forward run(a, tables, {&inputs, 1});
  run.keep_layer_inputs(std::make_shared<NormsSeen>());
  run.embed(embedding);
  while (run.done() < run.layers()) {
    run.run_layer(blocks);
  }
  const at::Tensor x = run.finish(head).front().x;
  CHECK(fetched == std::vector<int64_t>{0, 1});
  one.release();
  fetched.clear();
  x.square().sum().backward();
  CHECK(fetched == std::vector<int64_t>{1, 0});
  for (const auto& [name, leaf] : kept.parameters()) {
    CAPTURE(name);
    const at::Tensor found = loader.parameters().at(name).grad();
    CHECK(found.defined() == leaf.grad().defined());
    CHECK((!found.defined() || found.equal(leaf.grad())));
  }
}

TEST_CASE("a run that does not say how its memory is used is written as it was") {
  CHECK_FALSE(train_config_to_json(sorting_config()).contains("recompute"));
  const TrainConfig config = sorting_config({{"recompute", true}});
  CHECK(config.recompute);
  CHECK(train_config_from_json(train_config_to_json(config), "test", no_architecture) == config);
}

}  // namespace pare::test
