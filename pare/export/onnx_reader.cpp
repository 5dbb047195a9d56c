#include "pare/export/onnx_file.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "pare/checkpoint/weights.h"
#include "pare/export/onnx_wire.h"
#include "pare/support/error.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

struct StoredOnnxTensor {
  OnnxType type = OnnxType::f32;
  Shape shape;
  bool outside = false;
  uint64_t begin = 0, size = 0;
};

int64_t signed_number(const WireField& field) {
  return static_cast<int64_t>(WireReader::number(field));
}

OnnxAttribute read_attribute(WireReader message) {
  OnnxAttribute attribute;
  std::vector<int64_t> many;
  bool one = false;
  while (const std::optional<WireField> field = message.next()) {
    switch (field->number) {
      case 1:
        attribute.name = message.text(*field);
        break;
      case 2:
        attribute.value = WireReader::real(*field);
        one = true;
        break;
      case 3:
        attribute.value = signed_number(*field);
        one = true;
        break;
      case 4:
        attribute.value = message.text(*field);
        one = true;
        break;
      case 8:
        many.push_back(signed_number(*field));
        break;
      case 20:
        break;
      default:
        throw InputError(fmt::format("has an attribute {} that pare does not write", quote(attribute.name)));
    }
  }
  if (!one) {
    attribute.value = std::move(many);
  }
  return attribute;
}

OnnxNode read_node(WireReader message) {
  OnnxNode node;
  while (const std::optional<WireField> field = message.next()) {
    switch (field->number) {
      case 1:
        node.inputs.push_back(message.text(*field));
        break;
      case 2:
        node.outputs.push_back(message.text(*field));
        break;
      case 3:
        node.name = message.text(*field);
        break;
      case 4:
        node.op = message.text(*field);
        break;
      case 5:
        node.attributes.push_back(read_attribute(message.inside(*field)));
        break;
      case 7:
        refuse_if(!message.text(*field).empty(), "has an operator of another domain than ONNX's own: {}",
                  quote(message.text(*field)));
        break;
      default:
        break;  // words for people
    }
  }
  return node;
}

void read_shape(WireReader message, OnnxValue& value) {
  while (const std::optional<WireField> dimension = message.next()) {
    value.shape.emplace_back(int64_t{-1});
    WireReader inside = message.inside(*dimension);
    while (const std::optional<WireField> field = inside.next()) {
      if (field->number == 1) {
        value.shape.back() = signed_number(*field);
      } else if (field->number == 2) {
        value.shape.back() = inside.text(*field);
      }
    }
  }
}

OnnxValue read_value(WireReader message) {
  OnnxValue value;
  while (const std::optional<WireField> field = message.next()) {
    if (field->number == 1) {
      value.name = message.text(*field);
    } else if (field->number == 2) {
      WireReader type = message.inside(*field);
      while (const std::optional<WireField> kind = type.next()) {
        refuse_if(kind->number != 1, "{} is no tensor", quote(value.name));
        WireReader tensor = type.inside(*kind);
        while (const std::optional<WireField> part = tensor.next()) {
          if (part->number == 1) {
            value.type = onnx_type_from(signed_number(*part));
          } else if (part->number == 2) {
            read_shape(tensor.inside(*part), value);
          }
        }
      }
    }
  }
  return value;
}

uint64_t number_in(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  refuse_if(error != std::errc() || end != text.data() + text.size(), "{} is no place in a file", quote(text));
  return value;
}

void read_place(WireReader entry, StoredOnnxTensor& tensor) {
  std::string key, value;
  while (const std::optional<WireField> field = entry.next()) {
    (field->number == 1 ? key : value) = entry.text(*field);
  }
  if (key == "location") {
    refuse_if(value != onnx_data_name, "has tensors in {}, expected them in {} beside it", quote(value),
              quote(onnx_data_name));
  } else if (key == "offset") {
    tensor.begin = number_in(value);
  } else if (key == "length") {
    tensor.size = number_in(value);
  }
}

// Its name apart.
std::string read_tensor(WireReader message, StoredOnnxTensor& tensor) {
  std::string name;
  bool data = false;
  while (const std::optional<WireField> field = message.next()) {
    switch (field->number) {
      case 1:
        tensor.shape.push_back(signed_number(*field));
        break;
      case 2:
        tensor.type = onnx_type_from(signed_number(*field));
        break;
      case 8:
        name = message.text(*field);
        break;
      case 9:
        message.inside(*field);  // a piece, or an error
        tensor.begin = field->begin;
        tensor.size = field->size;
        data = true;
        break;
      case 13:
        read_place(message.inside(*field), tensor);
        break;
      case 14:
        tensor.outside = WireReader::number(*field) == 1;
        break;
      default:
        break;
    }
  }
  refuse_if(tensor.outside == data, "tensor {} has no numbers, or two places for them", quote(name));
  return name;
}

