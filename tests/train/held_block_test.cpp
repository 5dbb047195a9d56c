// Blocks that no rank holds whole: one of them has its weights at a time, and what is computed is the same.

#include "pare/train/held_block.h"

#include <ATen/ATen.h>

#include <set>

#include "tests/model/architectures.h"
#include "tests/model/helpers.h"

namespace pare::test {

namespace {

// What the leaves of blocks have in memory.
int64_t bytes_of_blocks(const Executor& executor, const HeldBlock& held) {
  std::set<const c10::StorageImpl*> seen;
  int64_t bytes = 0;
  for (const auto& [name, leaf] : executor.parameters()) {
    const c10::StorageImpl* storage = leaf.storage().unsafeGetStorageImpl();
    if (held.has(name) && seen.insert(storage).second) {
      bytes += static_cast<int64_t>(storage->nbytes());
    }
  }
  return bytes;
}

int64_t bytes_of_block(const Executor& executor, int64_t block) {
  const TensorTable table = tensor_table(executor.architecture());
  int64_t bytes = 0;
  for (const auto& [name, leaf] : executor.parameters()) {
    bytes += table.at(name).id.module.block == block ? leaf.numel() * 8 : 0;
  }
  return bytes;
}

void check_held(const Architecture& a) {
  const Weights weights = as_weights(generic_tensors(a));
  const Inputs inputs = random_inputs(a, 2, 6);
  const Executor kept({a, weights}, at::kDouble, at::kCPU, Use::training);
  const at::Tensor expected = kept.head_input(inputs);
  expected.square().sum().backward();

  HeldBlock held({}, std::make_shared<WeightShares>(Communicator()), at::kDouble);
  const auto start = [&](const std::string& name) { return weights.at(name).load().to(at::kDouble); };
  const Executor executor({a, weights}, at::kDouble, at::kCPU, Use::training, nullptr, Kept::layer_inputs,
                          held.watch(start));
  CHECK(bytes_of_blocks(executor, held) == 0);
  for (const double passes : {1.0, 2.0}) {  // the second adds to the first
    const at::Tensor x = executor.head_input(inputs);
    CHECK(at::equal(x, expected));
    CHECK(bytes_of_blocks(executor, held) == bytes_of_block(executor, layer_blocks(a).back()));
    held.begin_backward();
    x.square().sum().backward();
    held.end_backward();
    held.finish();
    CHECK(bytes_of_blocks(executor, held) == 0);
    const std::map<std::string, at::Tensor> found = held.gradients();
    for (const auto& [name, leaf] : kept.parameters()) {
      CAPTURE(name);
      if (held.has(name)) {
        CHECK_FALSE(executor.parameters().at(name).grad().defined());
        CHECK(at::allclose(found.at(name), leaf.grad().flatten() * passes, 1e-11, 1e-11));
      }
    }
  }
  held.clear();
  for (const auto& [name, gradient] : held.gradients()) {
    CHECK(gradient.abs().max().item<double>() == 0);
  }
}

}  // namespace

TEST_CASE("one block has its weights at a time, and its gradients are those of a model that is whole") {
  check_held(parse(causal("")));
  nlohmann::json shared = nlohmann::json::parse(causal(""));
  shared["layers"] = {0, 1, 1, 0};
  check_held(parse(shared.dump()));
}

}  // namespace pare::test
