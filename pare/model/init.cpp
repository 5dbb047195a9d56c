#include "pare/model/init.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

uint64_t seed_of(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u ^ (seed * 0x9e3779b97f4a7c15u);  // FNV-1a
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

double largest_of(Dtype dtype) {
  switch (scalar_type(dtype)) {
    case at::kHalf:
      return std::numeric_limits<at::Half>::max();
    case at::kDouble:
      return std::numeric_limits<double>::max();
    default:  // float32 reaches a little further
      return std::numeric_limits<at::BFloat16>::max();
  }
}

// A prime, so that rows do not repeat.
constexpr int64_t most_drawn = 1'000'003;

struct Spread {
  double mean = 0, deviation = 0;
};

struct Maker {
  TensorSpec spec;
  int64_t width = 0;
  Draw draw = Draw::plain;

  Spread spread() const {
    const bool generic = draw == Draw::generic;
    const Slot slot = spec.id.module.slot;
    const double fan_in = static_cast<double>(element_count(spec.shape) / std::max<int64_t>(spec.shape[0], 1));
    if (draw == Draw::unit && spec.part != Part::norm && spec.part != Part::bias && spec.part != Part::shape) {
      return {0, 1};
    }
    switch (spec.part) {
      case Part::norm:
      case Part::bias:
      case Part::shape:
        return {spec.initial, generic ? 0.2 : 0};
      case Part::embedding:
        if (slot == Slot::projection || slot == Slot::patch) {
          return {0, 1 / std::sqrt(fan_in)};
        }
        return {0, generic ? 1 : 1 / std::sqrt(static_cast<double>(width))};
      case Part::query_key:
      case Part::value_output:  // as the product of two factors of width / heads columns would be
        return {0, 1 / std::sqrt(static_cast<double>(width * spec.shape[0]))};
      default:
        return {0, 1 / std::sqrt(static_cast<double>(spec.shape.back()))};
    }
  }

  at::Tensor make(at::Generator generator, at::ScalarType dtype) const {
    if (spec.index) {  // distinct inputs for each key/value head
      std::vector<at::Tensor> rows;
      for (int64_t g = 0; g < spec.shape[0]; ++g) {
        rows.push_back(std::get<0>(at::randperm(width, generator, at::kLong).narrow(0, 0, spec.shape[1]).sort()));
      }
      return at::stack(rows).to(at::kInt);
    }
    const auto [mean, deviation] = spread();
    const at::ScalarType draw_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
    if (deviation == 0) {
      return at::full(spec.shape, mean, dtype);
    }
    const int64_t all = element_count(spec.shape), drawn = draw == Draw::repeated ? std::min(all, most_drawn) : all;
    const at::Tensor numbers = at::randn({drawn}, generator, draw_dtype).mul_(deviation).add_(mean).to(dtype);
    if (drawn == all) {
      return numbers.view(spec.shape);
    }
    const at::Tensor flat = at::empty({all}, dtype);
    for (int64_t done = 0; done < all; done += drawn) {
      const int64_t now = std::min(drawn, all - done);
      flat.narrow(0, done, now).copy_(numbers.narrow(0, 0, now));
    }
    return flat.view(spec.shape);
  }
};

}  // namespace

Weights random_weights(const Architecture& architecture, uint64_t seed, Dtype dtype, Draw draw) {
  Weights weights;
  const double largest = largest_of(dtype);
  for (const TensorSpec& spec : tensor_table(architecture)) {
    refuse_if(std::abs(spec.initial) > largest,
              "tensor {} begins with {:g}, which {} cannot hold (up to {:g}): choose another type", quote(spec.name),
              spec.initial, word(dtype), largest);
    const Maker maker{spec, architecture.width, draw};
    weights[spec.name] = Weight::leaf(spec.name, spec.index ? Dtype::i32 : dtype, spec.shape, [maker, seed, dtype] {
      at::Generator generator = at::detail::createCPUGenerator(seed_of(seed, maker.spec.name));
      return maker.make(generator, scalar_type(dtype));
    });
  }
  return weights;
}

}  // namespace pare
