#pragma once
// An ONNX file as plain values, its writer, and its reader. No operator means anything here.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "pare/arch/tensors.h"
#include "pare/checkpoint/dtype.h"

namespace pare {

// The oldest opset that says a model: Gelu came with 20, and what came later only widened types of what is used here. A
// runtime refuses a file of a newer opset or format than it knows, whether or not it uses anything new: onnxruntime
// 1.31 goes up to opset 26, 1.23 to format 11, 1.17 to format 9, and DirectML to opset 20. So RMSNormalization, of 23,
// is spelled out; onnxruntime makes one operator of it again. Opset 20 goes with format 9.
constexpr int64_t onnx_opset = 20, onnx_ir_version = 9;

constexpr const char *onnx_name = "model.onnx", *onnx_data_name = "model.onnx.data";

// By the numbers of the format; those that pare writes.
enum class OnnxType : uint8_t { f32 = 1, i32 = 6, i64 = 7, boolean = 9, f16 = 10, f64 = 11 };
Dtype dtype_of(OnnxType type);
OnnxType onnx_type_from(int64_t number);  // InputError where pare does not write it

struct OnnxAttribute {
  std::string name;
  std::variant<int64_t, float, std::string, std::vector<int64_t>> value;
};

struct OnnxNode {
  std::string op, name;
  std::vector<std::string> inputs, outputs;
  std::vector<OnnxAttribute> attributes = {};
};

struct OnnxValue {  // what goes in, or comes out
  std::string name;
  OnnxType type = OnnxType::f32;
  std::vector<std::variant<int64_t, std::string>> shape;  // a size, or what people call one that may vary
};

struct OnnxGraph {
  std::vector<OnnxNode> nodes;  // in an order in which they can be run
  std::vector<OnnxValue> inputs, outputs;
  std::string about;
};

// ---- writing

// A tensor that is there when it is written, piece by piece, and not before.
struct OnnxTensor {
  using Sink = std::function<void(std::span<const std::byte>)>;
  std::string name;
  OnnxType type = OnnxType::f32;
  Shape shape;
  std::function<void(const Sink&)> write;
  uint64_t bytes() const { return static_cast<uint64_t>(bytes_of(element_count(shape), dtype_of(type))); }
};

OnnxTensor onnx_tensor(std::string name, const at::Tensor& values);  // of what is held anyway

struct OnnxModel {
  OnnxGraph graph;
  std::vector<OnnxTensor> tensors;
};

// Writes model.onnx into a folder that exists. Where tensors have more than `external_above` bytes, all but the
// smallest go into model.onnx.data: a file of protocol buffers ends at two GiB.
void write_onnx_file(const std::filesystem::path& folder, const OnnxModel& model, uint64_t external_above);

// ---- reading

// Of an untrusted file: parsed whole, every size checked, tensors read on demand. Any number of threads may load.
class OnnxFile {
 public:
  explicit OnnxFile(const std::filesystem::path& path);
  ~OnnxFile();
  OnnxFile(OnnxFile&&) noexcept;
  OnnxFile& operator=(OnnxFile&&) noexcept;

  const OnnxGraph& graph() const;
  bool has_tensor(const std::string& name) const;
  at::Tensor load(const std::string& name) const;
  OnnxType type_of(const std::string& name) const;
  const std::filesystem::path& path() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare
