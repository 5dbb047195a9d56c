#include "pare/proof/side.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "pare/arch/norms.h"
#include "pare/proof/proof.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// Keys that are computed from values take the values' bias off first (or values the keys'): a constant in it is lost.
// In collapsed scores it becomes a bias, and numbers that are the same for every key, which only a softmax ignores; in
// collapsed values an output bias, where rows of attention sum to one.
bool takes_bias_off(const Architecture& architecture, const ModuleId& reader) {
  if (reader.sublayer != Sublayer::attention || !reader.block) {
    return false;
  }
  const Attention& t = architecture.blocks[static_cast<size_t>(*reader.block)].attention;
  return is<FromValue>(t.key) || is<FromKey>(t.value) || (t.scores == Form::collapsed && t.softcap) ||
         (t.values == Form::collapsed && !rows_sum_to_one(t));
}

bool gain_folds(const Stream& stream, const ModuleId& norm) {
  const bool alone = std::all_of(stream.touches.begin(), stream.touches.end(), [&](const Touch& touch) {
    return touch.kind == TouchKind::norm_writes && touch.module == norm;
  });
  const bool read =
      std::all_of(stream.ports.begin(), stream.ports.end(), [](const Port& port) { return port.role == Role::reader; });
  return alone && read && !stream.ports.empty();
}

bool bias_folds(const ProofSide& side, const Stream& stream) {
  return std::none_of(stream.ports.begin(), stream.ports.end(),
                      [&](const Port& port) { return takes_bias_off(side.architecture(), port.tensor.module); });
}

// No skip joins the stream, and only matrices read it: what attention always adds is in their biases as well.
bool attention_alone_writes(const ProofSide& side, const Stream& stream, int64_t block) {
  const ModuleId output = in_attention(block, Slot::output);
  const bool touched = std::any_of(stream.touches.begin(), stream.touches.end(), [&](const Touch& touch) {
    return touch.kind != TouchKind::identity || touch.module != output;
  });
  const bool alone = std::all_of(stream.ports.begin(), stream.ports.end(), [&](const Port& port) {
    return port.role == Role::reader || port.tensor.module == output;
  });
  const bool read =
      std::any_of(stream.ports.begin(), stream.ports.end(), [](const Port& port) { return port.role == Role::reader; });
  return !touched && alone && read && bias_folds(side, stream);
}

// Where rows of attention sum to one.
bool value_bias_folds(const Architecture& architecture, int64_t block) {
  const Attention& t = architecture.blocks[static_cast<size_t>(block)].attention;
  return rows_sum_to_one(t) && t.values == Form::factored;
}

}  // namespace

ProofSide::ProofSide(const Model& model, Numbers numbers, at::Device device, PlainForm form)
    : model_(&model),
      form_(std::move(form)),
      numbers_(numbers),
      device_(device),
      streams_(find_streams(form_.architecture)),
      table_(tensor_table(form_.architecture)),
      stored_(tensor_table(model.architecture)) {
  Architecture copy = form_.architecture;
  for (const PlacedNorm& placed : norms_of(copy)) {
    norms_[placed.module] = *placed.norm;
  }
  for (int64_t n = 0; n < std::ssize(copy.blocks); ++n) {
    if (const std::optional<Norm>& heads = copy.blocks[static_cast<size_t>(n)].attention.qk_norm) {
      norms_[in_attention(n, Slot::query_norm)] = norms_[in_attention(n, Slot::key_norm)] = *heads;
    }
  }
}

const Weight& ProofSide::weight(const TensorId& id) const {
  return model_->weights.at(stored_.at(id).name);
}

ProofSide::Unit ProofSide::unit(const std::vector<TensorId>& ids) const {
  std::set<double> found;
  for (const TensorId& id : ids) {
    for (const TensorId& source : stores(id) ? sources(id) : std::vector<TensorId>()) {
      const Dtype dtype = as_stored(weight(source).dtype());
      if (at::isFloatingType(scalar_type(dtype))) {
        found.insert(unit_roundoff(dtype));
      }
    }
  }
  return {found.empty() ? unit_roundoff(Dtype::f64) : *found.rbegin(), found.size() > 1};
}

