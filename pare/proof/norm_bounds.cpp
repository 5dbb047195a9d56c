#include "pare/proof/norm_bounds.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "pare/arch/norms.h"

namespace pare {

namespace {

constexpr double unbounded = std::numeric_limits<double>::infinity();
constexpr double rounding_of_this = 1 + 1e-9;  // of what is computed here, in float64
// No length is said to be less: a bound may be larger than it has to be, and squares of this do not vanish.
constexpr double shortest = 1e-100;

// Of the rows of a matrix; of tiny numbers, too, whose squares would be zero.
at::Tensor lengths_of_rows(const at::Tensor& rows) {
  const at::Tensor largest = rows.abs().amax({1}, true);
  const at::Tensor scaled = rows / largest.clamp_min(std::numeric_limits<double>::denorm_min());
  return at::where(largest > 0, scaled.norm(2, {1}, true) * largest, largest).squeeze(1);
}

double length_of(const at::Tensor& vector) {
  return lengths_of_rows(vector.reshape({1, -1})).item<double>() * rounding_of_this;
}

at::Tensor numbers(const Weight& weight) {
  return weight.load().to(at::kDouble);
}

// Of each matrix of a stack [n, rows, columns], no less than its largest singular value, and no more than the eighth
// root of `rows` times that: the trace of the eighth power of W'W is the sum of the sixteenth powers.
at::Tensor largest_stretches(const at::Tensor& stack) {
  const at::Tensor size = lengths_of_rows(stack.flatten(1)).clamp_min(std::numeric_limits<double>::min());
  const at::Tensor w = stack / size.view({-1, 1, 1});
  at::Tensor power = w.size(1) < w.size(2) ? at::matmul(w, w.transpose(1, 2)) : at::matmul(w.transpose(1, 2), w);
  power = at::matmul(power, power);
  power = at::matmul(power, power);
  return size * power.flatten(1).norm(2, {1}).pow(0.125) * rounding_of_this;
}

double longest_row(const Weight& table) {
  return table.measured("longest row", [&table] {
    const int64_t rows = table.shape().front(), step = table.can_load_rows() ? 1 << 14 : rows;
    double longest = 0;
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t count = std::min(step, rows - begin);
      const at::Tensor part = table.can_load_rows() ? table.load_rows(begin, count) : table.load();
      longest = std::max(longest, lengths_of_rows(part.to(at::kDouble).flatten(1)).max().item<double>());
    }
    return longest * rounding_of_this;
  });
}

class Lengths {
 public:
  Lengths(const Model& model, double hopeless) : model_(model), a_(model.architecture), hopeless_(hopeless) {}

  std::map<ModuleId, double> run() {
    double x = limited(embedding());
    for (const int64_t n : layer_blocks(a_)) {
      x = block(n, x);
    }
    const double last = normed(a_.final_norm, final_norm, x, a_.width);
    transform(a_.head.transform, Slot::transform, Slot::transform_norm, last);
    if (a_.head.sequence) {
      transform(a_.head.sequence->transform, Slot::sequence_transform, Slot::sequence_transform_norm, last);
    }
    return std::move(seen_);
  }

 private:
  const Weight* find(const TensorId& id) const {
    const auto found = model_.weights.find(name_of(id));
    return found == model_.weights.end() ? nullptr : &found->second;
  }
  double limited(double length) const { return length <= hopeless_ ? std::max(length, shortest) : unbounded; }
  double vector(const TensorId& id) const {
    const Weight* weight = find(id);
    return weight ? length_of(numbers(*weight)) : 0;
  }
  // A matrix [out, in] and its bias.
  double linear(const ModuleId& module, double x) const {
    const Weight* weight = find(weight_of(module));
    if (!weight || weight->shape().size() != 2 || !std::isfinite(x)) {
      return unbounded;
    }
    const double stretch = weight->measured(
        "largest stretch", [weight] { return largest_stretches(numbers(*weight).unsqueeze(0)).item<double>(); });
    return limited(stretch * x + vector(bias_of(module)));
  }

  double normed(const std::optional<Norm>& norm, const ModuleId& module, double x, int64_t width) {
    if (!norm) {
      return x;
    }
    const double size = static_cast<double>(width);
    double& most = seen_[module];
    most = std::max(most, x * x / size);
    const Weight* gain = find(weight_of(module));
    const double factor = gain ? (numbers(*gain) + norm->offset).abs().max().item<double>() : 1;
    if (norm->kind == NormKind::scale) {
      return limited(x * std::abs(norm->factor) * factor + vector(bias_of(module)));
    }
    // No row of it is longer than √width, whatever comes in.
    double length = std::sqrt(size);
    if (norm->kind != NormKind::dyt && norm->epsilon > 0) {
      length = std::min(length, x / std::sqrt(norm->epsilon));
    }
    return limited(length * factor + vector(bias_of(module)));
  }

