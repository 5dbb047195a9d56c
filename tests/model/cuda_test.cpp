// The same answers on a GPU, where there is one, and steps that never wait for it.

#include <cstdio>

#include "tests/model/architectures.h"
#include "tests/model/cuda.h"
#include "tests/model/helpers.h"

namespace pare::test {

namespace {

Inputs on_gpu(const Inputs& inputs) {
  return moved(inputs, at::kCUDA);
}

}  // namespace

TEST_CASE("CUDA answers as the CPU does, whole and cached") {
  if (!has_cuda()) {
    return;
  }
  for (const auto& [name, text] : causal_architectures()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Tensors tensors = generic_tensors(a);
    Inputs inputs = random_inputs(a, 2, 9);
    const at::Tensor expected = run(a, tensors, inputs);
    const Executor model({a, as_weights(tensors)}, at::kDouble, at::kCUDA);
    CHECK(relative_error(model.forward(on_gpu(inputs)).logits.cpu(), expected) < 1e-12);
    inputs.mask = at::ones({2, 9}, at::kBool);
    Cache cache;
    CHECK(relative_error(model.forward(on_gpu(inputs), &cache).logits.cpu(), expected) < 1e-12);
  }
}

TEST_CASE("a step of decoding never makes the host wait for the GPU") {
  if (!has_cuda()) {
    return;
  }
  if (!wait_mode()) {
    std::puts("skipped waits for the GPU: this libtorch does not name its watch over them as expected");
    return;
  }
  {
    const NoWaiting watched;  // the watch itself
    CHECK_THROWS(at::ones({1}, at::kCUDA).item<float>());
  }
  for (const auto& [name, text] : causal_architectures()) {
    for (const bool padded : {false, true}) {
      if (name == "rope dynamic" || (name == "rope longrope" && padded)) {
        continue;  // docs/design.md: their angles depend on how long the longest sequence is
      }
      CAPTURE(name);
      CAPTURE(padded);
      const Architecture a = parse(text);
      const Executor model({a, as_weights(generic_tensors(a))}, at::kDouble, at::kCUDA);
      Inputs inputs = random_inputs(a, 2, 8);
      if (padded) {
        inputs.mask = at::ones({2, 8}, at::kBool);
        inputs.mask[0].narrow(0, 0, 3).fill_(false);
      }
      Cache cache(16);
      Inputs next;
      next.ids = model.forward(on_gpu(inputs), &cache, nullptr, Logits::last).logits.select(1, -1).argmax(-1, true);
      for (int step = 0; step < 3; ++step) {
        const NoWaiting watched;
        next.ids = model.forward(next, &cache, nullptr, Logits::last).logits.select(1, -1).argmax(-1, true);
      }
      CHECK(next.ids.cpu().ge(0).all().item<bool>());
    }
  }
}

}  // namespace pare::test