ProofSide ProofSide::in_float64() const {
  ProofSide side = *this;
  side.as_float64_ = true;
  return side;
}

at::Tensor mixed_units(const at::Tensor& rounding, const at::Tensor& in_float64, double coarsest) {
  const at::Tensor times = at::where(in_float64 > 0, rounding / in_float64, 1.0);
  return (times * unit_roundoff(Dtype::f64)).clamp(unit_roundoff(Dtype::f64), coarsest);
}

void ProofSide::use(const TensorId& id) const {
  const std::vector<TensorId> all = sources(id);
  used_.insert(all.begin(), all.end());
}

Effective ProofSide::with_rounding(const at::Tensor& stored, Dtype dtype) const {
  if (numbers_ == Numbers::exact || !stored.is_floating_point()) {
    return exact(stored);
  }
  const at::Tensor value = stored.to(device_, at::kDouble);
  return {value, half_spacing(value, as_stored(dtype))};
}

Effective ProofSide::exact(const at::Tensor& stored) const {
  const at::Tensor value = stored.to(device_, at::kDouble);
  return {value, value.abs() * unit_roundoff(Dtype::f64)};
}

Effective ProofSide::unordered(const TensorId& id) const {
  use(id);
  if (const auto made = form_.made.find(id); made != form_.made.end()) {
    return made->second.load(*this);
  }
  const Weight& found = weight(id);
  return with_rounding(found.load(), found.dtype());
}

Effective ProofSide::placed(const Effective& found, const TensorId& id) const {
  const auto order = orders_.find(id);
  if (order == orders_.end()) {
    return found;
  }
  const auto& [index, axis, factors] = order->second;
  const Effective placed{found.value.index_select(axis, index.to(device_)),
                         found.rounding.index_select(axis, index.to(device_))};
  if (!factors.defined()) {
    return placed;
  }
  const at::Tensor along = axis == 0 && placed.value.dim() == 2 ? factors.unsqueeze(1) : factors;
  // What is below the smallest number of its type has lost its digits, and no factor brings them back.
  const at::Tensor value = placed.value * along.to(device_);
  return {value, at::minimum(placed.rounding * along.abs().to(device_), value.abs() * roundoff(id))};
}

Effective ProofSide::load(const TensorId& id) const {
  return placed(unordered(id), id);
}

Effective ProofSide::load_source(const TensorId& id) const {
  const Weight& found = weight(id);
  return same_sources_.contains(id) ? exact(found.load()) : with_rounding(found.load(), found.dtype());
}

Effective ProofSide::load_source_rows(const TensorId& id, int64_t begin, int64_t count) const {
  const Weight& found = weight(id);
  const at::Tensor rows = found.can_load_rows() ? found.load_rows(begin, count) : found.load().narrow(0, begin, count);
  return same_sources_.contains(id) ? exact(rows) : with_rounding(rows, found.dtype());
}

Effective ProofSide::load_factor(const TensorId& id) const {
  const Effective stored = load(id);
  return same_.contains(id) ? exact(stored.value) : stored;
}

bool ProofSide::is_zero(const TensorId& id) const {
  return !stores(id) || !(is_made(id) ? unordered(id).value : weight(id).load()).any().item<bool>();
}

Effective ProofSide::load_rows(const TensorId& id, int64_t begin, int64_t count) const {
  const auto order = orders_.find(id);
  return order != orders_.end() && order->second.axis == 0 ? narrowed(load(id), 0, begin, count)
                                                           : placed(unordered_rows(id, begin, count), id);
}

