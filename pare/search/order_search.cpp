#include "pare/search/order_search.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <optional>

#include "pare/support/mapped.h"

namespace pare {

namespace {

struct Units {
  int64_t count = 0;
  size_t input = 0;  // the stream they read
  std::vector<NeuronAxis> members = {};
  bool known_by_biases = false;  // what something may be folded into says nothing
  bool scaled = false;           // seen without their lengths
};

bool both_store(const ModelView& a, const ModelView& b, const TensorId& id) {
  return a.stores(id) && b.stores(id) && a.table().at(id).shape == b.table().at(id).shape;
}

std::optional<Units> neurons(const ModelView& a, int64_t n) {
  const std::vector<NeuronAxis> axes = neuron_axes(a.architecture(), n);
  if (axes.empty()) {
    return std::nullopt;
  }
  const size_t input = a.streams().blocks[n].mlp_input;
  return Units{a.table().at(axes[0].tensor).shape[0], input, axes, !a.folded().shifts(input)};
}

// [count, n] for each side.
struct Signatures {
  at::Tensor reference, candidate;
};

// Each row with length one and its largest entry positive: what a factor does not change.
at::Tensor directions(const at::Tensor& rows) {
  const at::Tensor sizes = rows.norm(2, {1}, true);
  const at::Tensor largest = rows.gather(1, rows.abs().argmax(1, true));
  return rows / at::where(sizes > 0, sizes, at::ones_like(sizes)) * at::where(largest < 0, -1.0, 1.0);
}

// What a tensor says of each unit, in units of the reference's size.
Signatures signatures(const ModelView& a, const ModelView& b, const Units& units, const NeuronAxis& member) {
  const auto rows = [&](const ModelView& side) {
    const at::Tensor stored = side.load(member.tensor).value;
    const bool reads = member.tensor.kind == TensorKind::weight && member.axis == 0;
    const at::Tensor whole = reads ? side.with_gain({stored, stored}, units.input).value : stored;
    return whole.movedim(member.axis, 0).reshape({units.count, -1}).to(at::kFloat);
  };
  const at::Tensor x = rows(a), size = x.square().mean().sqrt().clamp_min(1e-30);
  if (units.scaled) {
    return {directions(x), directions(rows(b))};
  }
  return {x / size, rows(b) / size};
}

// All that is read and written, in few numbers: a random projection keeps distances, and costs less to compare.
Signatures signatures(const ModelView& a, const ModelView& b, const Units& units) {
  constexpr int64_t few = 128;
  at::Generator generator = at::detail::createCPUGenerator(few);
  Signatures all{at::zeros({units.count, few}), at::zeros({units.count, few})};
  for (const NeuronAxis& member : units.members) {
    const bool bias = member.tensor.kind == TensorKind::bias;
    if (!both_store(a, b, member.tensor) || (bias && (!units.known_by_biases || units.scaled))) {
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
bool may_be_reordered(const ModelView& a, const ModelView& b, const Units& units) {
  const NeuronAxis& first = units.members[0];
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
  const std::vector<at::Tensor> found =
      mapped(a.split(at_once), [&](const at::Tensor& slice) { return nearest(slice, b); });
  const at::Tensor candidates = at::cat(found).to(at::kCPU);
  const at::Tensor is_near = are_near(a, b.index_select(0, candidates.to(b.device()))).to(at::kCPU);
  at::Tensor order = at::full({count}, -1, at::kLong);
  std::vector<bool> taken(static_cast<size_t>(count), false);
  const auto take = [&](int64_t i, int64_t j) {
    order[i] = j;
    taken[j] = true;
  };
  const int64_t* const wanted = candidates.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    if (is_near.data_ptr<bool>()[i] && !taken[wanted[i]]) {
      take(i, wanted[i]);
    }
  }
  int64_t left = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (order.data_ptr<int64_t>()[i] >= 0) {
      continue;
    }
    if (!taken[i]) {
      take(i, i);
      continue;
    }
    while (taken[left]) {
      ++left;
    }
    take(i, left);
  }
  return at::equal(order, at::arange(count, at::kLong)) ? std::nullopt : std::optional(order);
}

// ---- factors of neurons

// Of each neuron the factor of least squares, and 1 where there is none that explains it. Nobody scales by almost one,
// and such a factor would explain an entry that is a little off.
at::Tensor factors_of(const Signatures& both, bool any_sign) {
  constexpr double no_factor = 1e-2;
  const auto& [a, b] = both;
  at::Tensor factors = (a * b).sum(1) / b.square().sum(1).clamp_min(1e-300);
  const at::Tensor legal = any_sign ? factors != 0 : factors > 0;
  const at::Tensor explains = are_near(a, b * factors.unsqueeze(1)) & legal & ((factors - 1).abs() > no_factor);
  return at::where(explains, factors, at::ones_like(factors));
}

std::map<Slot, at::Tensor> find_factors(const ModelView& a, const ModelView& b, int64_t n, const Units& units,
                                        const at::Tensor& order) {
  const auto rows = [&](const ModelView& side, const ModuleId& module) {
    const at::Tensor matrix = side.with_gain(side.load(weight_of(module)), units.input).value;
    const at::Tensor bias = side.load_or_zeros(bias_of(module), {units.count}).value.unsqueeze(1);
    return units.known_by_biases ? at::cat({matrix, bias}, 1) : matrix;
  };
  std::map<Slot, at::Tensor> found;
  for (const auto& [slot, power, any_sign] : free_factors(a.architecture(), n)) {
    const ModuleId module = in_mlp(n, slot);
    const at::Tensor x = rows(a, module), y = rows(b, module);
    const at::Tensor factors = factors_of({x, y.index_select(0, order.to(y.device()))}, any_sign).to(at::kCPU);
    if (!(factors == 1).all().item<bool>()) {
      found[slot] = factors;
    }
  }
  return found;
}

NeuronOrder order_of_neurons(const ModelView& a, const ModelView& b, int64_t n, Units& units) {
  const bool scalable = !free_factors(a.architecture(), n).empty();
  std::optional<at::Tensor> order;
  int64_t most = -1;
  for (const bool scaled : {false, true}) {  // factors are looked at only where the order alone does not explain all
    units.scaled = scaled;
    if (most == units.count || (scaled && !scalable) || !may_be_reordered(a, b, units)) {
      continue;
    }
    const Signatures both = signatures(a, b, units);
    const std::optional<at::Tensor> other = order_of(both);
    const at::Tensor placed =
        other ? both.candidate.index_select(0, other->to(both.candidate.device())) : both.candidate;
    if (const auto explained = are_near(both.reference, placed).sum().item<int64_t>(); explained > most) {
      most = explained;
      order = other;
    }
  }
  NeuronOrder found{order.value_or(at::Tensor())};
  const std::vector<NeuronAxis> axes = neuron_axes(a.architecture(), n);
  const bool alike = std::ranges::all_of(
      axes, [&](const NeuronAxis& at) { return at.tensor.kind == TensorKind::bias || both_store(a, b, at.tensor); });
  if (scalable && alike && !(b.shares(axes.front().tensor) && b.shares(axes.back().tensor))) {
    found.factors = find_factors(a, b, n, units, order.value_or(at::arange(units.count, at::kLong)));
  }
  return found;
}

// ---- heads

// What a head does, whatever its gauge: W_Q' W_K and W_V' W_O', seen from a few random directions, or by their singular
// values, which no rotation of the streams changes either. [heads, n]
enum class SeenBy { directions, singular_values };

// [heads, k, width], a group's keys and values for each of its queries; of a product that is stored as one, I and
// itself.
struct HeadRows {
  at::Tensor query, key, value, output;
};

// Of a table, what tokens from all over it have there; keys and values may have a constant that nobody sees.
HeadRows tabled_rows(const ModelView& side, const Attention& t, const at::Tensor& output) {
  const TensorId table = weight_of(in_embedding(Slot::table));
  std::vector<at::Tensor> some;
  for (const RowRange& rows : rows_from_all_over(side.architecture().vocab, 4 * t.head_width + 64)) {
    some.push_back(side.load_rows(table, rows.begin, rows.count).value);
  }
  const at::Tensor all = at::cat(some);
  int64_t begin = side.architecture().width;
  const auto next = [&](int64_t heads) {
    const at::Tensor columns = all.narrow(1, begin, heads * t.head_width);
    begin += heads * t.head_width;
    return columns.t().reshape({heads, t.head_width, -1}).repeat_interleave(t.heads / heads, 0);
  };
  const at::Tensor query = next(t.heads), key = next(t.kv_heads), value = next(t.kv_heads);
  return {query, key - key.mean(2, true), value - value.mean(2, true), output};
}

HeadRows head_rows(const ModelView& side, int64_t n) {
  const Attention& t = side.architecture().blocks[n].attention;
  const BlockStreams& at = side.streams().blocks[n];
  const auto read = [&](Slot slot, int64_t heads) {
    const Rounded rows = side.with_gain(side.load(weight_of(in_attention(n, slot))), at.attention_input);
    return rows.value.reshape({heads, t.head_width, -1}).repeat_interleave(t.heads / heads, 0);
  };
  HeadRows rows;
  if (t.values == Form::factored) {
    const Rounded matrix = transposed(side.load(weight_of(in_attention(n, Slot::output))));
    rows.output = side.written(matrix, at.attention_output).value.reshape({t.heads, t.head_width, -1});
  }
  if (is_tabled(side.architecture(), n)) {
    return tabled_rows(side, t, rows.output);
  }
  // One of the two that a product stands between reads the gain of the norm before them.
  const auto collapsed = [&](Slot slot) {
    const Rounded product = transposed(side.load(weight_of(in_attention(n, slot))));
    return transposed(side.with_gain(product, at.attention_input));
  };
  const at::Tensor eye = at::eye(side.architecture().width, at::kDouble);
  if (t.scores == Form::factored) {
    rows.query = read(is<SameAsKey>(t.query) ? Slot::key : Slot::query, t.heads);
    rows.key = read(Slot::key, t.kv_heads);
  } else {
    rows.key = side.with_gain(collapsed(Slot::query_key), at.attention_input).value;
    rows.query = eye.to(rows.key.device()).expand_as(rows.key);
  }
  if (t.values == Form::factored) {
    rows.value = read(Slot::value, t.kv_heads);
  } else {
    rows.output = side.written(collapsed(Slot::value_output), at.attention_output).value;
    rows.value = eye.to(rows.output.device()).expand_as(rows.output);
  }
  return rows;
}

at::Tensor head_signatures(const HeadRows& rows, SeenBy by) {
  const auto product = [by](const at::Tensor& x, const at::Tensor& y, uint64_t seed) {
    if (by == SeenBy::singular_values) {
      const at::Tensor upper_x = std::get<1>(at::linalg_qr(x.transpose(1, 2), "r"));
      const at::Tensor upper_y = std::get<1>(at::linalg_qr(y.transpose(1, 2), "r"));
      return at::linalg_svdvals(at::matmul(upper_x, upper_y.transpose(1, 2)));
    }
    constexpr int64_t few = 8;
    at::Generator generator = at::detail::createCPUGenerator(seed);
    const auto seen = [&](const at::Tensor& rows) {
      const at::Tensor onto = at::randn({rows.size(2), few}, generator, rows.options().device(at::kCPU));
      return at::matmul(rows, onto.to(rows.device()));
    };
    const at::Tensor first = seen(x), second = seen(y);
    return at::matmul(first.transpose(1, 2), second).flatten(1);
  };
  const at::Tensor scores = product(rows.query, rows.key, 1), values = product(rows.value, rows.output, 2);
  return at::cat({scores, values}, 1).to(at::kCPU);
}

// Groups first, by what all their heads do together, then the heads of each.
std::optional<HeadOrder> order_of_heads(const at::Tensor& a, const at::Tensor& b, int64_t groups) {
  const int64_t heads = a.size(0), share = heads / groups;
  const at::Tensor size = a.square().mean(0, true).sqrt().clamp_min(1e-30);
  const at::Tensor x = (a / size).reshape({groups, share, -1}), y = (b / size).reshape({groups, share, -1});
  const at::Tensor identity = at::arange(groups, at::kLong);
  if (are_near(x.flatten(0, 1), y.flatten(0, 1)).all().item<bool>()) {
    return std::nullopt;
  }
  // Sums of squares tell groups of the same singular values apart no worse than sums do, and never cancel.
  const Signatures together{at::cat({x.sum(1), x.square().sum(1)}, 1), at::cat({y.sum(1), y.square().sum(1)}, 1)};
  const at::Tensor order = order_of(together).value_or(identity);
  std::vector<at::Tensor> places;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t other = order[g].item<int64_t>();
    const at::Tensor inside = order_of({x[g], y[other]}).value_or(at::arange(share, at::kLong));
    places.push_back(inside + other * share);
  }
  const HeadOrder found{order, at::cat(places)};
  const at::Tensor moved = y.flatten(0, 1).index_select(0, found.heads);
  const at::Tensor explained = are_near(x.flatten(0, 1), moved).sum(),
                   stayed = are_near(x.flatten(0, 1), y.flatten(0, 1)).sum();
  return explained.item<int64_t>() > stayed.item<int64_t>() ? std::optional(found) : std::nullopt;
}

std::optional<HeadOrder> find_order_of_heads(const ModelView& a, const ModelView& b, int64_t n) {
  const Attention& t = a.architecture().blocks[n].attention;
  const auto shared = [&](Slot slot) { return b.shares(weight_of(in_attention(n, slot))); };
  const bool shared_table = b.shares(weight_of(in_embedding(Slot::table)));
  const bool shared_scores = t.scores == Form::collapsed
                                 ? shared(Slot::query_key)
                                 : (shared(Slot::query) || is<SameAsKey>(t.query)) && shared(Slot::key);
  const bool shared_values =
      t.values == Form::collapsed ? shared(Slot::value_output) : shared(Slot::value) && shared(Slot::output);
  if (is_tabled(a.architecture(), n) ? shared_table && shared(Slot::output) : shared_scores && shared_values) {
    return std::nullopt;
  }
  const HeadRows rows_a = head_rows(a, n), rows_b = head_rows(b, n);
  std::optional<HeadOrder> found;
  for (const SeenBy by : {SeenBy::directions, SeenBy::singular_values}) {
    const at::Tensor x = head_signatures(rows_a, by), y = head_signatures(rows_b, by);
    if (!x.isfinite().all().item<bool>() || !y.isfinite().all().item<bool>()) {
      return std::nullopt;
    }
    found = order_of_heads(x, y, groups_of_heads(t));
    if (found || are_near(x, y).all().item<bool>()) {
      break;
    }
  }
  return found;
}

}  // namespace

std::vector<BlockOrder> find_orders(ModelView a, ModelView b) {
  std::vector<BlockOrder> orders(a.architecture().blocks.size());
  for (int64_t n = 0; n < std::ssize(orders); ++n) {
    BlockOrder& block = orders[n];
    if (heads_may_move(a, b, n)) {
      block.heads = find_order_of_heads(a, b, n);
    }
    if (std::optional<Units> units = neurons(a, n)) {
      block.neurons = order_of_neurons(a, b, n, *units);
    }
  }
  return orders;
}

}  // namespace pare
