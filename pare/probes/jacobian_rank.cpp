#include "pare/probes/jacobian_rank.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "pare/arch/count.h"
#include "pare/model/executor.h"
#include "pare/model/init.h"
#include "pare/support/interrupt.h"

namespace pare {

namespace {

// Few rows of many inputs see more than many of few: all that is before a head of a few classes shows in no more
// directions of an answer than the stream is wide.
constexpr int64_t most_rows_per_input = 16;
constexpr double rounding = 1e-15;  // of the largest singular value: nothing below it means anything

// Thousands of tiny products: threads that wait for one another make them four times slower.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

// One sequence, or one image. Full attention sees how long a sequence is, so lengths differ; but half are as long as
// can be, or the last positions would hardly be seen.
Inputs draw_input(const Architecture& a, at::Generator& generator) {
  Inputs inputs;
  if (a.embedding.patch) {
    const Patch& patch = *a.embedding.patch;
    inputs.pixels = at::randn({1, patch.channels, patch.image, patch.image}, generator, at::kDouble);
    return inputs;
  }
  const int64_t shortest = (a.context + 1) / 2;
  const int64_t drawn = at::randint(2 * shortest, 2 * a.context + 1, {1}, generator, at::kLong).item<int64_t>();
  const int64_t tokens = drawn % 2 == 0 ? a.context : drawn / 2;
  inputs.ids = at::randint(a.vocab, {1, tokens}, generator, at::kLong);
  if (a.embedding.types > 0) {
    inputs.types = at::randint(a.embedding.types, {1, tokens}, generator, at::kLong);
  }
  return inputs;
}

// All that a model says, in one row.
at::Tensor said(const Outputs& outputs) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part :
       {outputs.logits.defined() ? outputs.logits : outputs.hidden, outputs.pooled, outputs.sequence_logits}) {
    if (part.defined()) {
      parts.push_back(part.flatten());
    }
  }
  return at::cat(parts);
}

// The gradient of one number with respect to all parameters, in the order of their names.
at::Tensor gradient(const at::Tensor& answer, const at::Tensor& direction,
                    const std::map<std::string, at::Tensor>& leaves) {
  answer.backward(direction, /*retain_graph=*/true);
  std::vector<at::Tensor> parts;
  for (const auto& [name, leaf] : leaves) {
    parts.push_back(leaf.grad().defined() ? leaf.grad().flatten() : at::zeros({leaf.numel()}, leaf.options()));
    leaf.mutable_grad().reset();
  }
  return at::cat(parts).detach();
}

// Random combinations of the rows of the Jacobian: as many directions as there are, and some to spare.
at::Tensor sampled_jacobian(const Executor& model, int64_t parameters, uint64_t seed) {
  const at::AutoGradMode grad(true);
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const int64_t wanted = parameters + parameters / 8 + 40;
  std::vector<at::Tensor> rows;
  while (std::ssize(rows) < wanted) {
    check_interrupt();
    const at::Tensor answer = said(model.forward(draw_input(model.architecture(), generator)));
    const int64_t count = std::clamp<int64_t>(answer.numel() / 4, 1, most_rows_per_input);
    for (int64_t i = 0; i < count; ++i) {
      rows.push_back(gradient(answer, at::randn({answer.numel()}, generator, at::kDouble), model.parameters()));
    }
  }
  return at::stack(rows);
}

// Rows and columns of one length: neither changes the rank, and a token that is rarely seen is no rounding error.
void equilibrate(at::Tensor& jacobian) {
  for (int64_t axis : {int64_t{1}, int64_t{0}}) {
    const at::Tensor length = at::linalg_vector_norm(jacobian, 2, at::IntArrayRef(axis), true);
    const at::Tensor floor = length.max() * 1e-8;  // what is shorter is rounding, and must stay so
    jacobian = jacobian / at::where(length > floor, length, length.max());
  }
}

// Many singular values that are exactly zero are too much for LAPACK now and then; turned by a rotation they are not.
at::Tensor singular_values(at::Tensor matrix) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    try {
      return at::linalg_svdvals(matrix);
    } catch (const c10::Error&) {
      at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(attempt));
      const at::Tensor square = at::randn({matrix.size(0), matrix.size(0)}, generator, at::kDouble);
      matrix = at::matmul(std::get<0>(at::linalg_qr(square)), matrix);
    }
  }
  return {};
}

void split_at_largest_gap(JacobianRank& found, const at::Tensor& values) {
  const double largest = values[0].item<double>();
  const auto value = [&](int64_t i) { return std::max(values[i].item<double>(), largest * rounding); };
  for (int64_t i = 0; i < values.size(0); ++i) {
    // Past the last one stands rounding itself: a model without redundancy has a gap too.
    const double next = i + 1 < values.size(0) ? value(i + 1) : largest * rounding;
    if (value(i) / next > found.gap) {
      found.gap = value(i) / next;
      found.rank = i + 1;
    }
  }
}

}  // namespace

bool has_switches(const Architecture& a) {
  return std::ranges::any_of(a.blocks, [](const Block& block) { return block.mlp && neurons_of(*block.mlp).switches; });
}

static JacobianRank rank_at(const Architecture& architecture, uint64_t seed) {
  const Model twin{architecture, random_weights(architecture, seed, Dtype::f64, Draw::generic)};
  const Executor model(twin, at::kDouble, at::kCPU, Use::training);
  JacobianRank found{.parameters = count(architecture).total};
  at::Tensor jacobian = sampled_jacobian(model, found.parameters, seed);
  equilibrate(jacobian);
  const at::Tensor values = singular_values(std::get<1>(at::linalg_qr(jacobian, "r")));
  if (!values.defined()) {
    return found;  // undetermined
  }
  split_at_largest_gap(found, values);
  return found;
}

// The rank of the function is the largest over all weights. A neuron of ReLU that hardly any input turns on is seen by
// hardly any row, and seems redundant where it is not: other weights are tried until as little is redundant as is known
// to be. Any other function has its rank almost everywhere, and is tried again only where the gap is lost.
JacobianRank jacobian_rank(const Architecture& architecture, uint64_t seed, int64_t known_redundant) {
  const OneThread one;
  const uint64_t most_draws = has_switches(architecture) ? 6 : 3;
  JacobianRank best = rank_at(architecture, seed);
  for (uint64_t again = 1; again < most_draws; ++again) {
    const bool settled = best.is_determined() && (!has_switches(architecture) || best.redundant() <= known_redundant);
    if (settled) {
      break;
    }
    JacobianRank found = rank_at(architecture, seed + again);
    if (found.is_determined() && (found.rank > best.rank || !best.is_determined())) {
      best = std::move(found);
    }
  }
  return best;
}

}  // namespace pare
