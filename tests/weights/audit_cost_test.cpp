// What an audit costs, in allocations: twice the layers cost twice as much, not four times.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "pare/arch/presets.h"
#include "pare/audit/audit.h"
#include "tests/weights/helpers.h"

namespace pare::test {

namespace {

int64_t cost_of_audit(Architecture a, size_t layers, bool with_weights) {
  a.blocks.assign(layers, a.blocks.front());
  const Weights weights = with_weights ? as_weights(generic_tensors(a)) : Weights();
  const int64_t before = allocations_so_far();
  if (with_weights) {
    audit_passes({a, weights}, Dtype::f64, Measure::usual);
  } else {
    text_of(audit_architecture(a));
  }
  return allocations_so_far() - before;
}

// 16 layers more cost twice as much as 8 layers more; where the cost grew with the square, four times.
void check_linear(const Architecture& a, bool with_weights = false) {
  cost_of_audit(a, 2, with_weights);  // what is made once
  const auto cost = [&](size_t layers) { return static_cast<double>(cost_of_audit(a, layers, with_weights)); };
  const double few = cost(8), twice = cost(16), four_times = cost(32);
  CAPTURE(few);
  CAPTURE(twice);
  CHECK(four_times - twice < 2.2 * (twice - few));
}

}  // namespace

TEST_CASE("an audit costs in proportion to the layers") {
#ifdef __SANITIZE_ADDRESS__
  std::puts("skipped what an audit costs: AddressSanitizer allocates for itself");
  return;
#endif
  for (const std::string preset : {"gpt2", "bert-base", "skipless-mistral-7b"}) {
    CAPTURE(preset);
    check_linear(*find_preset(preset));
  }
  check_linear(skip_only(), true);
  check_linear(skip_only(false), true);
}

}  // namespace pare::test
