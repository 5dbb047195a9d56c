#include "pare/export/onnx_builder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "pare/support/names.h"

namespace pare {

namespace {

at::ScalarType scalar_of(OnnxType type) {
  return scalar_type(dtype_of(type));
}

void hand_on(const at::Tensor& values, const OnnxTensor::Sink& sink) {
  const at::Tensor piece = values.contiguous();
  sink({static_cast<const std::byte*>(piece.const_data_ptr()), piece.nbytes()});
}

// One piece in the graph's type: rounded once, and refused where that type has no number for it.
at::Tensor converted(const at::Tensor& stored, const std::string& name, OnnxType to, double plus) {
  if (!stored.is_floating_point()) {
    return stored.to(at::kInt);
  }
  const at::Tensor exact = plus == 0 ? stored : stored.to(at::kDouble) + plus;
  const at::Tensor rounded = exact.to(scalar_of(to));
  if (exact.scalar_type() != rounded.scalar_type() && !at::isfinite(rounded).all().item<bool>()) {
    const double largest = exact.to(at::kDouble).abs().max().item<double>();
    throw InputError(fmt::format("tensor {} has numbers up to {:.4g}, beyond what {} can hold{}", quote(name), largest,
                                 word(dtype_of(to)), to == OnnxType::f16 ? ": export it in float32" : ""));
  }
  return rounded;
}

// Rows of `weight`, a few at a time where they can be had so: tables are the largest tensors of most models.
void write_rows(const Weight& weight, const std::string& name, OnnxType type, const OnnxForm& form,
                const OnnxTensor::Sink& sink) {
  constexpr int64_t piece_elements = 1 << 21;
  const auto columns = [&form](const at::Tensor& rows) {
    return form.end > 0 ? rows.narrow(1, form.begin, form.end - form.begin) : rows;
  };
  if (!weight.can_load_rows()) {
    hand_on(converted(columns(weight.load()), name, type, form.plus), sink);
    return;
  }
  const int64_t rows = weight.shape()[0];
  const int64_t step = std::max<int64_t>(
      1, piece_elements / std::max<int64_t>(1, element_count(weight.shape()) / std::max<int64_t>(1, rows)));
  for (int64_t row = 0; row < rows; row += step) {
    hand_on(converted(columns(weight.load_rows(row, std::min(step, rows - row))), name, type, form.plus), sink);
  }
}

// The matrix is held in its own type, and turned and converted piece by piece.
void write_transposed(const Weight& weight, const std::string& name, OnnxType type, const OnnxForm& form,
                      const OnnxTensor::Sink& sink) {
  constexpr int64_t piece_elements = 1 << 21;
  const at::Tensor whole = weight.load();
  const at::Tensor matrix = whole.view({whole.size(0), -1});
  const int64_t end = form.end > 0 ? form.end : matrix.size(1);
  const int64_t step = std::max<int64_t>(1, piece_elements / std::max<int64_t>(1, matrix.size(0)));
  for (int64_t column = form.begin; column < end; column += step) {
    const at::Tensor piece = matrix.narrow(1, column, std::min(step, end - column)).t().contiguous();
    hand_on(converted(piece, name, type, form.plus), sink);
  }
}

}  // namespace

OnnxBuilder::OnnxBuilder(const Model& model, Dtype type)
    : model_(&model),
      type_(type == Dtype::f16 ? OnnxType::f16 : OnnxType::f32),
      table_(tensor_table(model.architecture)) {}

OnnxName OnnxBuilder::fresh(const std::string& op) {
  const std::string stem = part_.empty() ? op : part_ + "/" + op;
  const int64_t number = counted_[stem]++;
  return number == 0 ? stem : fmt::format("{}_{}", stem, number);
}

OnnxName OnnxBuilder::node(const char* op, std::vector<OnnxName> inputs, std::vector<OnnxAttribute> attributes) {
  const std::string name = fresh(op);
  made_.graph.nodes.push_back({op, name, std::move(inputs), {name}, std::move(attributes)});
  return name;
}

OnnxName OnnxBuilder::cast(const OnnxName& x, OnnxType to) {
  return node("Cast", {x}, {{"to", static_cast<int64_t>(to)}});
}

OnnxName OnnxBuilder::reshape(const OnnxName& x, const std::vector<int64_t>& shape) {
  return node("Reshape", {x, indices(shape)});
}

OnnxName OnnxBuilder::transpose(const OnnxName& x, std::vector<int64_t> order) {
  return node("Transpose", {x}, {{"perm", std::move(order)}});
}

OnnxName OnnxBuilder::unsqueeze(const OnnxName& x, const std::vector<int64_t>& axes) {
  return node("Unsqueeze", {x, indices(axes)});
}

OnnxName OnnxBuilder::concat(std::vector<OnnxName> parts, int64_t axis) {
  return parts.size() == 1 ? parts.front() : node("Concat", std::move(parts), {{"axis", axis}});
}

OnnxName OnnxBuilder::slice(const OnnxName& x, int64_t begin, int64_t end, int64_t axis, int64_t step) {
  return node("Slice", {x, indices({begin}), indices({end}), indices({axis}), indices({step})});
}

// ---- what is stored

// A number of one type; a problem where it has none that is near.
at::Tensor OnnxBuilder::rounded(double value, OnnxType type) {
  const at::Tensor stored = at::scalar_tensor(value, at::kDouble).to(scalar_of(type));
  problems.add_if(!(std::abs(stored.item<double>() - value) <= 1e-2 * std::abs(value)),
                  "it computes with {:g}, for which {} has no number{}", value, word(dtype_of(type)),
                  type == OnnxType::f16 ? ": export it in float32" : "");
  return stored;
}

OnnxName OnnxBuilder::real(double value) {
  return constant(fmt::format("constant.{:.17g}", value), rounded(value, type_));
}

OnnxName OnnxBuilder::wide_real(double value) {
  return constant(fmt::format("constant.float32.{:.17g}", value), rounded(value, OnnxType::f32));
}

float OnnxBuilder::setting(double value) {
  return rounded(value, OnnxType::f32).item<float>();
}

OnnxName OnnxBuilder::index(int64_t value) {
  return constant(fmt::format("index.{}", value), at::scalar_tensor(value, at::kLong));
}

OnnxName OnnxBuilder::indices(const std::vector<int64_t>& values) {
  return constant(fmt::format("indices.{}", fmt::join(values, ".")), at::tensor(values, at::kLong));
}

OnnxName OnnxBuilder::doubles(const std::vector<double>& values) {
  return constant(fmt::format("constant.float64.{:.17g}", fmt::join(values, ".")), at::tensor(values, at::kDouble));
}

OnnxName OnnxBuilder::constant(const std::string& name, const at::Tensor& values) {
  if (stored_.insert(name).second) {
    made_.tensors.push_back(onnx_tensor(name, values));
  }
  return name;
}

OnnxName OnnxBuilder::weight(const TensorId& id, const OnnxForm& form) {
  const TensorSpec* spec = table_.find(id);
  if (!spec) {
    return "";
  }
  const std::string name = spec->name + form.suffix;
  if (!stored_.insert(name).second) {
    return name;
  }
  const Weight weight = model_->weights.at(spec->name);
  Shape shape = spec->shape;
  if (form.end > 0) {
    shape[1] = form.end - form.begin;
  }
  if (form.transposed) {
    const int64_t out = shape[0];
    shape = {element_count(shape) / out, out};
  }
  if (!form.shape.empty()) {
    PARE_CHECK(element_count(form.shape) == element_count(shape), name + " in another shape");
    shape = form.shape;
  }
  const OnnxType type = spec->index ? OnnxType::i32 : type_;
  made_.tensors.push_back({name, type, shape, [=, name = spec->name](const OnnxTensor::Sink& sink) {
                             (form.transposed ? write_transposed : write_rows)(weight, name, type, form, sink);
                           }});
  return name;
}

OnnxName OnnxBuilder::linear(const OnnxName& x, const ModuleId& module) {
  const OnnxName matrix = weight(weight_of(module), {.transposed = true});
  return plus(matrix.empty() ? x : node("MatMul", {x, matrix}), weight(bias_of(module)));
}

// ---- both ends

void OnnxBuilder::input(const std::string& name, OnnxType type, std::vector<std::variant<int64_t, std::string>> shape) {
  made_.graph.inputs.push_back({name, type, std::move(shape)});
  inputs_.insert(name);
}

void OnnxBuilder::output(const OnnxName& value, const std::string& name,
                         std::vector<std::variant<int64_t, std::string>> shape) {
  const bool own = !outputs_.contains(value) && !stored_.contains(value) && !inputs_.contains(value);
  outputs_[own ? value : node("Identity", {value})] = name;
  made_.graph.outputs.push_back({name, type_, std::move(shape)});
}

void OnnxBuilder::note(const std::string& text) {
  if (std::ranges::find(notes, text) == notes.end()) {
    notes.push_back(text);
  }
}

OnnxModel OnnxBuilder::finish() {
  const auto named_outside = [this](std::string& value) {
    if (const auto found = outputs_.find(value); found != outputs_.end()) {
      value = found->second;
    }
  };
  for (OnnxNode& each : made_.graph.nodes) {
    std::ranges::for_each(each.inputs, named_outside);
    std::ranges::for_each(each.outputs, named_outside);
  }
  // Answers first, as people know it from other exporters.
  std::ranges::stable_partition(made_.graph.outputs,
                                [](const OnnxValue& value) { return !value.name.starts_with("present."); });
  made_.graph.about = fmt::format("{}", fmt::join(notes, "\n"));
  return std::move(made_);
}

}  // namespace pare
