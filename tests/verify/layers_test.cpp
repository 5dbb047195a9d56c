// How far two models are apart after each layer, against plain tensors that the executor recorded of both.

#include "pare/verify/side_by_side.h"

#include <doctest/doctest.h>

#include <cmath>

#include "pare/model/executor.h"
#include "tests/verify/helpers.h"

namespace pare::test {

namespace {

std::map<std::string, at::Tensor> recorded(const Model& model, const Inputs& inputs) {
  Taps taps;
  taps.record("residual.*");
  taps.record("blocks.*.attention.probabilities");
  Executor(model, at::kDouble).forward(inputs, nullptr, &taps, Logits::none);
  return taps.recorded();
}

}  // namespace

TEST_CASE("layer gaps are those of the recorded stream and attention, sequence by sequence") {
  const Architecture a = rich_architecture();
  const Tensors tensors = generic_tensors(a);
  Tensors moved = tensors;
  moved.at("blocks.1.attention.query.weight") = moved.at("blocks.1.attention.query.weight").clone();
  moved.at("blocks.1.attention.query.weight")[0][3] += 0.5;
  const ModelFolder one = model_of(a, tensors), two = model_of(a, moved);
  const Arithmetic exact{.dtype = at::kDouble};
  const std::vector<Inputs> sequences = {random_inputs(a, 1, 9), random_inputs(a, 1, 5)};
  const LayerGaps found = layer_gaps({one.model, exact}, {two.model, exact}, sequences);
  CHECK(found.note.empty());
  REQUIRE(found.layers.size() == 2);
  std::vector<double> heads(2, 0);
  for (size_t s = 0; s < sequences.size(); ++s) {
    const auto first = recorded(one.model, sequences[s]), second = recorded(two.model, sequences[s]);
    for (size_t layer = 0; layer < 2; ++layer) {
      const std::string stream = "residual." + std::to_string(layer + 1);
      const double gap = ((first.at(stream) - second.at(stream)).norm() / first.at(stream).norm()).item<double>();
      CHECK(found.layers[layer].residual.at(s) == doctest::Approx(gap).epsilon(1e-12));
      const std::string attention = "blocks." + std::to_string(layer) + ".attention.probabilities";
      const at::Tensor apart = (first.at(attention) - second.at(attention)).abs()[0];
      CHECK(found.layers[layer].attention.at(s) == doctest::Approx(apart.max().item<double>()).epsilon(1e-12));
      for (int64_t h = 0; h < 2 && layer == 1; ++h) {
        double& most = heads[h];
        most = std::max(most, apart[h].max().item<double>());
      }
    }
  }
  // The first layer is the same in both; in the second only the head whose row was moved.
  CHECK(found.layers[0].residual == std::vector<double>{0, 0});
  CHECK(found.layers[0].heads == std::vector<double>{0, 0});
  CHECK(found.layers[1].heads[0] == doctest::Approx(heads[0]).epsilon(1e-12));
  CHECK(found.layers[1].heads[0] > 1e-3);
  CHECK(found.layers[1].heads[1] == 0);
  CHECK(found.layers[1].residual[0] > 1e-4);
}

TEST_CASE("layer gaps: what cannot be compared is no number, and is said") {
  const auto with = [](const std::string& width, int heads, int repeat) {
    const Architecture a = parse(fmt::format(
        R"({{"width": {}, "vocab": 23, "context": 32, "blocks": [{{"repeat": {}, "attention": {{"heads": {}, "head_width": 6}}}}]}})",
        width, repeat, heads));
    return model_of(a, generic_tensors(a));
  };
  const ModelFolder plain = with("12", 2, 2), wide = with("18", 2, 2), many = with("12", 3, 2), deep = with("12", 2, 3);
  const Arithmetic exact{.dtype = at::kDouble};
  const std::vector<Inputs> sequences = {random_inputs(plain.model.architecture, 1, 7)};
  const auto gaps = [&](const ModelFolder& other) {
    return layer_gaps({plain.model, exact}, {other.model, exact}, sequences);
  };
  const LayerGaps of_width = gaps(wide), of_heads = gaps(many), of_depth = gaps(deep);
  CHECK(std::isnan(of_width.layers[0].residual[0]));
  CHECK(std::isfinite(of_width.layers[0].attention[0]));
  CHECK(of_width.note == "the stream is 12 wide in the reference, 18 in the other");
  CHECK(std::isnan(of_heads.layers[1].heads[0]));
  CHECK(of_heads.layers[1].heads.size() == 2);
  CHECK(of_heads.note == "blocks.1.attention.probabilities has 2 heads in the reference, 3 in the other");
  CHECK(of_depth.layers.size() == 2);
  CHECK(of_depth.note == "the reference has 2 layers, the other 3: only the first 2 are compared");
}

}  // namespace pare::test
