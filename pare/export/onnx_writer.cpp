#include "pare/export/onnx_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "pare/checkpoint/weights.h"
#include "pare/export/onnx_wire.h"
#include "pare/support/error.h"
#include "pare/support/memory.h"
#include "pare/support/progress.h"

namespace pare {

namespace {

constexpr uint64_t most_inside = 2'000'000'000;  // of tensors in model.onnx: 2^31 bytes is where its readers give up
constexpr uint64_t least_outside = 1024;         // below that a tensor stays with the graph, where people look at it
constexpr uint64_t alignment = 4096;             // of a page: readers map the file

WireWriter message_of(const OnnxAttribute& attribute) {
  WireWriter message;
  message.piece(1, attribute.name);
  if (const int64_t* number = std::get_if<int64_t>(&attribute.value)) {
    message.number(3, static_cast<uint64_t>(*number));
    message.number(20, 2);
  } else if (const float* real = std::get_if<float>(&attribute.value)) {
    message.real(2, *real);
    message.number(20, 1);
  } else if (const std::string* text = std::get_if<std::string>(&attribute.value)) {
    message.piece(4, *text);
    message.number(20, 3);
  } else {
    for (const int64_t each : std::get<std::vector<int64_t>>(attribute.value)) {
      message.number(8, static_cast<uint64_t>(each));
    }
    message.number(20, 7);
  }
  return message;
}

WireWriter message_of(const OnnxNode& node) {
  WireWriter message;
  for (const std::string& input : node.inputs) {
    message.piece(1, input);
  }
  for (const std::string& output : node.outputs) {
    message.piece(2, output);
  }
  message.piece(3, node.name);
  message.piece(4, node.op);
  for (const OnnxAttribute& attribute : node.attributes) {
    message.piece(5, message_of(attribute));
  }
  return message;
}

WireWriter message_of(const OnnxValue& value) {
  WireWriter shape;
  for (const std::variant<int64_t, std::string>& size : value.shape) {
    WireWriter dimension;
    if (const int64_t* fixed = std::get_if<int64_t>(&size)) {
      dimension.number(1, static_cast<uint64_t>(*fixed));
    } else {
      dimension.piece(2, std::get<std::string>(size));
    }
    shape.piece(1, dimension);
  }
  WireWriter tensor, type, message;
  tensor.number(1, static_cast<uint64_t>(value.type));
  tensor.piece(2, shape);
  type.piece(1, tensor);
  message.piece(1, value.name);
  message.piece(2, type);
  return message;
}

WireWriter entry(const std::string& key, const std::string& value) {
  WireWriter message;
  message.piece(1, key);
  message.piece(2, value);
  return message;
}

// Where a tensor lies in the other file; absent: here, behind what this says.
WireWriter front_of(const OnnxTensor& tensor, const std::optional<uint64_t>& outside) {
  WireWriter message;
  for (const int64_t size : tensor.shape) {
    message.number(1, static_cast<uint64_t>(size));
  }
  message.number(2, static_cast<uint64_t>(tensor.type));
  message.piece(8, tensor.name);
  if (outside) {
    message.piece(13, entry("location", onnx_data_name));
    message.piece(13, entry("offset", std::to_string(*outside)));
    message.piece(13, entry("length", std::to_string(tensor.bytes())));
    message.number(14, 1);
  } else {
    message.begin_piece(9, tensor.bytes());
  }
  return message;
}

WireWriter model_front() {
  WireWriter opset, message;
  opset.piece(1, "");
  opset.number(2, onnx_opset);
  message.number(1, onnx_ir_version);
  message.piece(8, opset);
  message.piece(2, "pare");
  message.piece(3, PARE_VERSION);
  return message;
}

WireWriter graph_front(const OnnxGraph& graph) {
  WireWriter message;
  for (const OnnxNode& node : graph.nodes) {
    message.piece(1, message_of(node));
  }
  message.piece(2, "model");
  if (!graph.about.empty()) {
    message.piece(10, graph.about);
  }
  for (const OnnxValue& input : graph.inputs) {
    message.piece(11, message_of(input));
  }
  for (const OnnxValue& output : graph.outputs) {
    message.piece(12, message_of(output));
  }
  return message;
}

void write_text(OutputFile& file, const WireWriter& message) {
  file.write(std::as_bytes(std::span(message.bytes())));
}

// Hands the tensor's bytes on, and sees that they are as many as were announced.
void write_bytes(OutputFile& file, const OnnxTensor& tensor, Progress& progress) {
  uint64_t written = 0;
  tensor.write([&](std::span<const std::byte> bytes) {
    file.write(bytes);
    written += bytes.size();
    progress.advance(bytes.size());
  });
  PARE_CHECK(written == tensor.bytes(), "tensor " + tensor.name + " has other bytes than were announced");
}

using Offsets = std::vector<std::optional<uint64_t>>;

Offsets places_outside(const std::vector<OnnxTensor>& tensors, uint64_t external_above) {
  uint64_t total = 0, end = 0;
  for (const OnnxTensor& tensor : tensors) {
    total += tensor.bytes();
  }
  Offsets offsets;
  for (const OnnxTensor& tensor : tensors) {
    offsets.emplace_back();
    if (total > std::min(external_above, most_inside) && tensor.bytes() >= least_outside) {
      end = (end + alignment - 1) / alignment * alignment;
      offsets.back() = end;
      end += tensor.bytes();
    }
  }
  return offsets;
}

void write_outside(const std::filesystem::path& path, const std::vector<OnnxTensor>& tensors, const Offsets& offsets,
                   Progress& progress) {
  OutputFile file(path);
  uint64_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (offsets[i]) {
      file.write(std::vector<std::byte>(*offsets[i] - at));
      write_bytes(file, tensors[i], progress);
      at = *offsets[i] + tensors[i].bytes();
    }
  }
  file.sync();
}

}  // namespace

