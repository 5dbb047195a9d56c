#include "pare/export/onnx_operators.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "pare/checkpoint/weights.h"
#include "pare/support/error.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"

namespace pare {

namespace {

constexpr int64_t most_computed = int64_t{1} << 36;  // elements that shapes of a file may ask for

int64_t axis_of(const at::Tensor& x, int64_t axis) {
  refuse_if(axis < -x.dim() || axis >= x.dim(), "there is no axis {} of {}", axis, x.dim());
  return axis < 0 ? axis + x.dim() : axis;
}

std::vector<int64_t> as_list(const at::Tensor& values) {
  refuse_if(values.dim() > 1 || at::isFloatingType(values.scalar_type()), "a list of integers is expected");
  const at::Tensor flat = values.to(at::kLong).flatten().contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

using Binary = at::Tensor (*)(const at::Tensor&, const at::Tensor&);
using Unary = at::Tensor (*)(const at::Tensor&);

template <Unary function>
at::Tensor unary(const OnnxCall& call) {
  return function(call.input(0));
}

template <Binary function>
at::Tensor binary(const OnnxCall& call) {
  const at::Tensor &a = call.input(0), &b = call.input(1);
  refuse_if(a.scalar_type() != b.scalar_type(), "its inputs are of two types");  // libtorch would convert one
  return function(a, b);
}

at::Tensor onnx_sub(const OnnxCall& call) {
  refuse_if(call.input(0).scalar_type() != call.input(1).scalar_type(), "its inputs are of two types");
  return call.input(0) - call.input(1);
}

at::Tensor onnx_add(const OnnxCall& call) {
  refuse_if(call.input(0).scalar_type() != call.input(1).scalar_type(), "its inputs are of two types");
  return call.input(0) + call.input(1);
}

// A large matrix comes as it is stored, and is widened a few columns at a time.
at::Tensor onnx_mat_mul(const OnnxCall& call) {
  constexpr int64_t piece_elements = 1 << 22;
  const auto wide = [&call](const at::Tensor& x) { return x.to(call.float_type(x.scalar_type())); };
  const at::Tensor a = wide(call.input(0)), &b = call.input(1);
  refuse_if(call.float_type(b.scalar_type()) != a.scalar_type(), "its inputs are of two types");
  if (a.scalar_type() == b.scalar_type() || b.dim() != 2) {
    return at::matmul(a, wide(b));
  }
  std::vector<int64_t> shape = a.sizes().vec();
  shape.back() = b.size(1);
  const at::Tensor result = at::empty(shape, a.options());
  const int64_t step = std::max<int64_t>(1, piece_elements / std::max<int64_t>(1, b.size(0)));
  for (int64_t column = 0; column < b.size(1); column += step) {
    const int64_t columns = std::min(step, b.size(1) - column);
    result.narrow(-1, column, columns).copy_(at::matmul(a, b.narrow(1, column, columns).to(a.scalar_type())));
  }
  return result;
}

at::Tensor onnx_where(const OnnxCall& call) {
  refuse_if(call.input(0).scalar_type() != at::kBool, "a condition is expected first");
  return at::where(call.input(0), call.input(1), call.input(2));
}

at::Tensor onnx_cast(const OnnxCall& call) {
  const OnnxType to = onnx_type_from(call.integer("to", 0));
  return call.input(0).to(call.float_type(scalar_type(dtype_of(to))));
}

at::Tensor onnx_reshape(const OnnxCall& call) {
  const at::Tensor& x = call.input(0);
  std::vector<int64_t> shape = call.integers(1);
  for (size_t i = 0; i < shape.size(); ++i) {
    shape[i] = shape[i] == 0 ? x.size(axis_of(x, static_cast<int64_t>(i))) : shape[i];
  }
  return x.reshape(shape);
}

at::Tensor onnx_transpose(const OnnxCall& call) {
  return call.input(0).permute(call.list("perm"));
}

at::Tensor onnx_unsqueeze(const OnnxCall& call) {
  at::Tensor x = call.input(0);
  std::vector<int64_t> axes = call.integers(1);
  const int64_t all = x.dim() + std::ssize(axes);
  for (int64_t& axis : axes) {
    axis = axis < 0 ? axis + all : axis;
  }
  std::ranges::sort(axes);
  for (const int64_t axis : axes) {
    x = x.unsqueeze(axis);
  }
  return x;
}

at::Tensor onnx_squeeze(const OnnxCall& call) {
  at::Tensor x = call.input(0);
  if (call.count() == 1) {
    return x.squeeze();
  }
  std::vector<int64_t> axes = mapped(call.integers(1), [&](int64_t axis) { return axis_of(x, axis); });
  std::ranges::sort(axes, std::greater());
  for (const int64_t axis : axes) {
    refuse_if(x.size(axis) != 1, "squeezes an axis of {}", x.size(axis));
    x = x.squeeze(axis);
  }
  return x;
}

at::Tensor onnx_concat(const OnnxCall& call) {
  return at::cat(std::vector<at::Tensor>(call.inputs().begin(), call.inputs().end()), call.integer("axis", 0));
}

at::Tensor onnx_slice(const OnnxCall& call) {
  at::Tensor x = call.input(0);
  const std::vector<int64_t> begins = call.integers(1), ends = call.integers(2), axes = call.integers(3);
  const std::vector<int64_t> steps = call.count() > 4 ? call.integers(4) : std::vector<int64_t>(begins.size(), 1);
  refuse_if(begins.size() != ends.size() || begins.size() != axes.size() || begins.size() != steps.size(),
            "its limits are not as many as its axes");
  for (size_t i = 0; i < begins.size(); ++i) {
    refuse_if(steps[i] <= 0, "steps backwards, which pare does not write");
    x = at::slice(x, axis_of(x, axes[i]), begins[i], ends[i], steps[i]);
  }
  return x;
}

// Indices may count from the end; what is outside is an error, and not memory of others.
at::Tensor within(const at::Tensor& indices, int64_t size) {
  const at::Tensor counted = at::where(indices < 0, indices + size, indices);
  refuse_if(((counted < 0) | (counted >= size)).any().item<bool>(), "asks for what is outside of 0 to {}", size - 1);
  return counted;
}

at::Tensor onnx_gather(const OnnxCall& call) {
  const at::Tensor& x = call.input(0);
  const int64_t axis = axis_of(x, call.integer("axis", 0));
  const at::Tensor indices = within(call.input(1).to(at::kLong), x.size(axis));
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().begin() + axis);
  shape.insert(shape.end(), indices.sizes().begin(), indices.sizes().end());
  shape.insert(shape.end(), x.sizes().begin() + axis + 1, x.sizes().end());
  return x.index_select(axis, indices.flatten()).reshape(shape);
}

at::Tensor onnx_gather_elements(const OnnxCall& call) {
  const at::Tensor& x = call.input(0);
  const int64_t axis = axis_of(x, call.integer("axis", 0));
  return x.gather(axis, within(call.input(1).to(at::kLong), x.size(axis)));
}

// One row of each batch.
at::Tensor onnx_gather_nd(const OnnxCall& call) {
  const at::Tensor &x = call.input(0), &places = call.input(1);
  refuse_if(call.integer("batch_dims", 0) != 1 || places.dim() != 2 || places.size(1) != 1 || x.dim() < 2 ||
                x.size(0) != places.size(0),
            "gathers otherwise than one row of each batch, which pare does not write");
  const at::Tensor rows = within(places.to(at::kLong).flatten(), x.size(1));
  return x.index({at::arange(x.size(0), at::kLong), rows});
}

at::Tensor onnx_shape(const OnnxCall& call) {
  const std::vector<int64_t> sizes = call.input(0).sizes().vec();
  const int64_t all = std::ssize(sizes), end = call.integer("end", all);
  const at::Tensor shape = at::tensor(sizes, at::kLong);
  return at::slice(shape, 0, call.integer("start", 0), end);
}

at::Tensor onnx_range(const OnnxCall& call) {
  const int64_t begin = call.integer(0), end = call.integer(1), step = call.integer(2);
  refuse_if(step <= 0 || end - begin > most_computed, "counts from {} to {} by {}", begin, end, step);
  return at::arange(begin, std::max(begin, end), step, at::kLong);
}

at::Tensor onnx_expand(const OnnxCall& call) {
  const std::vector<int64_t> wanted = at::infer_size(call.input(0).sizes(), call.integers(1));
  return call.input(0).expand(wanted);
}

at::Tensor onnx_softmax(const OnnxCall& call) {
  return at::softmax(call.input(0), call.integer("axis", -1));
}

at::Tensor onnx_gelu(const OnnxCall& call) {
  return at::gelu(call.input(0), call.text("approximate", "none"));
}

std::vector<int64_t> reduced_axes(const OnnxCall& call) {
  const at::Tensor& x = call.input(0);
  std::vector<int64_t> axes;
  if (call.count() > 1) {
    return call.integers(1);
  }
  for (int64_t axis = 0; axis < x.dim(); ++axis) {
    axes.push_back(axis);
  }
  return axes;
}

at::Tensor onnx_reduce_sum(const OnnxCall& call) {
  return call.input(0).sum(reduced_axes(call), call.integer("keepdims", 1) != 0);
}

at::Tensor onnx_reduce_mean(const OnnxCall& call) {
  return call.input(0).mean(reduced_axes(call), call.integer("keepdims", 1) != 0);
}

at::Tensor onnx_reduce_max(const OnnxCall& call) {
  return at::amax(call.input(0), reduced_axes(call), call.integer("keepdims", 1) != 0);
}

at::Tensor onnx_cum_sum(const OnnxCall& call) {
  return call.input(0).cumsum(call.integer(1));
}

at::Tensor onnx_layer_norm(const OnnxCall& call) {
  refuse_if(axis_of(call.input(0), call.integer("axis", -1)) != call.input(0).dim() - 1,
            "is over more than the last axis, which pare does not write");
  const at::Tensor x = call.input(0).to(wider_of(call.input(0).scalar_type(), at::kFloat));  // in float32 at least
  const at::Tensor centred = x - x.mean(-1, true);
  const at::Tensor y = centred * at::rsqrt(centred.square().mean(-1, true) + call.real("epsilon", 1e-5));
  const at::Tensor scaled = y.to(call.input(0).scalar_type()) * call.input(1);
  return call.count() > 2 ? scaled + call.input(2) : scaled;
}

using Operator = at::Tensor (*)(const OnnxCall&);

const std::map<std::string, Operator>& operators() {
  static const std::map<std::string, Operator> all = {
      {"Abs", unary<at::abs>},
      {"Add", onnx_add},
      {"And", binary<at::logical_and>},
      {"Cast", onnx_cast},
      {"Concat", onnx_concat},
      {"Cos", unary<at::cos>},
      {"CumSum", onnx_cum_sum},
      {"Div", binary<at::div>},
      {"Equal", binary<at::eq>},
      {"Expand", onnx_expand},
      {"Gather", onnx_gather},
      {"GatherElements", onnx_gather_elements},
      {"GatherND", onnx_gather_nd},
      {"Gelu", onnx_gelu},
      {"Greater", binary<at::gt>},
      {"Identity", unary<at::alias>},
      {"LayerNormalization", onnx_layer_norm},
      {"Less", binary<at::lt>},
      {"LessOrEqual", binary<at::le>},
      {"MatMul", onnx_mat_mul},
      {"Max", binary<at::maximum>},
      {"Min", binary<at::minimum>},
      {"Mul", binary<at::mul>},
      {"Or", binary<at::logical_or>},
      {"Pow", binary<at::pow>},
      {"Range", onnx_range},
      {"ReduceMax", onnx_reduce_max},
      {"ReduceMean", onnx_reduce_mean},
      {"ReduceSum", onnx_reduce_sum},
      {"Relu", unary<at::relu>},
      {"Reshape", onnx_reshape},
      {"Shape", onnx_shape},
      {"Sigmoid", unary<at::sigmoid>},
      {"Sin", unary<at::sin>},
      {"Slice", onnx_slice},
      {"Softmax", onnx_softmax},
      {"Sqrt", unary<at::sqrt>},
      {"Squeeze", onnx_squeeze},
      {"Sub", onnx_sub},
      {"Tanh", unary<at::tanh>},
      {"Transpose", onnx_transpose},
      {"Unsqueeze", onnx_unsqueeze},
      {"Where", onnx_where},
  };
  return all;
}

}  // namespace

at::ScalarType wider_of(at::ScalarType type, at::ScalarType least) {
  return at::isFloatingType(type) && at::elementSize(type) < at::elementSize(least) ? least : type;
}

const at::Tensor& OnnxCall::input(size_t number) const {
  refuse_if(number >= inputs_.size(), "has {} inputs, one more is needed", inputs_.size());
  asked_.insert(&inputs_[number]);
  return inputs_[number];
}

std::span<const at::Tensor> OnnxCall::inputs() const {
  for (const at::Tensor& each : inputs_) {
    asked_.insert(&each);
  }
  return inputs_;
}

void OnnxCall::check_all_asked() const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    refuse_if(!asked_.contains(&inputs_[i]), "has an input {}, which pare does not write", i);
  }
  for (const OnnxAttribute& each : node_.attributes) {
    refuse_if(!asked_.contains(&each), "has an attribute {}, which pare does not write", quote(each.name));
  }
}