void check_stored(const std::string& name, const StoredOnnxTensor& tensor, uint64_t file_size) {
  constexpr int64_t most = int64_t{1} << 48;
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) {
    refuse_if(size < 0 || size > most || (size > 0 && elements > most / size), "tensor {} has a size of {}",
              quote(name), size);
    elements *= size;
  }
  const uint64_t wanted = static_cast<uint64_t>(bytes_of(elements, dtype_of(tensor.type)));
  refuse_if(tensor.size != wanted, "tensor {} has {} bytes, its shape asks for {}", quote(name), tensor.size, wanted);
  refuse_if(tensor.begin > file_size || tensor.size > file_size - tensor.begin,
            "tensor {} ends behind the end of its file", quote(name));
}

// Which operators the file means: their names are the same in every version.
void check_opset(WireReader message) {
  std::string domain;
  int64_t version = 0;
  while (const std::optional<WireField> field = message.next()) {
    if (field->number == 1) {
      domain = message.text(*field);
    } else if (field->number == 2) {
      version = signed_number(*field);
    }
  }
  refuse_if(!domain.empty() || version != onnx_opset,
            "asks for version {} of the operators of {}, expected {} of ONNX's", version,
            domain.empty() ? "ONNX" : quote(domain), onnx_opset);
}

}  // namespace

struct OnnxFile::State {
  explicit State(const std::filesystem::path& path) : wire(path) {}
  void read_graph(WireReader message);
  void check();

  WireFile wire;
  std::optional<InputFile> data;
  OnnxGraph graph;
  std::map<std::string, StoredOnnxTensor> tensors;
};

void OnnxFile::State::read_graph(WireReader message) {
  while (const std::optional<WireField> field = message.next()) {
    switch (field->number) {
      case 1:
        graph.nodes.push_back(read_node(message.inside(*field)));
        break;
      case 5: {
        StoredOnnxTensor tensor;
        std::string name = read_tensor(message.inside(*field), tensor);
        refuse_if(!tensors.emplace(name, std::move(tensor)).second, "tensor {} is there twice", quote(name));
        break;
      }
      case 10:
        graph.about = message.text(*field);
        break;
      case 11:
        graph.inputs.push_back(read_value(message.inside(*field)));
        break;
      case 12:
        graph.outputs.push_back(read_value(message.inside(*field)));
        break;
      default:
        break;
    }
  }
}

void OnnxFile::State::check() {
  const std::filesystem::path& path = wire.file().path();
  if (std::ranges::any_of(tensors, [](const auto& tensor) { return tensor.second.outside; })) {
    data.emplace(path.parent_path() / onnx_data_name);
  }
  for (const auto& [name, tensor] : tensors) {
    check_stored(name, tensor, tensor.outside ? data->size() : wire.file().size());
  }
}

OnnxFile::OnnxFile(const std::filesystem::path& path) : state_(new State(path)) {
  try {
    WireReader message(state_->wire);
    bool any = false, operators = false;
    while (const std::optional<WireField> field = message.next()) {
      if (field->number == 7) {
        refuse_if(std::exchange(any, true), "has two graphs");
        state_->read_graph(message.inside(*field));
      } else if (field->number == 8) {
        check_opset(message.inside(*field));
        operators = true;
      }
    }
    refuse_if(!any, "has no graph: is it an ONNX file?");
    refuse_if(!operators, "does not say which version of the operators it means");
    state_->check();
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", quote(shown(path)), error.what()));
  }
}

OnnxType onnx_type_from(int64_t number) {
  for (const OnnxType known :
       {OnnxType::f32, OnnxType::i32, OnnxType::i64, OnnxType::boolean, OnnxType::f16, OnnxType::f64}) {
    if (static_cast<int64_t>(known) == number) {
      return known;
    }
  }
  throw InputError(fmt::format("has a tensor of type {}, which pare does not write", number));
}

OnnxFile::~OnnxFile() = default;
OnnxFile::OnnxFile(OnnxFile&&) noexcept = default;
OnnxFile& OnnxFile::operator=(OnnxFile&&) noexcept = default;

const OnnxGraph& OnnxFile::graph() const {
  return state_->graph;
}

bool OnnxFile::has_tensor(const std::string& name) const {
  return state_->tensors.contains(name);
}

OnnxType OnnxFile::type_of(const std::string& name) const {
  return state_->tensors.at(name).type;
}

const std::filesystem::path& OnnxFile::path() const {
  return state_->wire.file().path();
}

at::Tensor OnnxFile::load(const std::string& name) const {
  const StoredOnnxTensor& stored = state_->tensors.at(name);
  const bool boolean = stored.type == OnnxType::boolean;  // of which a file may hold more than two kinds
  const at::Tensor tensor = at::empty(stored.shape, boolean ? at::kByte : scalar_type(dtype_of(stored.type)));
  const std::span<std::byte> bytes(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes());
  const InputFile& file = stored.outside ? *state_->data : state_->wire.file();
  refuse_if(file.read_at(stored.begin, bytes) != bytes.size(), "{} became shorter while it was read",
            quote(shown(file.path())));
  return boolean ? tensor.ne(0) : tensor;
}

}  // namespace pare