  double embedding() {
    const Embedding& e = a_.embedding;
    const auto rows = [this](const ModuleId& table) {
      const Weight* weight = find(weight_of(table));
      return weight ? longest_row(*weight) : 0;
    };
    if (e.patch || e.masked || a_.first_layer == FirstLayer::table) {
      return unbounded;
    }
    const ModuleId projection = in_embedding(Slot::projection);
    double x = rows(token_table) * std::abs(e.scale);
    if (e.factor && e.factor_scope == FactorScope::token) {
      x = linear(projection, x);
    }
    x += rows(position_table) + rows(in_embedding(Slot::type));
    if (e.position == Position::sinusoidal || e.position == Position::sinusoidal_halves) {
      x += std::sqrt(static_cast<double>(embedding_width(a_)));
    }
    x = normed(e.norm, in_embedding(Slot::norm), x, embedding_width(a_));
    return e.factor && e.factor_scope == FactorScope::sum ? linear(projection, x) : x;
  }

  double block(int64_t n, double x) {
    const Block& block = a_.blocks[n];
    const Attention& t = block.attention;
    const auto norm_at = [](const std::optional<Norm>& norm, NormPlace place) {
      return norm && norm->place == place ? norm : std::nullopt;
    };
    const double input = normed(norm_at(t.norm, NormPlace::pre), in_attention(n, Slot::norm), x, a_.width);
    const double attended = normed(t.output_norm, in_attention(n, Slot::output_norm), attention(n, t, input), a_.width);
    const double sum = limited((t.skip ? x : 0) + attended);
    if (block.wiring == Wiring::parallel) {
      if (!block.mlp) {
        return sum;
      }
      return limited(sum + mlp(n, *block.mlp,
                               normed(block.mlp->norm, in_mlp(n, Slot::norm), block.mlp->norm ? x : input, a_.width)));
    }
    const double middle = normed(norm_at(t.norm, NormPlace::post), in_attention(n, Slot::norm), sum, a_.width);
    if (!block.mlp) {
      return middle;
    }
    const Mlp& m = *block.mlp;
    const double read = normed(norm_at(m.norm, NormPlace::pre), in_mlp(n, Slot::norm), middle, a_.width);
    const double written = limited((m.skip ? middle : 0) + mlp(n, m, read));
    return normed(norm_at(m.norm, NormPlace::post), in_mlp(n, Slot::norm), written, a_.width);
  }

  // The length of each head's part of a projection, [heads]; infinite where it is not a stored matrix.
  at::Tensor heads_of(const ModuleId& module, const Projection& projection, int64_t heads, double x) const {
    const Weight* weight = find(weight_of(module));
    const bool identity = is<Identity>(projection);
    const bool dense = is<Dense>(projection) && weight && weight->shape().size() == 2;
    if (!(identity || dense) || !std::isfinite(x)) {
      return at::full({heads}, unbounded, at::kDouble);
    }
    at::Tensor lengths = at::full({heads}, x, at::kDouble);
    if (dense) {
      const at::Tensor matrix = numbers(*weight);
      lengths = largest_stretches(matrix.view({heads, -1, matrix.size(1)})) * x;
    }
    if (const Weight* bias = find(bias_of(module))) {
      lengths = lengths + lengths_of_rows(numbers(*bias).view({heads, -1})) * rounding_of_this;
    }
    return lengths.clamp_min(shortest);
  }

  double attention(int64_t n, const Attention& t, double x) {
    const auto at = [n](Slot slot) { return in_attention(n, slot); };
    if (t.qk_norm) {
      const auto see = [&](Slot norm, const at::Tensor& lengths) {  // one over all heads sees the mean of theirs
        const double longest = lengths.max().item<double>();
        double& most = seen_[at(norm)];
        most = std::max(most, longest * longest / static_cast<double>(t.head_width));
      };
      const at::Tensor keys = heads_of(at(Slot::key), t.key, t.kv_heads, x);
      see(Slot::query_norm, is<SameAsKey>(t.query) ? keys : heads_of(at(Slot::query), t.query, t.heads, x));
      see(Slot::key_norm, keys);
    }
    if (t.shaped || is_tabled(a_, n) || !std::isfinite(x)) {
      return unbounded;
    }
    const double added = vector(bias_of(at(Slot::output)));
    if (t.values == Form::collapsed) {
      const at::Tensor heads = largest_stretches(numbers(*find(weight_of(at(Slot::value_output)))));
      return limited(heads.sum().item<double>() * x + added);
    }
    // Each head may look at another token. A gate is at most one.
    const at::Tensor values = heads_of(at(Slot::value), t.value, t.kv_heads, x);
    const double group = static_cast<double>(t.heads) / static_cast<double>(t.kv_heads);
    const double mixed = std::sqrt(values.square().sum().item<double>() * group);
    return is<Identity>(t.output) ? limited(mixed + added) : linear(at(Slot::output), mixed);
  }

