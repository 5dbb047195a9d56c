// The same answers on a GPU, where there is one.

#include <cstdio>
#include <stdexcept>

#include "pare/model/device.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"

namespace pare::test {

TEST_CASE("CUDA answers as the CPU does, whole and cached") {
  try {
    find_device("cuda");
  } catch (const std::runtime_error& none) {
    std::puts((std::string("skipped CUDA: ") + none.what()).c_str());
    return;
  }
  for (const auto& [name, text] : causal_architectures()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Tensors tensors = generic_tensors(a);
    const Inputs inputs = random_inputs(a, 2, 9);
    const at::Tensor expected = run(a, tensors, inputs);
    const Executor model({a, as_weights(tensors)}, at::kDouble, at::kCUDA);
    Inputs there = inputs;
    there.ids = inputs.ids.cuda();
    there.types = inputs.types.defined() ? inputs.types.cuda() : at::Tensor();
    CHECK(relative_error(model.forward(there).logits.cpu(), expected) < 1e-12);
    there.mask = at::ones({2, 9}, at::kBool).cuda();
    Cache cache;
    CHECK(relative_error(model.forward(there, &cache).logits.cpu(), expected) < 1e-12);
  }
}

}  // namespace pare::test
