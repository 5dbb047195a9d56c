#pragma once
// A graph while it is made: operators by name, constants that are stored once, and the model's tensors as ONNX has
// them.

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "pare/arch/tensor_id.h"
#include "pare/checkpoint/model.h"
#include "pare/export/onnx_file.h"
#include "pare/support/error.h"

namespace pare {

using OnnxName = std::string;  // of what an operator gives, goes in, or is stored

// How a tensor of the model is stored in the graph.
struct OnnxForm {
  Shape shape = {};            // another than its own, of as many elements
  bool transposed = false;     // a matrix as [in, out]: rows are multiplied from the left
  int64_t begin = 0, end = 0;  // only these columns; none: all
  double plus = 0;             // added to every number
  const char* suffix = "";     // where one tensor becomes several
};

class OnnxBuilder {
 public:
  // Computes in `type`, float32 or float16.
  OnnxBuilder(const Model& model, Dtype type);

  const Architecture& architecture() const { return model_->architecture; }
  OnnxType type() const { return type_; }
  bool stores(const TensorId& id) const { return table_.contains(id); }

  // What follows belongs to a part of the model, whose name its operators bear.
  void enter(std::string part) { part_ = std::move(part); }

  OnnxName node(const char* op, std::vector<OnnxName> inputs, std::vector<OnnxAttribute> attributes = {});
  OnnxName cast(const OnnxName& x, OnnxType to);
  // Sums and exponentials of float16 need more digits and a wider range: from and to float32, if the graph has less.
  OnnxName wide(const OnnxName& x) { return type_ == OnnxType::f32 ? x : cast(x, OnnxType::f32); }
  OnnxName narrow(const OnnxName& x) { return type_ == OnnxType::f32 ? x : cast(x, type_); }
  OnnxName reshape(const OnnxName& x, const std::vector<int64_t>& shape);  // 0: as it is, -1: what is left
  OnnxName transpose(const OnnxName& x, std::vector<int64_t> order);
  OnnxName unsqueeze(const OnnxName& x, const std::vector<int64_t>& axes);
  OnnxName concat(std::vector<OnnxName> parts, int64_t axis);
  OnnxName slice(const OnnxName& x, int64_t begin, int64_t end, int64_t axis, int64_t step = 1);

  OnnxName real(double value);       // of the type computed in
  OnnxName wide_real(double value);  // float32
  float setting(double value);       // of an attribute
  OnnxName index(int64_t value);     // no axes
  OnnxName indices(const std::vector<int64_t>& values);
  OnnxName doubles(const std::vector<double>& values);
  OnnxName constant(const std::string& name, const at::Tensor& values);  // under its name once, whoever asks

  // A tensor of the model. What has no tensor is "": no bias, no gain.
  OnnxName weight(const TensorId& id, const OnnxForm& form = {});
  // x W' + b; x where there is neither.
  OnnxName linear(const OnnxName& x, const ModuleId& module);
  OnnxName plus(const OnnxName& x, const OnnxName& bias) { return bias.empty() ? x : node("Add", {x, bias}); }

  void input(const std::string& name, OnnxType type, std::vector<std::variant<int64_t, std::string>> shape);
  void output(const OnnxName& value, const std::string& name, std::vector<std::variant<int64_t, std::string>> shape);
  bool has_input(const std::string& name) const { return inputs_.contains(name); }
  void note(const std::string& text);

  // What cannot be said in ONNX, or in its type: collected, so that all of it is told at once.
  Problems problems;
  std::vector<std::string> notes;
  OnnxModel finish();

 private:
  OnnxName fresh(const std::string& op);
  at::Tensor rounded(double value, OnnxType type);
  const Model* model_;
  OnnxType type_;
  TensorTable table_;
  std::string part_;
  std::map<std::string, int64_t> counted_;      // operators of a part
  std::map<std::string, std::string> outputs_;  // what a value is called outside
  std::set<std::string> inputs_, stored_;
  OnnxModel made_;
};

}  // namespace pare
