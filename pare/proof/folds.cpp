#include "pare/proof/folds.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "pare/proof/finding.h"
#include "pare/proof/model_view.h"
#include "pare/proof/proof.h"

namespace pare {

namespace {

// Keys that are computed from values take the values' bias off first (or values the keys'): a constant in it is lost.
// In collapsed scores it becomes a bias, and numbers that are the same for every key, which only a softmax ignores; in
// collapsed values an output bias, where rows of attention sum to one.
bool takes_bias_off(const Architecture& architecture, const ModuleId& reader) {
  if (reader.sublayer != Sublayer::attention || !reader.block) {
    return false;
  }
  const Attention& t = architecture.blocks[*reader.block].attention;
  return is<FromValue>(t.key) || is<FromKey>(t.value) || (t.scores == Form::collapsed && t.softcap) ||
         (t.values == Form::collapsed && !rows_sum_to_one(t));
}

bool gain_folds(const Stream& stream, const ModuleId& norm) {
  const bool alone = std::ranges::all_of(
      stream.touches, [&](const Touch& touch) { return touch.kind == TouchKind::norm_writes && touch.module == norm; });
  const bool read = std::ranges::all_of(stream.ports, [](const Port& port) { return port.role == Role::reader; });
  return alone && read && !stream.ports.empty();
}

bool bias_folds(const ModelView& side, const Stream& stream) {
  return std::ranges::none_of(
      stream.ports, [&](const Port& port) { return takes_bias_off(side.architecture(), port.tensor.module); });
}

// No skip joins the stream, and only matrices read it: what attention always adds is in their biases as well.
bool attention_alone_writes(const ModelView& side, const Stream& stream, int64_t block) {
  const ModuleId output = in_attention(block, Slot::output);
  const bool touched = std::ranges::any_of(
      stream.touches, [&](const Touch& touch) { return touch.kind != TouchKind::identity || touch.module != output; });
  const bool alone = std::ranges::all_of(
      stream.ports, [&](const Port& port) { return port.role == Role::reader || port.tensor.module == output; });
  const bool read = std::ranges::any_of(stream.ports, [](const Port& port) { return port.role == Role::reader; });
  return !touched && alone && read && bias_folds(side, stream);
}

// Where rows of attention sum to one.
bool value_bias_folds(const Architecture& architecture, int64_t block) {
  const Attention& t = architecture.blocks[block].attention;
  return rows_sum_to_one(t) && t.values == Form::factored;
}

// A tied head reads rows without their mean, behind a norm of what has none: its own means are not seen there.
void find_blind(const ModelView& a, const ModelView& b, Folds& folds) {
  const size_t head = a.streams().head;
  if (!a.architecture().head.tied && !b.architecture().head.tied) {
    return;
  }
  const auto reads = [](const Stream& stream, const ModuleId& norm) {
    return std::ranges::any_of(stream.touches, [&](const Touch& touch) {
      return touch.kind == TouchKind::norm_reads && touch.module == norm;
    });
  };
  for (const Touch& touch : a.streams().all[head].touches) {
    for (size_t s = 0; s < a.streams().all.size(); ++s) {
      const bool centred = (a.centres(s) || b.centres(s)) && reads(a.streams().all[s], touch.module);
      if (touch.kind == TouchKind::norm_writes && centred && gain_folds(a.streams().all[head], touch.module) &&
          gain_folds(b.streams().all[head], touch.module) && a.is_zero(bias_of(touch.module)) &&
          b.is_zero(bias_of(touch.module))) {
        folds.blind.insert(head);
        folds.gains[head] = touch.module;
      }
    }
  }
}

// Of queries, keys and values.
int64_t quietest_token(const ModelView& side, const TensorId& table) {
  const int64_t vocab = side.architecture().vocab, width = side.architecture().width;
  int64_t quietest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t begin = 0, step = 0; begin < vocab; begin += step) {
    step = std::min(vocab - begin, rows_at_once(4 * width));
    const at::Tensor rows = side.load_rows(table, begin, step).value;
    const at::Tensor sizes = rows.narrow(1, width, rows.size(1) - width).abs().amax(1);
    const int64_t found = sizes.argmin().item<int64_t>();
    if (const double size = sizes[found].item<double>(); size < least) {
      least = size;
      quietest = begin + found;
    }
  }
  return quietest;
}

}  // namespace