std::vector<int64_t> OnnxCall::integers(size_t number) const {
  return as_list(input(number));
}

int64_t OnnxCall::integer(size_t number) const {
  const std::vector<int64_t> values = integers(number);
  refuse_if(values.size() != 1, "one number is expected, found {}", values.size());
  return values.front();
}

const OnnxAttribute* OnnxCall::find(const char* name) const {
  const auto found = std::ranges::find(node_.attributes, name, &OnnxAttribute::name);
  if (found == node_.attributes.end()) {
    return nullptr;
  }
  asked_.insert(&*found);
  return &*found;
}

template <class Value>
static Value attribute_or(const OnnxAttribute* attribute, Value otherwise) {
  if (!attribute) {
    return otherwise;
  }
  const Value* value = std::get_if<Value>(&attribute->value);
  refuse_if(!value, "its attribute {} is of another kind", quote(attribute->name));
  return *value;
}

int64_t OnnxCall::integer(const char* attribute, int64_t otherwise) const {
  return attribute_or(find(attribute), otherwise);
}

double OnnxCall::real(const char* attribute, double otherwise) const {
  return attribute_or(find(attribute), static_cast<float>(otherwise));
}

std::string OnnxCall::text(const char* attribute, const char* otherwise) const {
  return attribute_or(find(attribute), std::string(otherwise));
}

