#include "pare/algebra/head_gauge.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <numeric>

#include "pare/support/error.h"

namespace pare {

namespace {

// The dimensions of a head that RoPE turns, as pairs; what is left is free.
std::vector<std::pair<int64_t, int64_t>> rotated_planes(const Rope& rope) {
  std::vector<std::pair<int64_t, int64_t>> planes;
  for (int64_t i = 0; i < rope.width / 2; ++i) {
    planes.push_back(rope.layout == RopeLayout::half ? std::pair(i, i + rope.width / 2) : std::pair(2 * i, 2 * i + 1));
  }
  return planes;
}

bool is_free(const Attention& t, Target target) {
  if (!has_plain_keys_and_values(t)) {
    return false;
  }
  if (target == Target::value) {
    return is<Dense>(t.output);
  }
  return !t.qk_norm && is<Dense>(t.query) && is<Dense>(t.key);
}

at::Tensor upper_factor(const at::Tensor& columns) {
  return std::get<1>(at::linalg_qr(columns, "r"));
}

at::Tensor gauge_of_group(const Attention& t, Target target, const at::Tensor& columns) {  // [rows, k]
  if (target == Target::value || !t.rope) {
    return upper_factor(columns);
  }
  const int64_t turned = t.rope->width, free = t.head_width - turned;
  at::Tensor r = at::zeros({t.head_width, t.head_width}, columns.options());
  const at::Tensor squares = columns.square().sum(0);
  for (const auto& [a, b] : rotated_planes(*t.rope)) {
    const at::Tensor length = ((squares[a] + squares[b]) / 2).sqrt();
    r.index_put_({at::tensor({a, b}), at::tensor({a, b})}, length);
  }
  if (free > 0) {
    r.narrow(0, turned, free).narrow(1, turned, free).copy_(upper_factor(columns.narrow(1, turned, free)));
  }
  return r;
}

// Applies one k x k matrix per key/value head to the head's rows: [heads * k, n] -> the same.
at::Tensor per_head(const at::Tensor& rows, const at::Tensor& matrices) {
  const int64_t groups = matrices.size(0), k = matrices.size(1), columns = rows.numel() / rows.size(0);
  const at::Tensor heads = rows.reshape({groups, -1, k, columns});
  return at::matmul(matrices.unsqueeze(1), heads).reshape(rows.sizes());
}

at::Tensor per_head_solved(const at::Tensor& rows, const at::Tensor& matrices) {  // matrices⁻ᵀ rows, matrices upper
  const int64_t groups = matrices.size(0), k = matrices.size(1), columns = rows.numel() / rows.size(0);
  const at::Tensor heads = rows.reshape({groups, -1, k, columns});
  const at::Tensor lower = matrices.transpose(-1, -2).unsqueeze(1).expand({groups, heads.size(1), k, k});
  return at::linalg_solve_triangular(lower, heads, /*upper=*/false).reshape(rows.sizes());
}

}  // namespace

ModuleId module_of(int64_t block, Target target) {
  switch (target) {
    case Target::query:
      return in_attention(block, Slot::query);
    case Target::key:
      return in_attention(block, Slot::key);
    case Target::value:
      return in_attention(block, Slot::value);
    case Target::output:
      return in_attention(block, Slot::output);
  }
  PARE_UNREACHABLE("a target without a slot");
}

at::Tensor gauge_of(const Attention& t, Target target, const at::Tensor& stored) {
  if (target == Target::output || !is_free(t, target)) {
    return {};
  }
  std::vector<at::Tensor> groups;
  const at::Tensor heads = stored.reshape({t.kv_heads, -1, t.head_width, stored.size(1)});
  for (int64_t g = 0; g < t.kv_heads; ++g) {
    groups.push_back(gauge_of_group(t, target, heads[g].transpose(-1, -2).reshape({-1, t.head_width})));
  }
  at::Tensor gauge = at::stack(groups);
  const at::Tensor diagonal = gauge.diagonal(0, -2, -1).abs();
  return diagonal.min().item<double>() > 0 ? gauge : at::Tensor();  // a head without full rank has no such D
}

std::vector<int64_t> rows_scaled_alike(const Attention& t, Target target) {
  const int64_t heads = target == Target::query || target == Target::output ? t.heads : t.kv_heads;
  std::vector<int64_t> rows(static_cast<size_t>(heads * t.head_width), 0);
  if (target == Target::output || !is_free(t, target)) {
    return rows;
  }
  std::vector<int64_t> in_head(static_cast<size_t>(t.head_width));
  std::iota(in_head.begin(), in_head.end(), 0);
  if (t.rope && target != Target::value) {
    for (const auto& [a, b] : rotated_planes(*t.rope)) {
      in_head[b] = a;
    }
  }
  for (int64_t row = 0; row < std::ssize(rows); ++row) {
    const int64_t head = row / t.head_width, group = head * t.kv_heads / heads;
    rows[row] = group * t.head_width + in_head[row % t.head_width];
  }
  return rows;
}

at::Tensor gauged_target(const at::Tensor& stored, const at::Tensor& gauge) {
  return per_head_solved(stored, gauge);
}

std::string gauge_key(const Attention& t, Target target) {
  if (target == Target::output || !is_free(t, target)) {
    return "none";
  }
  const std::string rope = t.rope && target != Target::value
                               ? fmt::format("turned {} {}", t.rope->width, t.rope->layout == RopeLayout::half)
                               : "free";
  return fmt::format("{} x {} {}", t.kv_heads, t.head_width, rope);
}

void apply_gauge(Model& model, int64_t block, Target target, const std::shared_ptr<Shelf>& shelf) {
  const Attention t = model.architecture.blocks[block].attention;
  const ModuleId module = module_of(block, target);
  const Weight source = model.weights.at(name_of(weight_of(module)));
  const bool turned = t.rope && target != Target::value;
  const Formula r =
      Formula::symbol("R", block, Formula::enclosed(turned ? "rope_gauge(" : "gauge(", source.formula(), ")"));
  const Weight gauge = held(computed({t.kv_heads, t.head_width, t.head_width}, r, {source},
                                     [=](const std::vector<at::Tensor>& in) { return gauge_of(t, target, in[0]); }),
                            shelf);
  const auto change = [&](const TensorId& tensor, auto formula, auto function) {
    const auto found = model.weights.find(name_of(tensor));
    if (found != model.weights.end()) {
      Weight& weight = found->second;
      weight = computed(weight.shape(), formula(weight.formula()), {weight, gauge},
                        [=](const std::vector<at::Tensor>& in) { return function(in[0], in[1]); });
    }
  };
  // One block for each key/value head: what has more heads repeats them.
  const Formula wide = t.heads == t.kv_heads ? r : Formula::enclosed("to_queries(", r, ")");
  const Formula own = target == Target::query ? wide : r, partners = target == Target::key ? wide : r;
  const auto times_inverse = [&](const Formula& f) { return f * own.inverse(); };
  const auto times_transposed = [&](const Formula& f) { return f * partners.transposed(); };
  change(weight_of(module), times_inverse, per_head_solved);
  change(bias_of(module), times_inverse, per_head_solved);
  if (target == Target::value) {  // stored [width, heads * k]: the head's dimensions are its columns
    change(
        weight_of(module_of(block, Target::output)), [&](const Formula& f) { return wide * f; },
        [](const at::Tensor& rows, const at::Tensor& r) { return per_head(rows.t(), r).t().contiguous(); });
  } else {
    const ModuleId partner = module_of(block, target == Target::query ? Target::key : Target::query);
    change(weight_of(partner), times_transposed, per_head);
    change(bias_of(partner), times_transposed, per_head);
  }
}

}  // namespace pare
