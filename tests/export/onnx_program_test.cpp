// The interpreter, against numbers worked out by hand, and what it refuses; and a model's own graph.

#include "pare/export/onnx_program.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "pare/export/onnx.h"
#include "pare/export/onnx_operators.h"
#include "pare/support/error.h"
#include "tests/model/helpers.h"
#include "tests/support/helpers.h"

using namespace pare;

namespace {

at::Tensor computed(const char* op, std::vector<at::Tensor> inputs, std::vector<OnnxAttribute> attributes = {}) {
  return run_operator({op, "node", {}, {"y"}, std::move(attributes)}, inputs, at::kDouble);
}

at::Tensor doubles(std::vector<double> values) {
  return at::tensor(values, at::kDouble);
}

at::Tensor longs(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong);
}

struct Written {
  TemporaryFolder folder;
  OnnxModel model;
  // y = op(x, further inputs), of float32.
  explicit Written(std::vector<OnnxNode> nodes, OnnxType type = OnnxType::f32) {
    model.graph.nodes = std::move(nodes);
    model.graph.inputs = {{"x", type, {"many"}}};
    model.graph.outputs = {{"y", type, {"many"}}};
  }
  OnnxProgram program() {
    write_onnx_file(folder.path(), model, 1 << 20);
    return OnnxProgram(folder.path() / onnx_name);
  }
  std::string refused() {
    return message_of<InputError>([this] { program(); });
  }
  std::string refused(const at::Tensor& x) {
    const std::vector<NamedTensors> request = {{{"x", x}}};
    return message_of<InputError>([&] { program().run(request, at::kDouble); });
  }
};

Architecture decoder() {
  return test::parse(R"({"width": 8, "vocab": 20, "context": 16, "head": {"tied": true}, "final_norm": {"kind": "rms"},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 4, "kv_heads": 1, "rope": {"theta": 100}, "norm": {"kind": "rms"}},
                "mlp": {"width": 12, "activation": "silu", "gated": true, "norm": {"kind": "rms"}}}]})");
}

}  // namespace

TEST_CASE("operators compute what ONNX says of them") {
  CHECK(computed("Gather", {doubles({10, 20, 30}), longs({-1, 0})}, {{"axis", int64_t{0}}}).equal(doubles({30, 10})));
  CHECK(computed("Slice", {doubles({1, 2, 3, 4}), longs({-3}), longs({INT64_MAX}), longs({0}), longs({2})})
            .equal(doubles({2, 4})));
  CHECK(computed("CumSum", {longs({1, 0, 2}), at::scalar_tensor(0, at::kLong)}).equal(longs({1, 1, 3})));
  CHECK(computed("Reshape", {at::ones({2, 6}), longs({0, 2, -1})}).sizes().vec() == std::vector<int64_t>{2, 2, 3});
  CHECK(computed("Shape", {at::ones({2, 6, 5})}, {{"start", int64_t{1}}, {"end", int64_t{2}}}).equal(longs({6})));
  CHECK(computed("ReduceMean", {doubles({1, 3})}, {{"keepdims", int64_t{0}}}).item<double>() == 2);
  CHECK(computed("Range", {longs({1}).squeeze(), longs({6}).squeeze(), longs({2}).squeeze()}).equal(longs({1, 3, 5})));
  const at::Tensor norm = computed("LayerNormalization", {doubles({1, 3}), doubles({2, 2}), doubles({0, 1})},
                                   {{"axis", int64_t{-1}}, {"epsilon", 3.0F}});  // variance 1, and 3: half of it
  CHECK(norm.equal(doubles({-1, 2})));
}

TEST_CASE("float16 stays float16 unless something wider is asked for") {
  const std::vector<at::Tensor> sixteen = {doubles({1}).to(at::kHalf), doubles({1e-4}).to(at::kHalf)};
  const OnnxNode node = {"Add", "node", {}, {"y"}, {}};
  CHECK(run_operator(node, sixteen, at::kHalf).item<double>() == 1);
  const OnnxAttribute to_half = {"to", static_cast<int64_t>(OnnxType::f16)};
  CHECK(computed("Cast", {doubles({1e-12})}, {to_half}).item<double>() == 1e-12);
}

TEST_CASE("a product with a large matrix as it is stored is that with the whole of it") {
  at::manual_seed(3);
  const at::Tensor x = at::randn({2, 1, 1024}, at::kDouble), matrix = at::randn({1024, 5000}, at::kFloat);
  CHECK(computed("MatMul", {x, matrix}).allclose(at::matmul(x, matrix.to(at::kDouble)), 1e-12, 1e-12));
}

TEST_CASE("a node is refused with its name where inputs do not fit it") {
  const auto refusal = [](const char* op, std::vector<at::Tensor> inputs, std::vector<OnnxAttribute> attributes = {}) {
    return message_of<InputError>([&] { computed(op, std::move(inputs), std::move(attributes)); });
  };
  CHECK(contains(refusal("MatMul", {at::ones({2, 3}), at::ones({2, 3})}), "node 'node' (MatMul)"));
  CHECK(contains(refusal("Add", {at::ones({2}), longs({1, 2})}), "two types"));
  CHECK(contains(refusal("Gather", {doubles({1, 2}), longs({2})}, {{"axis", int64_t{0}}}), "outside of 0 to 1"));
  CHECK(contains(refusal("Gather", {doubles({1, 2}), longs({-3})}, {{"axis", int64_t{0}}}), "outside of 0 to 1"));
  CHECK(contains(refusal("Slice", {doubles({1}), longs({1}), longs({0}), longs({0}), longs({-1})}), "backwards"));
  CHECK(contains(refusal("Squeeze", {at::ones({2, 1}), longs({0})}), "squeezes an axis of 2"));
  CHECK(contains(refusal("Cast", {doubles({1})}, {{"to", int64_t{16}}}), "type 16"));
  CHECK(contains(refusal("Softmax", {doubles({1})}, {{"axis", "last"}}), "'axis' is of another kind"));
  CHECK(contains(refusal("Abs", {}), "one more is needed"));
  CHECK(
      contains(refusal("Range", {longs({0}).squeeze(), longs({INT64_MAX}).squeeze(), longs({1}).squeeze()}), "counts"));
}

