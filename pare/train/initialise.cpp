#include "pare/train/initialise.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "pare/model/executor.h"
#include "pare/model/init.h"
#include "pare/model/inputs.h"

namespace pare {

namespace {

Weight scaled_weight(const Weight& weight, double factor) {
  return Weight::made("scaled", weight.dtype(), weight.shape(), {weight},
                      [factor](std::vector<at::Tensor>& in) { return in[0] * factor; });
}

// Each load is a copy: who trains moves what it loaded.
Weight held_weight(const std::string& name, const at::Tensor& tensor) {
  return Weight::leaf(name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), [tensor] { return tensor.clone(); });
}

bool is_matrix(const TensorSpec& spec) {
  return !spec.index && spec.part != Part::norm && spec.part != Part::bias && spec.part != Part::shape;
}

// Whether a tensor writes what a skip adds to, so that the stream grows with every layer.
bool writes_to_a_skip(const TensorSpec& spec, const Architecture& a) {
  if (!spec.id.module.block) {
    return false;
  }
  const Block& block = a.blocks[*spec.id.module.block];
  for (const Axis& axis : spec.axes) {
    if (axis.role != Role::writer) {
      continue;
    }
    if (axis.point == Point::attention_output) {
      return block.attention.skip;
    }
    if (axis.point == Point::mlp_output) {
      return block.mlp && block.mlp->skip;
    }
  }
  return false;
}

double residual_factor(const Architecture& a) {
  return 1 / std::sqrt(2 * static_cast<double>(layer_blocks(a).size()));
}

// GPT-2's: everything of one deviation, and what the layers add to the stream so much smaller that all of them together
// add as much as one.
Weights gpt2_weights(const TrainConfig& config, Dtype dtype) {
  const Architecture& a = config.architecture;
  Weights weights = random_weights(a, static_cast<uint64_t>(config.seed), dtype, Draw::unit);
  for (const TensorSpec& spec : tensor_table(a)) {
    if (is_matrix(spec)) {
      const double factor = spec.part == Part::key      ? config.init.key
                            : writes_to_a_skip(spec, a) ? residual_factor(a)
                                                        : 1;
      weights[spec.name] = scaled_weight(weights[spec.name], config.init.deviation * factor);
    }
  }
  return weights;
}

// Orthonormal columns or rows, whichever are fewer, and rows of length one on average: as N(0, 1/in) has, but every
// direction goes on as long as it came.
at::Tensor orthogonal(const at::Tensor& drawn) {
  const int64_t rows = drawn.size(0), columns = drawn.size(1);
  const at::Tensor tall = rows >= columns ? drawn : drawn.t();
  const at::Tensor q = std::get<0>(at::linalg_qr(tall.to(at::kDouble)));
  const double longer = rows > columns ? std::sqrt(static_cast<double>(rows) / static_cast<double>(columns)) : 1;
  return ((rows >= columns ? q : q.t()) * longer).to(drawn.scalar_type()).contiguous();
}

Weight orthogonal_weight(const Weight& weight) {
  return Weight::made("orthogonal", weight.dtype(), weight.shape(), {weight},
                      [](std::vector<at::Tensor>& in) { return orthogonal(in[0]); });
}

bool is_on_the_way(const TensorSpec& spec) {  // of what a token carries, not of who looks at whom
  return (spec.part == Part::value || spec.part == Part::output || spec.part == Part::mlp) && spec.shape.size() == 2 &&
         !spec.index;
}

// Where scores are all the same, shaped attention passes every token on as it is: it starts there.
void start_uniform(const Architecture& a, Weights& weights) {
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    const Attention& attention = a.blocks[n].attention;
    if (!attention.shaped) {
      continue;
    }
    // A query that is the token itself cannot be zero, so its key is.
    for (const Slot slot : {is<Identity>(attention.query) ? Slot::key : Slot::query, Slot::query_key}) {
      const auto found = weights.find(name_of(weight_of(in_attention(n, slot))));
      if (found != weights.end()) {
        found->second = scaled_weight(found->second, 0);
      }
    }
  }
}

