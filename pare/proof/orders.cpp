#include "pare/proof/orders.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/arch/slots.h"

namespace pare {

namespace {

bool all_dense(const Attention& t) {
  return (is<Dense>(t.query) || is<SameAsKey>(t.query)) && is<Dense>(t.key) && is<Dense>(t.value) &&
         is<Dense>(t.output);
}

const Attention& attention_in(const ModelView& side, int64_t n) {
  return side.architecture().blocks[n].attention;
}

bool is_order(const at::Tensor& index, int64_t count) {
  return index.dim() == 1 && index.numel() == count &&
         at::equal(std::get<0>(index.sort()), at::arange(count, at::kLong));
}

// Heads stay with their keys and values.
bool is_legal(const HeadOrder& order, const ModelView& a, const ModelView& b, int64_t n) {
  const Attention& t = attention_in(a, n);
  const int64_t groups = groups_of_heads(t), share = t.heads / groups;
  return heads_may_move(a, b, n) && is_order(order.groups, groups) && is_order(order.heads, t.heads) &&
         at::equal(at::floor_divide(order.heads, share), order.groups.repeat_interleave(share));
}

bool is_legal(const NeuronOrder& order, const ModelView& a, int64_t n) {
  if (!order.index.defined() && order.factors.empty()) {
    return true;
  }
  const std::vector<NeuronAxis> axes = neuron_axes(a.architecture(), n);
  const int64_t count = axes.empty() ? 0 : a.table().at(axes[0].tensor).shape[0];
  if (count == 0 || (order.index.defined() && !is_order(order.index, count))) {
    return false;
  }
  const std::vector<FreeFactor> free = free_factors(a.architecture(), n);
  for (const auto& [slot, factors] : order.factors) {
    const auto found = std::ranges::find(free, slot, &FreeFactor::slot);
    if (found == free.end() || factors.dim() != 1 || factors.numel() != count) {
      return false;
    }
    const at::Tensor legal = (found->any_sign ? factors != 0 : factors > 0) & factors.isfinite();
    if (!legal.all().item<bool>()) {
      return false;
    }
  }
  return true;
}

void add_heads(const HeadOrder& order, const ModelView& a, int64_t n, std::map<TensorId, Order>& orders) {
  const Attention& t = attention_in(a, n);
  const auto entries = [&](const at::Tensor& units) {
    return (units.unsqueeze(1) * t.head_width + at::arange(t.head_width, at::kLong)).flatten();
  };
  const at::Tensor of_heads = entries(order.heads), of_groups = entries(order.groups);
  for (const Slot slot : {Slot::query, Slot::key, Slot::value, Slot::output}) {
    const ModuleId module = in_attention(n, slot);
    const at::Tensor& index = slot == Slot::query || slot == Slot::output ? of_heads : of_groups;
    orders[weight_of(module)] = {index, slot == Slot::output ? 1 : 0};
    if (slot != Slot::output) {
      orders[bias_of(module)] = {index, 0};
    }
  }
  for (const TensorKind kind : {TensorKind::weight, TensorKind::bias, TensorKind::position}) {
    orders[{in_attention(n, Slot::gate), kind}] = {order.heads, 0};
  }
  if (t.qk_norm && t.qk_norm_over != QkNormOver::head) {  // gains go with their heads
    const bool rows = t.qk_norm_over == QkNormOver::each_head;
    for (const TensorKind kind : {TensorKind::weight, TensorKind::bias}) {
      orders[{in_attention(n, Slot::query_norm), kind}] = {rows ? order.heads : of_heads, 0};
      orders[{in_attention(n, Slot::key_norm), kind}] = {rows ? order.groups : of_groups, 0};
    }
  }
  for (const TensorId& id :
       {weight_of(in_attention(n, Slot::shape)), weight_of(in_attention(n, Slot::query_key)),
        bias_of(in_attention(n, Slot::query_key)), weight_of(in_attention(n, Slot::value_output))}) {
    orders[id] = {order.heads, 0};
  }
  if (is_tabled(a.architecture(), n)) {
    const int64_t width = a.architecture().width, queries = t.heads * t.head_width, keys = t.kv_heads * t.head_width;
    orders[weight_of(in_embedding(Slot::table))] = {
        at::cat({at::arange(width, at::kLong), of_heads + width, of_groups + (width + queries),
                 of_groups + (width + queries + keys)}),
        1};
  }
}

void add_neurons(const NeuronOrder& order, const ModelView& a, int64_t n, std::map<TensorId, Order>& orders) {
  const std::vector<NeuronAxis> axes = neuron_axes(a.architecture(), n);
  for (const NeuronAxis& at : axes) {
    if (order.index.defined()) {
      orders[at.tensor] = {order.index, at.axis};
    }
  }
  if (order.factors.empty()) {
    return;
  }
  const int64_t count = a.table().at(axes[0].tensor).shape[0];
  const at::Tensor index = order.index.defined() ? order.index : at::arange(count, at::kLong);
  at::Tensor written = at::ones({count}, at::kDouble);
  for (const auto& [slot, power, any_sign] : free_factors(a.architecture(), n)) {
    if (const auto by = order.factors.find(slot); by != order.factors.end()) {
      written = written / by->second.pow(power);
      for (const TensorId& id : {weight_of(in_mlp(n, slot)), bias_of(in_mlp(n, slot))}) {
        orders[id] = {index, 0, by->second};
      }
    }
  }
  orders[axes.back().tensor] = {index, 1, written};
}

}  // namespace

std::vector<NeuronAxis> neuron_axes(const Architecture& architecture, int64_t n) {
  std::vector<NeuronAxis> found;
  if (!architecture.blocks[n].mlp) {
    return found;
  }
  const auto [readers, writer] = mlp_matrices(architecture, n);
  for (const TensorSpec& matrix : readers) {
    if (matrix.shape[1] != architecture.width) {
      return {};  // a bias as one more column: held against each other in the order in which they are stored
    }
    found.push_back({matrix.id});
    found.push_back({bias_of(matrix.id.module)});
  }
  found.push_back({.tensor = writer.id, .axis = 1});
  return found;
}

std::vector<FreeFactor> free_factors(const Architecture& architecture, int64_t n) {
  return neuron_axes(architecture, n).empty() ? std::vector<FreeFactor>()
                                              : neurons_of(*architecture.blocks[n].mlp).factors;
}

bool heads_may_move(const ModelView& a, const ModelView& b, int64_t n) {
  const Attention &t = attention_in(a, n), &u = attention_in(b, n);
  const bool dense =
      is_tabled(a.architecture(), n) ? is<Dense>(t.output) && is<Dense>(u.output) : all_dense(t) && all_dense(u);
  return dense && t.scores == u.scores && t.values == u.values && !t.alibi && t.heads > 1;
}

int64_t groups_of_heads(const Attention& t) {
  return t.scores == Form::collapsed && t.values == Form::collapsed ? t.heads : t.kv_heads;
}

std::map<TensorId, Order> orders_of_tensors(const ModelView& a, const ModelView& b,
                                            const std::vector<BlockOrder>& blocks, std::vector<std::string>& gaps) {
  std::map<TensorId, Order> orders;
  for (int64_t n = 0; n < std::ssize(blocks); ++n) {
    const BlockOrder& block = blocks[n];
    if (block.heads && !is_legal(*block.heads, a, b, n)) {
      gaps.push_back(fmt::format("blocks[{}].attention: its heads cannot be in such an order", n));
    } else if (block.heads) {
      add_heads(*block.heads, a, n, orders);
    }
    if (!is_legal(block.neurons, a, n)) {
      gaps.push_back(fmt::format("blocks[{}].mlp: its neurons cannot be in such an order, or have such factors", n));
    } else {
      add_neurons(block.neurons, a, n, orders);
    }
  }
  return orders;
}

}  // namespace pare