TEST_CASE("what an operator does not read might mean something, and is refused") {
  const auto refusal = [](const char* op, std::vector<at::Tensor> inputs, std::vector<OnnxAttribute> attributes = {}) {
    return message_of<InputError>([&] { computed(op, std::move(inputs), std::move(attributes)); });
  };
  CHECK(contains(refusal("CumSum", {longs({1}), longs({0})}, {{"reverse", int64_t{1}}}), "an attribute 'reverse'"));
  CHECK(contains(refusal("Max", {doubles({1}), doubles({2}), doubles({3})}), "an input 2"));
}

TEST_CASE("a graph is refused with everything that is wrong with it") {
  CHECK(contains(Written({{"Swish", "strange", {"x"}, {"y"}, {}}}).refused(), "node 'strange' is 'Swish'"));
  CHECK(contains(Written({{"Abs", "node", {"z"}, {"y"}, {}}}).refused(), "reads 'z', which nothing before it gives"));
  CHECK(contains(Written({{"Abs", "node", {"x"}, {"z"}, {}}}).refused(), "who asks reads 'y'"));
  CHECK(contains(Written({{"Abs", "a", {"x"}, {"y"}, {}}, {"Abs", "b", {"x"}, {"y"}, {}}}).refused(),
                 "'y' is given twice"));
  CHECK(contains(Written({{"Abs", "a", {"x"}, {"y", "z"}, {}}}).refused(), "has 2 outputs"));
  CHECK(
      contains(Written({{"Equal", "a", {"x", "x"}, {"y"}, {}}}).refused(), "'y' is of type BOOL, and promised as F32"));
  CHECK(contains(Written({{"Where", "a", {"x"}, {"y"}, {}}}).refused(), "node 'a' has 1 inputs"));
  CHECK(contains(Written({{"MatMul", "a", {"x", "x"}, {"y"}, {}}}).refused(at::ones({2, 3})), "node 'a' (MatMul)"));
  Written mixed({{"Add", "a", {"x", "whole"}, {"y"}, {}}});
  mixed.model.tensors = {onnx_tensor("whole", at::tensor({3}, at::kLong))};
  CHECK(contains(mixed.refused(), "the inputs of node 'a' are of several types: F32 and I64"));
}

TEST_CASE("numbers beyond a type are found, whatever they are computed in") {
  for (const auto& [value, size] : {std::pair(250.0, 62500.0), std::pair(260.0, 67600.0)}) {
    const std::vector<NamedTensors> request = {{{"x", at::tensor({1.0, -value}, at::kDouble)}}};
    const OnnxRun run =
        Written({{"Mul", "node", {"x", "x"}, {"y"}, {}}}, OnnxType::f16).program().run(request, at::kDouble);
    CHECK(run.answers.front().at("y")[1].item<double>() == size);
    CHECK(run.peak.value == "y");
    CHECK(run.peak.size == size);
    CHECK((run.peak.share() > 1) == (size > 65504));
    const OnnxRun wide = Written({{"Mul", "node", {"x", "x"}, {"y"}, {}}}).program().run(request, at::kDouble);
    CHECK(wide.peak.value.empty());
  }
}

TEST_CASE("a model's graph says what the model says, and refuses where float16 ends") {
  const Architecture a = decoder();
  test::Tensors tensors = test::generic_tensors(a);
  const std::vector<Inputs> inputs = {test::random_inputs(a, 2, 9)};
  const auto answers_of = [&](const test::Tensors& weights, Dtype dtype) {
    const TemporaryFolder folder;
    write_onnx(folder.path(), {a, test::as_weights(weights)}, dtype);
    return run_onnx(folder.path() / onnx_name, a, inputs);
  };
  const at::Tensor found = answers_of(tensors, Dtype::f32).given.rows;
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.to(at::kFloat).to(at::kDouble);
  }
  const at::Tensor wanted = test::double_model(a, tensors).forward(inputs.front()).logits.flatten(0, 1);
  const double gap = (found - wanted).abs().max().item<double>();
  CHECK(gap < 1e-6 * wanted.abs().max().item<double>());  // cosines, and constants such as the epsilon, are float32
  CHECK(gap > 0);
  for (const char* name : {"blocks.0.mlp.up.weight", "blocks.0.mlp.gate.weight"}) {
    tensors.at(name).mul_(3000);
  }
  CHECK(answers_of(tensors, Dtype::f32).notes.empty());
  const std::string refusal = message_of<InputError>([&] { answers_of(tensors, Dtype::f16); });
  INFO(refusal);
  CHECK(contains(refusal, "'blocks.0.mlp/Mul_2'), beyond what float16 can hold: export it in float32"));
  tensors.at("blocks.0.mlp.up.weight").mul_(100);
  CHECK(contains(message_of<InputError>([&] { answers_of(tensors, Dtype::f16); }),
                 "tensor 'blocks.0.mlp.up.weight' has numbers up to"));
}