Folds possible_folds(const ModelView& a, const ModelView& b) {
  const auto one_is_zero = [&](const TensorId& id) { return a.is_zero(id) != b.is_zero(id); };
  const auto gain_stayed = [&](const ModuleId& norm, int64_t size) {
    const Rounded kept = a.gain(norm, size), found = b.gain(norm, size);
    const at::Tensor folding_loses = kept.rounding * 2 * most_roundings;  // so little would not be seen in a product
    return ((kept.value - found.value).abs() <= found.rounding * one_rounding + folding_loses).all().item<bool>();
  };
  Folds folds;
  const std::vector<Stream>& streams = a.streams().all;
  for (size_t i = 0; i < streams.size(); ++i) {
    const Stream& other = b.streams().all[i];
    for (const Touch& touch : streams[i].touches) {
      if (touch.kind != TouchKind::norm_writes || !gain_folds(streams[i], touch.module) ||
          !gain_folds(other, touch.module)) {
        continue;
      }
      if (!gain_stayed(touch.module, streams[i].width)) {
        folds.gains[i] = touch.module;
      }
      if (one_is_zero(bias_of(touch.module)) && bias_folds(a, streams[i]) && bias_folds(b, other)) {
        folds.biases[i] = touch.module;
      }
    }
  }
  find_blind(a, b, folds);
  const TensorId table = weight_of(in_embedding(Slot::table));
  const bool made_table = a.is_made(table) || b.is_made(table);
  folds.quietest = made_table ? quietest_token(a, table) : 0;
  for (int64_t n = 0; n < std::ssize(a.streams().blocks); ++n) {
    const TensorId value = bias_of(in_attention(n, Slot::value)), output = bias_of(in_attention(n, Slot::output));
    const size_t input = a.streams().blocks[n].attention_input;
    const bool tabled = is_tabled(a.architecture(), n);  // nobody can tell what of a table's values is a bias
    const bool moved = tabled ? made_table && !a.shares(output) && (a.stores(output) || b.stores(output))
                              : one_is_zero(value) || folds.biases.contains(input);
    if (value_bias_folds(a.architecture(), n) && moved) {
      folds.values.insert(n);
    }
    const auto adds = [&](const ModelView& side) {
      return !side.is_zero(output) || (folds.values.contains(n) && (tabled || !side.is_zero(value)));
    };
    const size_t written = a.streams().blocks[n].attention_output;
    if (adds(a) != adds(b) && attention_alone_writes(a, streams[written], n) &&
        attention_alone_writes(b, b.streams().all[written], n)) {
      folds.constants[written] = n;
    }
  }
  return folds;
}

Rounded collapsed_shift(const ModelView& side, const TensorId& matrices, size_t stream) {
  const Rounded constant = side.constant_on(stream);
  if (!constant.value.defined()) {
    return {};
  }
  const Rounded row = reshaped(constant, {1, 1, -1}), through = product(row, side.load_factor(matrices));
  return reshaped(through, {through.value.size(0), -1});
}

Rounded constant_in_table(const ModelView& side) {
  return side.load_rows(weight_of(in_embedding(Slot::table)), side.folded().quietest, 1);
}

bool folds_values(const ModelView& side, int64_t block) {
  const bool collapsed = side.architecture().blocks[block].attention.values == Form::collapsed;
  const size_t input = side.streams().blocks[block].attention_input;
  return collapsed ? side.folded().shifts(input) : side.folded().values.contains(block);
}

Rounded attention_bias(const ModelView& side, int64_t block) {
  const Attention& t = side.architecture().blocks[block].attention;
  const ModuleId value = in_attention(block, Slot::value), output = in_attention(block, Slot::output);
  const Rounded own = side.stores(bias_of(output)) ? side.load(bias_of(output)) : Rounded();
  if (!folds_values(side, block)) {
    return own;
  }
  const size_t input = side.streams().blocks[block].attention_input;
  if (t.values == Form::collapsed) {
    const Rounded heads = collapsed_shift(side, weight_of(in_attention(block, Slot::value_output)), input);
    if (!heads.value.defined()) {
      return own;
    }
    const Rounded added{heads.value.sum(0), heads.rounding.sum(0)};
    return own.value.defined() ? sum(own, added) : added;
  }
  Rounded bias = side.stores(bias_of(value)) ? side.load(bias_of(value)) : Rounded();
  if (is_tabled(side.architecture(), block)) {
    const int64_t rows = t.kv_heads * t.head_width;
    const Rounded middle = constant_in_table(side);
    bias = reshaped(narrowed(middle, 1, middle.value.size(1) - rows, rows), {rows});
  }
  if (side.stores(weight_of(value))) {
    const Rounded shift = side.shift(weight_of(value), input);
    bias = !shift.value.defined() ? bias : bias.value.defined() ? sum(bias, shift) : shift;
  }
  if (!bias.value.defined()) {
    return own;
  }
  const auto seen = [&t](const at::Tensor& x) {  // by all the query heads of a group
    return x.view({t.kv_heads, 1, t.head_width}).expand({t.kv_heads, t.heads / t.kv_heads, t.head_width}).reshape({-1});
  };
  const Rounded all{seen(bias.value), seen(bias.rounding)};
  const Rounded added = side.stores(weight_of(output)) ? times_vector(side.load_factor(weight_of(output)), all) : all;
  return own.value.defined() ? sum(own, added) : added;
}

}  // namespace pare