Effective ProofSide::unordered_rows(const TensorId& id, int64_t begin, int64_t count) const {
  if (const auto made = form_.made.find(id); made != form_.made.end()) {
    use(id);
    return made->second.rows ? made->second.rows(*this, begin, count)
                             : narrowed(made->second.load(*this), 0, begin, count);
  }
  use(id);
  const Weight& found = weight(id);
  const at::Tensor rows = found.can_load_rows() ? found.load_rows(begin, count) : found.load().narrow(0, begin, count);
  return with_rounding(rows, found.dtype());
}

Effective ProofSide::load_or_zeros(const TensorId& id, at::IntArrayRef shape) const {
  return stores(id) ? load(id) : made(at::zeros(shape, at::kDouble));
}

Effective ProofSide::made(const at::Tensor& value) const {
  return exact(value);
}

Effective ProofSide::gain(const ModuleId& module, int64_t size) const {
  if (!stores(weight_of(module))) {
    return made(at::ones({size}, at::kDouble));
  }
  const Effective stored = load(weight_of(module));
  const double offset = norms_.at(module).offset;
  return offset == 0 ? stored : sum(stored, made(at::full_like(stored.value, offset)));
}

Effective ProofSide::with_gain(const Effective& matrix, size_t stream) const {
  const auto found = folded_.gains.find(stream);
  if (found == folded_.gains.end() || !stores(weight_of(found->second))) {
    return matrix;
  }
  // Whatever gain was chosen, the matrix is what was rounded.
  return scaled_columns(matrix, exact(gain(found->second, matrix.value.size(-1)).value));
}

Effective ProofSide::constant_on(size_t stream) const {
  if (const auto norm = folded_.biases.find(stream); norm != folded_.biases.end()) {
    return stores(bias_of(norm->second)) ? load(bias_of(norm->second)) : Effective();
  }
  const auto block = folded_.constants.find(stream);
  return block != folded_.constants.end() ? attention_bias(*this, block->second) : Effective();
}

Effective ProofSide::shift(const TensorId& reader, size_t stream) const {
  const Effective constant = constant_on(stream);
  if (!constant.value.defined()) {
    return {};
  }
  const int64_t width = constant.value.size(0);  // neuron heads have one column more
  const int64_t rows = table_.at(reader).shape[0], step = rows_at_once(width);
  std::vector<at::Tensor> values, roundings;
  for (int64_t begin = 0; begin < rows; begin += step) {
    Effective slice = load_rows(reader, begin, std::min(step, rows - begin));
    slice = same_.contains(reader) ? exact(slice.value) : slice;
    const Effective part =
        times_vector({slice.value.narrow(1, 0, width), slice.rounding.narrow(1, 0, width)}, constant);
    values.push_back(part.value);
    roundings.push_back(part.rounding);
  }
  return {at::cat(values), at::cat(roundings)};
}

std::vector<RowRange> rows_from_all_over(int64_t rows, int64_t enough) {
  if (rows <= enough) {
    return {{0, rows}};
  }
  const int64_t places = std::clamp<int64_t>(enough, 2, 32);
  const int64_t count = (enough + places - 1) / places, stride = (rows - count) / (places - 1);
  std::vector<RowRange> found;
  for (int64_t i = 0; i < places; ++i) {
    found.push_back({i * stride, count});
  }
  return found;
}

