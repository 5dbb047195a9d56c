// Protocol buffers by hand, against bytes of their own documentation; and files that are damaged in every place.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "pare/export/onnx_file.h"
#include "pare/export/onnx_wire.h"
#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;
namespace fs = std::filesystem;

namespace {

// y = x w, and a row of attributes of each kind.
OnnxModel product(const at::Tensor& weight = at::arange(6, at::kFloat).view({2, 3})) {
  OnnxModel model;
  model.graph.nodes = {{"MatMul", "node", {"x", "w"}, {"y"}, {}},
                       {"Made",
                        "up",
                        {"y"},
                        {"z"},
                        {{"one", int64_t{-5}},
                         {"real", 0.25F},
                         {"text", "none"},
                         {"many", std::vector<int64_t>{3, -1, INT64_MAX}},
                         {"none", std::vector<int64_t>{}}}}};
  model.graph.inputs = {{"x", OnnxType::f32, {"rows", int64_t{2}}}};
  model.graph.outputs = {{"y", OnnxType::f32, {"rows", int64_t{3}}}};
  model.graph.about = "two words";
  model.tensors = {onnx_tensor("w", weight), onnx_tensor("three", at::tensor({3}, at::kLong))};
  return model;
}

std::string opened(const fs::path& path) {
  return message_of<InputError>([&] { OnnxFile file(path); });
}

// A file with one tensor, whose message is made by hand.
fs::path with_tensor(const TemporaryFolder& folder, const WireWriter& tensor) {
  WireWriter opset, graph, file;
  opset.number(2, onnx_opset);
  graph.piece(5, tensor);
  file.piece(8, opset);
  file.piece(7, graph);
  return folder.write("model.onnx", file.bytes());
}

WireWriter tensor_of(int64_t size, OnnxType type) {
  WireWriter tensor;
  tensor.number(1, static_cast<uint64_t>(size));
  tensor.number(2, static_cast<uint64_t>(type));
  tensor.piece(8, "w");
  return tensor;
}

WireWriter outside(int64_t size, const char* key, const char* value) {
  WireWriter entry, tensor = tensor_of(size, OnnxType::f32);
  entry.piece(1, key);
  entry.piece(2, value);
  tensor.piece(13, entry);
  tensor.number(14, 1);
  return tensor;
}

}  // namespace

TEST_CASE("fields are written as the documentation of protocol buffers has them") {
  WireWriter number, text, negative;
  number.number(1, 150);
  text.piece(2, "testing");
  negative.number(1, static_cast<uint64_t>(int64_t{-2}));
  CHECK(number.bytes() == "\x08\x96\x01");
  CHECK(text.bytes() == "\x12\x07testing");
  CHECK(negative.bytes() == "\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  WireWriter real;
  real.real(1, 1.0F);
  CHECK(real.bytes() == std::string("\x0d\x00\x00\x80\x3f", 5));
}

TEST_CASE("what is written is read again") {
  for (const uint64_t external_above : {uint64_t{1} << 40, uint64_t{8}}) {
    const TemporaryFolder folder;
    const at::Tensor weight = at::arange(2000, at::kFloat).view({2, 1000});
    write_onnx_file(folder.path(), product(weight), external_above);
    const bool beside = external_above == 8;
    CHECK(fs::exists(folder.path() / onnx_data_name) == beside);
    const OnnxFile file(folder.path() / onnx_name);
    CHECK(file.load("w").equal(weight));
    CHECK(file.load("three").equal(at::tensor({3}, at::kLong)));  // too small to lie outside
    CHECK(file.type_of("three") == OnnxType::i64);
    const OnnxGraph &read = file.graph(), written = product().graph;
    CHECK(read.about == "two words");
    CHECK((read.inputs.front().shape == written.inputs.front().shape));
    REQUIRE(read.nodes.size() == 2);
    CHECK(read.nodes[0].inputs == std::vector<std::string>{"x", "w"});
    for (size_t i = 0; i < 5; ++i) {
      CHECK(read.nodes[1].attributes[i].name == written.nodes[1].attributes[i].name);
      CHECK((read.nodes[1].attributes[i].value == written.nodes[1].attributes[i].value));
    }
  }
}

TEST_CASE("tensors beside the file begin at pages") {
  const TemporaryFolder folder;
  OnnxModel model = product(at::ones({2, 1000}, at::kFloat));
  model.tensors.push_back(onnx_tensor("second", at::full({500}, 2, at::kDouble)));
  write_onnx_file(folder.path(), model, 0);
  CHECK(fs::file_size(folder.path() / onnx_data_name) == 8192 + 4000);
  CHECK(OnnxFile(folder.path() / onnx_name).load("second").equal(at::full({500}, 2, at::kDouble)));
}

TEST_CASE("a file that ends early is refused wherever it ends") {
  const TemporaryFolder folder;
  write_onnx_file(folder.path(), product(), 1 << 20);
  const std::string whole = bytes_of_file(folder.path() / onnx_name);
  REQUIRE(opened(folder.path() / onnx_name).empty());
  for (size_t size = 0; size < whole.size(); ++size) {
    CHECK_MESSAGE(contains(opened(folder.write("short.onnx", whole.substr(0, size))), "short.onnx"), size);
  }
}

TEST_CASE("a damaged byte is an error of the file, or a file that says something else") {
  const TemporaryFolder folder;
  write_onnx_file(folder.path(), product(), 1 << 20);
  const std::string whole = bytes_of_file(folder.path() / onnx_name);
  size_t refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char change : {'\x01', '\x80', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ change);
      refused += opened(folder.write("damaged.onnx", damaged)).empty() ? 0 : 1;  // no other error gets through
    }
  }
  CHECK(refused > whole.size() / 2);
}

