// What a copy of a model costs, in allocations. This file counts those of the whole program.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "pare/algebra/operations.h"
#include "pare/arch/streams.h"
#include "tests/weights/helpers.h"

namespace {

std::atomic<int64_t> allocations = 0;

}  // namespace

int64_t pare::test::allocations_so_far() {
  return allocations;
}

#ifndef __SANITIZE_ADDRESS__  // which replaces them itself

void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

#endif

namespace pare::test {

namespace {

template <typename Value>
int64_t cost_of_copying(const Value& value) {
  const int64_t before = allocations;
  const Value copy = value;
  return allocations - before;
}

// Every tensor on every stream, doubled so many times.
Model doubled(Model model, int times) {
  const RowMap twice{"2", {}, [](const at::Tensor& rows, const auto&) { return rows * 2; }};
  for (int n = 0; n < times; ++n) {
    for (const Stream& stream : find_streams(model.architecture).all) {
      for (const Port& port : stream.ports) {
        Weight& weight = model.weights.at(name_of(port.tensor));
        weight = mapped_along(weight, port, stream.width, twice);
      }
    }
  }
  return model;
}

}  // namespace

TEST_CASE("a copy of a model costs the same after one operation and after a hundred") {
#ifdef __SANITIZE_ADDRESS__
  std::puts("skipped what a copy costs: AddressSanitizer allocates for itself");
  return;
#endif
  const Architecture a = skip_only();
  const Model model{a, as_weights(generic_tensors(a))};
  const Model one = doubled(model, 1), hundred = doubled(model, 100);
  CHECK(cost_of_copying(one) == cost_of_copying(model));
  CHECK(cost_of_copying(hundred) == cost_of_copying(model));
  const Model eliminated = rewritten(one, "fold_value_bias,eliminate_projection");
  CHECK(cost_of_copying(eliminated) <= 2 * cost_of_copying(model));  // with a number for each tensor in another basis

  const std::string up = "blocks.1.mlp.up.weight";
  CHECK(at::equal(one.weights.at(up).load(), model.weights.at(up).load() * 2));
  CHECK(at::equal(hundred.weights.at(up).load(), model.weights.at(up).load() * std::pow(2.0, 100)));

  // What is counted is what it seems to be: a function that holds another twice doubles with every one around it.
  std::function<int()> function = [large = std::array<int, 64>{1}] { return large[0]; };
  for (int n = 0; n < 10; ++n) {
    function = [a = function, b = function] { return a() + b(); };
  }
  CHECK(cost_of_copying(function) >= 1024);
}

TEST_CASE("copies are the same node, and what is made of one is another") {
  const Weight weight = Weight::leaf("w", Dtype::f64, {2}, [] { return at::ones({2}, at::kDouble); });
  const Weight copy = weight;
  CHECK(copy == weight);
  CHECK(rounded(weight, Dtype::f64) == weight);
  const Weight narrow = rounded(weight, Dtype::bf16);
  CHECK(narrow != weight);
  CHECK(narrow.inputs().front() == weight);
  CHECK(weight.inputs().empty());
  CHECK_FALSE(Weight());
  CHECK(weight);
}

}  // namespace pare::test
