#include "pare/proof/order.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <optional>

namespace pare {

namespace {

// Along this axis of a tensor every unit (a neuron, a head) has so many entries, one unit after another.
struct Member {
  TensorId tensor;
  int64_t axis = 0, entries = 1;
};

struct Units {
  int64_t count = 0;
  size_t input = 0;  // the stream they read
  std::vector<Member> members = {};
  bool known_by_biases = false;  // what something may be folded into says nothing
};

bool both_store(const ProofSide& a, const ProofSide& b, const TensorId& id) {
  return a.stores(id) && b.stores(id) && a.table().at(id).shape == b.table().at(id).shape;
}

bool all_dense(const Attention& t) {
  return is<Dense>(t.query) && is<Dense>(t.key) && is<Dense>(t.value) && is<Dense>(t.output);
}

std::optional<Units> neurons(const ProofSide& a, int64_t n) {
  const Block& block = a.architecture().blocks[static_cast<size_t>(n)];
  if (!block.mlp || !std::holds_alternative<DenseMlp>(block.mlp->kind)) {
    return std::nullopt;
  }
  const TensorId up = weight_of(in_mlp(n, Slot::up));
  Units units{a.table().at(up).shape[0], a.streams().blocks[static_cast<size_t>(n)].mlp_input};
  for (const Slot slot : {Slot::up, Slot::gate}) {
    units.members.push_back({weight_of(in_mlp(n, slot))});
    units.members.push_back({bias_of(in_mlp(n, slot))});
  }
  units.members.push_back({.tensor = weight_of(in_mlp(n, Slot::down)), .axis = 1});
  units.known_by_biases = !a.folded().shifts(units.input);
  return units;
}

// All the queries that share a key and a value go with them. Not where something else tells heads apart.
std::optional<Units> heads(const ProofSide& a, const ProofSide& b, int64_t n) {
  const Attention& t = a.architecture().blocks[static_cast<size_t>(n)].attention;
  const Attention& u = b.architecture().blocks[static_cast<size_t>(n)].attention;
  const bool plain = all_dense(t) && all_dense(u) && t.scores == Form::factored && t.values == Form::factored;
  if (!plain || t.alibi || t.gate || t.qk_norm || t.kv_heads == 1 || is_tabled(a.architecture(), n)) {
    return std::nullopt;
  }
  Units units{t.kv_heads, a.streams().blocks[static_cast<size_t>(n)].attention_input};
  const int64_t share = t.heads / t.kv_heads * t.head_width;
  for (const Slot slot : {Slot::query, Slot::key, Slot::value, Slot::output}) {
    const ModuleId module = in_attention(n, slot);
    const bool wide = slot == Slot::query || slot == Slot::output;
    units.members.push_back({weight_of(module), slot == Slot::output ? 1 : 0, wide ? share : t.head_width});
    if (slot != Slot::output) {
      units.members.push_back({bias_of(module), 0, wide ? share : t.head_width});
    }
  }
  return units;
}

// [count, n] for each side.
struct Signatures {
  at::Tensor reference, candidate;
};

// What a tensor says of each unit, in units of the reference's size.
Signatures signatures(const ProofSide& a, const ProofSide& b, const Units& units, const Member& member) {
  const auto rows = [&](const ProofSide& side) {
    const at::Tensor stored = side.load(member.tensor).value;
    const bool reads = member.tensor.kind == TensorKind::weight && member.axis == 0;
    const at::Tensor whole = reads ? side.with_gain({stored, stored}, units.input).value : stored;
    return whole.movedim(member.axis, 0).reshape({units.count, -1}).to(at::kFloat);
  };
  const at::Tensor x = rows(a), size = x.square().mean().sqrt().clamp_min(1e-30);
  return {x / size, rows(b) / size};
}

// All that is read and written, in few numbers: a random projection keeps distances, and costs less to compare.
Signatures signatures(const ProofSide& a, const ProofSide& b, const Units& units) {
  constexpr int64_t few = 128;
  at::Generator generator = at::detail::createCPUGenerator(few);
  Signatures all{at::zeros({units.count, few}), at::zeros({units.count, few})};
  for (const Member& member : units.members) {
    const bool bias = member.tensor.kind == TensorKind::bias;
    if (!both_store(a, b, member.tensor) || (bias && !units.known_by_biases)) {
      continue;
    }
    const Signatures one = signatures(a, b, units, member);
    const at::Tensor onto = at::randn({one.reference.size(1), few}, generator).to(one.reference.device());
    all = {all.reference.to(onto.device()) + at::matmul(one.reference, onto),
           all.candidate.to(onto.device()) + at::matmul(one.candidate, onto)};
  }
  return all;
}

// Nearer than any two that are not the same up to rounding, in whatever type.
constexpr double near = 0.05;

at::Tensor are_near(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).norm(2, {1}) <= a.norm(2, {1}) * near;
}

at::Tensor nearest(const at::Tensor& some, const at::Tensor& all) {
  return (all.square().sum(1) - 2 * at::matmul(some, all.t())).argmin(1);
}

// Judged by the first of their tensors, which costs little: where that is as it was nothing changed places, and where
// none of a few is anywhere the candidate has another basis, or is another model.
bool may_be_reordered(const ProofSide& a, const ProofSide& b, const Units& units) {
  const Member& first = units.members[0];
  if (!both_store(a, b, first.tensor) || b.shares(first.tensor)) {
    return false;
  }
  const auto [x, y] = signatures(a, b, units, first);
  constexpr int64_t few = 16;
  const at::Tensor probe = x.slice(0, 0, std::nullopt, (units.count + few - 1) / few);
  return !are_near(x, y).all().item<bool>() && are_near(probe, y.index_select(0, nearest(probe, y))).any().item<bool>();
}

// For each of the reference's units the candidate's that is the same, or else one that is left.
std::optional<at::Tensor> order_of(const Signatures& both) {
  const auto& [a, b] = both;
  const int64_t count = a.size(0);
  constexpr int64_t at_once = 1024;
  std::vector<at::Tensor> found;
  for (const at::Tensor& slice : a.split(at_once)) {
    found.push_back(nearest(slice, b));
  }
  const at::Tensor candidates = at::cat(found).to(at::kCPU);
  const at::Tensor is_near = are_near(a, b.index_select(0, candidates.to(b.device()))).to(at::kCPU);
  at::Tensor order = at::full({count}, -1, at::kLong);
  std::vector<bool> taken(static_cast<size_t>(count), false);
  const auto take = [&](int64_t i, int64_t j) {
    order[i] = j;
    taken[static_cast<size_t>(j)] = true;
  };
  const int64_t* const wanted = candidates.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    if (is_near.data_ptr<bool>()[i] && !taken[static_cast<size_t>(wanted[i])]) {
      take(i, wanted[i]);
    }
  }
  int64_t left = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (order.data_ptr<int64_t>()[i] >= 0) {
      continue;
    }
    if (!taken[static_cast<size_t>(i)]) {
      take(i, i);
      continue;
    }
    while (taken[static_cast<size_t>(left)]) {
      ++left;
    }
    take(i, left);
  }
  return at::equal(order, at::arange(count, at::kLong)) ? std::nullopt : std::optional(order);
}

}  // namespace

std::map<TensorId, Order> find_orders(ProofSide a, ProofSide b) {
  std::map<TensorId, Order> orders;
  for (int64_t n = 0; n < std::ssize(a.architecture().blocks); ++n) {
    for (const std::optional<Units>& units : {neurons(a, n), heads(a, b, n)}) {
      if (!units || !may_be_reordered(a, b, *units)) {
        continue;
      }
      const std::optional<at::Tensor> order = order_of(signatures(a, b, *units));
      if (!order) {
        continue;
      }
      for (const Member& member : units->members) {
        const at::Tensor entries = order->unsqueeze(1) * member.entries + at::arange(member.entries, at::kLong);
        orders[member.tensor] = {entries.flatten(), member.axis};
      }
    }
  }
  return orders;
}

}  // namespace pare