Dtype dtype_of(OnnxType type) {
  switch (type) {
    case OnnxType::f32:
      return Dtype::f32;
    case OnnxType::f16:
      return Dtype::f16;
    case OnnxType::f64:
      return Dtype::f64;
    case OnnxType::i32:
      return Dtype::i32;
    case OnnxType::i64:
      return Dtype::i64;
    case OnnxType::boolean:
      return Dtype::boolean;
  }
  PARE_UNREACHABLE("a type that nobody writes");
}

OnnxTensor onnx_tensor(std::string name, const at::Tensor& values) {
  const at::Tensor held = values.contiguous();
  const Dtype dtype = dtype_of(held.scalar_type());
  for (const OnnxType type : {OnnxType::f32, OnnxType::i32, OnnxType::i64, OnnxType::f16, OnnxType::f64}) {
    if (dtype_of(type) == dtype) {
      return {std::move(name), type, held.sizes().vec(), [held](const OnnxTensor::Sink& sink) {
                sink({static_cast<const std::byte*>(held.const_data_ptr()), held.nbytes()});
              }};
    }
  }
  PARE_UNREACHABLE("a constant of a type that nobody writes");
}

void write_onnx_file(const std::filesystem::path& folder, const OnnxModel& model, uint64_t external_above) {
  const Offsets offsets = places_outside(model.tensors, external_above);
  uint64_t total = 0, inside = 0;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const OnnxTensor& tensor = model.tensors[i];
    total += tensor.bytes();
    inside += offsets[i] ? 0 : tensor.bytes();
  }
  Progress progress("writing", total, Progress::Unit::bytes);
  const PromptlyFreed promptly;
  if (std::ranges::any_of(offsets, [](const auto& offset) { return offset.has_value(); })) {
    write_outside(folder / onnx_data_name, model.tensors, offsets, progress);
  }
  // The graph is one field of the file, whose size comes first: it is made of what is held, and of sizes that are
  // known.
  const WireWriter front = graph_front(model.graph);
  std::vector<WireWriter> fronts;
  uint64_t size = front.bytes().size();
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const WireWriter tensor = front_of(model.tensors[i], offsets[i]);
    fronts.emplace_back().begin_piece(5, tensor.bytes().size() + (offsets[i] ? 0 : model.tensors[i].bytes()));
    fronts.back().append(tensor);
    size += fronts.back().bytes().size();
  }
  size += inside;
  PARE_CHECK(size < uint64_t{1} << 31, "a graph of more than 2 GiB");
  OutputFile file(folder / onnx_name);
  WireWriter head = model_front();
  head.begin_piece(7, size);
  write_text(file, head);
  write_text(file, front);
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    write_text(file, fronts[i]);
    if (!offsets[i]) {
      write_bytes(file, model.tensors[i], progress);
    }
  }
  file.sync();
}

}  // namespace pare