// A tied head reads rows without their mean, behind a norm of what has none: its own means are not seen there.
static void find_blind(const ProofSide& a, const ProofSide& b, Folds& folds) {
  const size_t head = a.streams().head;
  if (!a.architecture().head.tied && !b.architecture().head.tied) {
    return;
  }
  const auto reads = [](const Stream& stream, const ModuleId& norm) {
    return std::any_of(stream.touches.begin(), stream.touches.end(),
                       [&](const Touch& touch) { return touch.kind == TouchKind::norm_reads && touch.module == norm; });
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
static int64_t quietest_token(const ProofSide& side, const TensorId& table) {
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

Folds possible_folds(const ProofSide& a, const ProofSide& b) {
  const auto one_is_zero = [&](const TensorId& id) { return a.is_zero(id) != b.is_zero(id); };
  const auto gain_stayed = [&](const ModuleId& norm, int64_t size) {
    const Effective kept = a.gain(norm, size), found = b.gain(norm, size);
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
    const size_t input = a.streams().blocks[static_cast<size_t>(n)].attention_input;
    const bool tabled = is_tabled(a.architecture(), n);  // nobody can tell what of a table's values is a bias
    const bool moved = tabled ? made_table && !a.shares(output) && (a.stores(output) || b.stores(output))
                              : one_is_zero(value) || folds.biases.contains(input);
    if (value_bias_folds(a.architecture(), n) && moved) {
      folds.values.insert(n);
    }
    const auto adds = [&](const ProofSide& side) {
      return !side.is_zero(output) || (folds.values.contains(n) && (tabled || !side.is_zero(value)));
    };
    const size_t written = a.streams().blocks[static_cast<size_t>(n)].attention_output;
    if (adds(a) != adds(b) && attention_alone_writes(a, streams[written], n) &&
        attention_alone_writes(b, b.streams().all[written], n)) {
      folds.constants[written] = n;
    }
  }
  return folds;
}

Effective collapsed_shift(const ProofSide& side, const TensorId& matrices, size_t stream) {
  const Effective constant = side.constant_on(stream);
  if (!constant.value.defined()) {
    return {};
  }
  const Effective row = reshaped(constant, {1, 1, -1}), through = product(row, side.load_factor(matrices));
  return reshaped(through, {through.value.size(0), -1});
}

Effective constant_in_table(const ProofSide& side) {
  return side.load_rows(weight_of(in_embedding(Slot::table)), side.folded().quietest, 1);
}

bool folds_values(const ProofSide& side, int64_t block) {
  const bool collapsed = side.architecture().blocks[static_cast<size_t>(block)].attention.values == Form::collapsed;
  const size_t input = side.streams().blocks[static_cast<size_t>(block)].attention_input;
  return collapsed ? side.folded().shifts(input) : side.folded().values.contains(block);
}

Effective attention_bias(const ProofSide& side, int64_t block) {
  const Attention& t = side.architecture().blocks[static_cast<size_t>(block)].attention;
  const ModuleId value = in_attention(block, Slot::value), output = in_attention(block, Slot::output);
  const Effective own = side.stores(bias_of(output)) ? side.load(bias_of(output)) : Effective();
  if (!folds_values(side, block)) {
    return own;
  }
  const size_t input = side.streams().blocks[static_cast<size_t>(block)].attention_input;
  if (t.values == Form::collapsed) {
    const Effective heads = collapsed_shift(side, weight_of(in_attention(block, Slot::value_output)), input);
    if (!heads.value.defined()) {
      return own;
    }
    const Effective added{heads.value.sum(0), heads.rounding.sum(0)};
    return own.value.defined() ? sum(own, added) : added;
  }
  Effective bias = side.stores(bias_of(value)) ? side.load(bias_of(value)) : Effective();
  if (is_tabled(side.architecture(), block)) {
    const int64_t rows = t.kv_heads * t.head_width;
    const Effective middle = constant_in_table(side);
    bias = reshaped(narrowed(middle, 1, middle.value.size(1) - rows, rows), {rows});
  }
  if (side.stores(weight_of(value))) {
    const Effective shift = side.shift(weight_of(value), input);
    bias = !shift.value.defined() ? bias : bias.value.defined() ? sum(bias, shift) : shift;
  }
  if (!bias.value.defined()) {
    return own;
  }
  const auto seen = [&t](const at::Tensor& x) {  // by all the query heads of a group
    return x.view({t.kv_heads, 1, t.head_width}).expand({t.kv_heads, t.heads / t.kv_heads, t.head_width}).reshape({-1});
  };
  const Effective all{seen(bias.value), seen(bias.rounding)};
  const Effective added = side.stores(weight_of(output)) ? times_vector(side.load_factor(weight_of(output)), all) : all;
  return own.value.defined() ? sum(own, added) : added;
}

}  // namespace pare