// Matrices of deviation 1/sqrt(in), attention outputs smaller where they have a skip, embeddings as large as asked for;
// then every block whose MLP has no skip is made to write with deviation 1, from the first on.
Weights norm_free_weights(const TrainConfig& config, Dtype dtype, const Inputs& sample) {
  const Architecture& a = config.architecture;
  const Weights units = random_weights(a, static_cast<uint64_t>(config.seed), dtype, Draw::unit);
  Weights weights = random_weights(a, static_cast<uint64_t>(config.seed), dtype, Draw::plain);
  start_uniform(a, weights);
  for (const TensorSpec& spec : tensor_table(a)) {
    if (config.init.recipe == InitRecipe::orthogonal && is_on_the_way(spec)) {
      weights[spec.name] = orthogonal_weight(weights.at(spec.name));
    }
    const bool table = spec.id.module == token_table || spec.id.module == position_table;
    if (table) {
      weights[spec.name] = scaled_weight(units.at(spec.name), config.init.embedding);
    } else if (writes_to_a_skip(spec, a) && is_matrix(spec)) {
      weights[spec.name] = scaled_weight(weights[spec.name], residual_factor(a));
    }
  }
  for (auto& [name, weight] : weights) {  // once: every block that is measured runs the model
    weight = held_weight(name, weight.load());
  }
  constexpr int64_t enough = 4096;  // tokens tell a deviation
  const int64_t rows = std::max<int64_t>(1, enough / (sample.ids.defined() ? sample.ids.size(1) : patch_positions(a)));
  const Inputs few = each_of(sample, [rows](const at::Tensor& x) { return x.narrow(0, 0, std::min(rows, x.size(0))); });
  const std::vector<int64_t> order = layer_blocks(a);
  std::set<int64_t> seen;
  for (size_t layer = 0; layer < order.size(); ++layer) {
    const Block& block = a.blocks[order[layer]];
    if (!seen.insert(order[layer]).second || !block.mlp || block.mlp->skip || block.wiring == Wiring::parallel) {
      continue;
    }
    Taps taps;
    const std::string after = fmt::format("residual.{}", layer + 1);
    taps.record(after);
    const Executor model({a, weights}, dtype == Dtype::f64 ? at::kDouble : at::kFloat);
    const at::NoGradGuard no_grad;
    model.forward(few, nullptr, &taps, Logits::none);
    const double deviation = taps.recorded().at(after).to(at::kDouble).std().item<double>();
    if (!std::isfinite(deviation) || deviation == 0) {
      continue;  // the first step will say what is wrong with it
    }
    for (const TensorSpec& spec : tensor_table(a)) {
      const bool writes = spec.id.module.block == order[layer] && spec.id.module.sublayer == Sublayer::mlp &&
                          is_matrix(spec) && !spec.axes.empty() && spec.axes.front().role == Role::writer;
      if (writes) {
        weights[spec.name] = scaled_weight(weights[spec.name], 1 / deviation);
      }
    }
  }
  return weights;
}

}  // namespace

Model initial_model(const TrainConfig& config, const Inputs& sample) {
  constexpr Dtype dtype = Dtype::f32;  // in every type the same start
  const at::ScalarType held = config.dtype == TrainDtype::float64 ? at::kDouble : at::kFloat;
  Weights weights;
  switch (config.init.recipe) {
    case InitRecipe::plain:
      weights = random_weights(config.architecture, static_cast<uint64_t>(config.seed), dtype, Draw::plain);
      break;
    case InitRecipe::gpt2:
      weights = gpt2_weights(config, dtype);
      break;
    case InitRecipe::norm_free:
    case InitRecipe::orthogonal:
      weights = norm_free_weights(config, dtype, sample);
      break;
  }
  start_uniform(config.architecture, weights);
  for (auto& [name, weight] : weights) {  // drawn once: a start is stored, run and compared
    const at::Tensor drawn = weight.load();
    weight = held_weight(name, drawn.is_floating_point() ? drawn.to(held) : drawn);
  }
  return {config.architecture, std::move(weights)};
}

}  // namespace pare