  static double activated(Activation activation, double x, int64_t width) {
    switch (activation) {
      case Activation::relu_squared:
        return x * x;
      case Activation::xielu:
        return unbounded;
      case Activation::sigmoid:
        return std::sqrt(static_cast<double>(width));
      default:  // |α(z)| <= |z|
        return x;
    }
  }

  double mlp(int64_t n, const Mlp& m, double x) {
    const double written = std::visit([&](const auto& kind) { return neurons(n, kind, x); }, m.kind);
    return normed(m.output_norm, in_mlp(n, Slot::output_norm), written, a_.width);
  }

  double neurons(int64_t n, const DenseMlp& m, double x) const {
    const double up = linear(in_mlp(n, Slot::up), x);
    const double hidden = m.gated ? up * activated(m.activation, linear(in_mlp(n, Slot::gate), x), m.width)
                                  : activated(m.activation, up, m.width);
    return linear(in_mlp(n, Slot::down), hidden);
  }

  // A probability times a value, whose matrix reads a one beside the input.
  double neurons(int64_t n, const NeuronHeads& m, double x) const {
    const ModuleId value = in_mlp(n, m.shared_value ? Slot::query : Slot::value);
    return linear(in_mlp(n, Slot::output), linear(value, std::sqrt(x * x + 1)));
  }

  void transform(const std::optional<HeadTransform>& transform, Slot slot, Slot norm, double x) {
    if (transform && transform->norm) {
      const int64_t width = find(weight_of(in_head(slot)))->shape().front();
      normed(transform->norm, in_head(norm), activated(transform->activation, linear(in_head(slot), x), width), width);
    }
  }

  const Model& model_;
  const Architecture& a_;
  double hopeless_;
  std::map<ModuleId, double> seen_;
};

// What was computed is float64 whatever it was computed of, and that is what counts: nothing finer is known of it.
void add_roundoffs(const Weight& weight, double& finest, std::set<const void*>& seen) {
  if (weight.dtype() == Dtype::f64 && !weight.inputs().empty()) {
    if (seen.insert(weight.inputs().data()).second) {
      for (const Weight& input : weight.inputs()) {
        add_roundoffs(input, finest, seen);
      }
    }
  } else if (!word(weight.dtype()).empty()) {  // an index has no word
    finest = std::min(finest, unit_roundoff(weight.dtype()));
  }
}

}  // namespace

std::map<ModuleId, double> largest_mean_squares(const Model& model, double hopeless) {
  return Lengths(model, hopeless).run();
}

double share_of_epsilon(double mean_square, double epsilon) {
  return mean_square / (2 * epsilon);
}

double finest_roundoff(const Weights& weights) {
  double finest = unit_roundoff(Dtype::bf16);
  std::set<const void*> seen;
  for (const auto& [name, weight] : weights) {
    add_roundoffs(weight, finest, seen);
  }
  return finest;
}

std::map<ModuleId, double> large_epsilons(const Architecture& architecture) {
  Architecture copy = architecture;
  std::map<ModuleId, double> epsilons;
  for (const PlacedNorm& placed : norms_of(copy)) {
    const bool adds = placed.norm->kind == NormKind::rms || placed.norm->kind == NormKind::layer;
    epsilons[placed.module] = adds ? placed.norm->epsilon : 0;
  }
  for (int64_t n = 0; n < std::ssize(copy.blocks); ++n) {
    if (const std::optional<Norm>& heads = copy.blocks[n].attention.qk_norm) {
      epsilons[in_attention(n, Slot::query_norm)] = epsilons[in_attention(n, Slot::key_norm)] = heads->epsilon;
    }
  }
  std::erase_if(epsilons, [](const auto& entry) { return !(entry.second > 1); });
  return epsilons;
}

std::map<ModuleId, double> dominated_shares(const Model& model) {
  const std::map<ModuleId, double> epsilons = large_epsilons(model.architecture);
  std::map<ModuleId, double> shares;
  if (epsilons.empty()) {
    return shares;
  }
  double largest = 0;
  for (const auto& [module, epsilon] : epsilons) {
    largest = std::max(largest, epsilon);
  }
  // Longer than this no norm of the model takes for nothing.
  const int64_t width = std::max(model.architecture.width, embedding_width(model.architecture));
  const double hopeless = std::sqrt(2 * largest * static_cast<double>(width));
  const std::map<ModuleId, double> sizes = largest_mean_squares(model, hopeless);
  for (const auto& [module, epsilon] : epsilons) {
    const auto found = sizes.find(module);
    shares[module] = found == sizes.end() ? unbounded : share_of_epsilon(found->second, epsilon);
  }
  return shares;
}

}  // namespace pare
