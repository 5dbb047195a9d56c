#include "pare/proof/model_view.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/arch/norms.h"
#include "pare/support/error.h"

namespace pare {

bool holds_same_numbers(const Weight& a, const Weight& b) {
  const auto equal = [](const at::Tensor& x, const at::Tensor& y) {
    return x.scalar_type() == y.scalar_type() ? at::equal(x, y) : at::equal(x.to(at::kDouble), y.to(at::kDouble));
  };
  if (a == b) {
    return true;
  }
  if (a.shape().empty() || !a.can_load_rows() || !b.can_load_rows()) {
    return equal(a.load(), b.load());
  }
  const int64_t rows = a.shape()[0], step = rows_at_once(element_count(a.shape()) / std::max<int64_t>(rows, 1));
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    if (!equal(a.load_rows(begin, count), b.load_rows(begin, count))) {
      return false;
    }
  }
  return true;
}

ModelView::ModelView(const Model& model, Numbers numbers, at::Device device, PlainForm form)
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
    if (const std::optional<Norm>& heads = copy.blocks[n].attention.qk_norm) {
      norms_[in_attention(n, Slot::query_norm)] = norms_[in_attention(n, Slot::key_norm)] = *heads;
    }
  }
}

const Weight& ModelView::weight(const TensorId& id) const {
  return model_->weights.at(stored_.at(id).name);
}

ModelView::Unit ModelView::unit(const std::vector<TensorId>& ids) const {
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

ModelView ModelView::in_float64() const {
  ModelView side = *this;
  side.as_float64_ = true;
  return side;
}

at::Tensor mixed_units(const at::Tensor& rounding, const at::Tensor& in_float64, double coarsest) {
  const at::Tensor times = at::where(in_float64 > 0, rounding / in_float64, 1.0);
  return (times * unit_roundoff(Dtype::f64)).clamp(unit_roundoff(Dtype::f64), coarsest);
}

void ModelView::use(const TensorId& id) const {
  const std::vector<TensorId> all = sources(id);
  used_.insert(all.begin(), all.end());
}

Rounded ModelView::with_rounding(const at::Tensor& stored, Dtype dtype) const {
  if (numbers_ == Numbers::exact || !stored.is_floating_point()) {
    return exact(stored);
  }
  const at::Tensor value = stored.to(device_, at::kDouble);
  return {value, half_spacing(value, as_stored(dtype))};
}

Rounded ModelView::exact(const at::Tensor& stored) const {
  const at::Tensor value = stored.to(device_, at::kDouble);
  return {value, value.abs() * unit_roundoff(Dtype::f64)};
}

Rounded ModelView::unordered(const TensorId& id) const {
  use(id);
  if (const auto made = form_.made.find(id); made != form_.made.end()) {
    return made->second.load(*this);
  }
  const Weight& found = weight(id);
  return with_rounding(found.load(), found.dtype());
}

Rounded ModelView::placed(const Rounded& found, const TensorId& id) const {
  const auto order = orders_.find(id);
  if (order == orders_.end()) {
    return found;
  }
  const auto& [index, axis, factors] = order->second;
  const Rounded placed{found.value.index_select(axis, index.to(device_)),
                       found.rounding.index_select(axis, index.to(device_))};
  if (!factors.defined()) {
    return placed;
  }
  const at::Tensor along = axis == 0 && placed.value.dim() == 2 ? factors.unsqueeze(1) : factors;
  // What is below the smallest number of its type has lost its digits, and no factor brings them back.
  const at::Tensor value = placed.value * along.to(device_);
  return {value, at::minimum(placed.rounding * along.abs().to(device_), value.abs() * roundoff(id))};
}

Rounded ModelView::load(const TensorId& id) const {
  return placed(unordered(id), id);
}

Rounded ModelView::load_source(const TensorId& id) const {
  const Weight& found = weight(id);
  return same_sources_.contains(id) ? exact(found.load()) : with_rounding(found.load(), found.dtype());
}

Rounded ModelView::load_source_rows(const TensorId& id, int64_t begin, int64_t count) const {
  const Weight& found = weight(id);
  const at::Tensor rows = found.can_load_rows() ? found.load_rows(begin, count) : found.load().narrow(0, begin, count);
  return same_sources_.contains(id) ? exact(rows) : with_rounding(rows, found.dtype());
}

Rounded ModelView::load_factor(const TensorId& id) const {
  const Rounded stored = load(id);
  return same_.contains(id) ? exact(stored.value) : stored;
}

bool ModelView::is_zero(const TensorId& id) const {
  return !stores(id) || !(is_made(id) ? unordered(id).value : weight(id).load()).any().item<bool>();
}

Rounded ModelView::load_rows(const TensorId& id, int64_t begin, int64_t count) const {
  const auto order = orders_.find(id);
  return order != orders_.end() && order->second.axis == 0 ? narrowed(load(id), 0, begin, count)
                                                           : placed(unordered_rows(id, begin, count), id);
}

Rounded ModelView::unordered_rows(const TensorId& id, int64_t begin, int64_t count) const {
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

Rounded ModelView::load_or_zeros(const TensorId& id, at::IntArrayRef shape) const {
  return stores(id) ? load(id) : made(at::zeros(shape, at::kDouble));
}

Rounded ModelView::made(const at::Tensor& value) const {
  return exact(value);
}

Rounded ModelView::gain(const ModuleId& module, at::IntArrayRef shape) const {
  if (!stores(weight_of(module))) {
    return made(at::ones(shape, at::kDouble));
  }
  const Rounded stored = load(weight_of(module));
  const double offset = norms_.at(module).offset;
  return offset == 0 ? stored : sum(stored, made(at::full_like(stored.value, offset)));
}

Rounded ModelView::with_gain(const Rounded& matrix, size_t stream) const {
  const auto found = folded_.gains.find(stream);
  if (found == folded_.gains.end() || !stores(weight_of(found->second))) {
    return matrix;
  }
  // Whatever gain was chosen, the matrix is what was rounded.
  return scaled_columns(matrix, exact(gain(found->second, matrix.value.size(-1)).value));
}

Rounded ModelView::constant_on(size_t stream) const {
  if (const auto norm = folded_.biases.find(stream); norm != folded_.biases.end()) {
    return stores(bias_of(norm->second)) ? load(bias_of(norm->second)) : Rounded();
  }
  const auto block = folded_.constants.find(stream);
  return block != folded_.constants.end() ? attention_bias(*this, block->second) : Rounded();
}

Rounded ModelView::shift(const TensorId& reader, size_t stream) const {
  const Rounded constant = constant_on(stream);
  if (!constant.value.defined()) {
    return {};
  }
  const int64_t width = constant.value.size(0);  // neuron heads have one column more
  const int64_t rows = table_.at(reader).shape[0], step = rows_at_once(width);
  std::vector<Rounded> parts;
  for (int64_t begin = 0; begin < rows; begin += step) {
    Rounded slice = load_rows(reader, begin, std::min(step, rows - begin));
    slice = same_.contains(reader) ? exact(slice.value) : slice;
    parts.push_back(times_vector(narrowed(slice, 1, 0, width), constant));
  }
  return joined(parts, 0);
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

}  // namespace pare