TEST_CASE("sizes are held against what is there before anything is believed") {
  const TemporaryFolder folder;
  WireWriter few = tensor_of(3, OnnxType::f32);
  few.piece(9, "12345678");
  CHECK(contains(opened(with_tensor(folder, few)), "has 8 bytes, its shape asks for 12"));
  WireWriter negative = tensor_of(-3, OnnxType::f32);
  negative.piece(9, "");
  CHECK(contains(opened(with_tensor(folder, negative)), "has a size of -3"));
  WireWriter many = tensor_of(int64_t{1} << 40, OnnxType::f32);
  many.number(1, uint64_t{1} << 40);
  many.piece(9, "");
  CHECK(contains(opened(with_tensor(folder, many)), "has a size of 1099511627776"));
  WireWriter strange = tensor_of(1, OnnxType::f32);
  strange.number(2, 16);
  strange.piece(9, "12");
  CHECK(contains(opened(with_tensor(folder, strange)), "type 16, which pare does not write"));
  CHECK(contains(opened(with_tensor(folder, tensor_of(1, OnnxType::f32))), "has no numbers"));
  WireWriter twice = outside(1, "location", onnx_data_name);
  twice.piece(9, "1234");
  CHECK(contains(opened(with_tensor(folder, twice)), "two places"));
}

TEST_CASE("a tensor lies nowhere but beside its file, and inside that") {
  const TemporaryFolder folder;
  CHECK(contains(opened(with_tensor(folder, outside(1, "location", "../secret"))), "'../secret', expected them in"));
  folder.write(onnx_data_name, "1234567");
  WireWriter late = outside(1, "offset", "4");
  WireWriter length;
  length.piece(1, "length");
  length.piece(2, "4");
  late.piece(13, length);
  CHECK(contains(opened(with_tensor(folder, late)), "ends behind the end of its file"));
  CHECK(contains(opened(with_tensor(folder, outside(1, "offset", "-4"))), "'-4' is no place in a file"));
}

TEST_CASE("what the operators mean has to be said, and to be what pare writes") {
  const TemporaryFolder folder;
  const auto with_opset = [&](uint64_t version, const char* domain) {
    WireWriter opset, file;
    opset.piece(1, domain);
    opset.number(2, version);
    file.piece(8, opset);
    file.piece(7, WireWriter());
    return opened(folder.write("model.onnx", file.bytes()));
  };
  CHECK(with_opset(onnx_opset, "").empty());
  CHECK(contains(with_opset(17, ""), "version 17 of the operators of ONNX"));
  CHECK(contains(with_opset(onnx_opset, "com.microsoft"), "'com.microsoft'"));
  WireWriter silent;
  silent.piece(7, WireWriter());
  CHECK(contains(opened(folder.write("model.onnx", silent.bytes())), "does not say which version"));
  CHECK(contains(opened(folder.write("model.onnx", "")), "has no graph"));
  CHECK(contains(opened(folder.write("model.onnx", "{\"text\": 1}")), "is no ONNX file, or a damaged one"));
}