std::vector<int64_t> OnnxCall::list(const char* attribute) const {
  return attribute_or(find(attribute), std::vector<int64_t>{});
}

at::ScalarType OnnxCall::float_type(at::ScalarType own) const {
  return wider_of(own, least_);
}

bool takes_as_stored(const std::string& op) {
  return op == "Gather" || op == "MatMul" || op == "Transpose";
}

bool knows_operator(const std::string& op) {
  return operators().contains(op);
}

OnnxType result_type(const OnnxNode& node, std::span<const OnnxType> inputs) {
  static const std::set<std::string> truths = {"And", "Equal", "Greater", "Less", "LessOrEqual", "Or"};
  static const std::set<std::string> mixed = {// their further inputs are places and shapes
                                              "CumSum", "Expand",    "Gather",     "GatherElements", "GatherND",
                                              "Pow",    "ReduceMax", "ReduceMean", "ReduceSum",      "Reshape",
                                              "Slice",  "Squeeze",   "Unsqueeze"};
  if (node.op == "Cast") {
    return onnx_type_from(OnnxCall(node, {}, at::kFloat).integer("to", 0));
  }
  if (node.op == "Shape") {
    return OnnxType::i64;
  }
  const size_t first = node.op == "Where" ? 1 : 0;
  refuse_if(inputs.size() <= first, "node {} has {} inputs", quote(node.name), inputs.size());
  const auto wrong = std::ranges::find_if(inputs.subspan(first), [&](OnnxType type) { return type != inputs[first]; });
  if (!mixed.contains(node.op) && wrong != inputs.end()) {
    throw InputError(fmt::format("the inputs of node {} are of several types: {} and {}", quote(node.name),
                                 dtype_name(dtype_of(inputs[first])), dtype_name(dtype_of(*wrong))));
  }
  return truths.contains(node.op) ? OnnxType::boolean : inputs[first];
}

at::Tensor run_operator(const OnnxNode& node, std::span<const at::Tensor> inputs, at::ScalarType least) {
  const auto subject = [&node] { return fmt::format("node {} ({})", quote(node.name), escaped(node.op)); };
  try {
    const OnnxCall call(node, inputs, least);
    const at::Tensor result = operators().at(node.op)(call);
    call.check_all_asked();
    return result;
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", subject(), error.what()));
  } catch (const c10::Error& error) {  // sizes that do not fit each other
    throw InputError(fmt::format("{}: {}", subject(), error.what_without_backtrace()));
  }
}

}  // namespace pare
