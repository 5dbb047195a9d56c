#include "pare/checkpoint/weights.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <limits>

#include "pare/checkpoint/safetensors.h"
#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;
namespace fs = std::filesystem;

namespace {

Weight weight_of(const at::Tensor& tensor) {
  return Weight::leaf("w", dtype_of(tensor.scalar_type()), tensor.sizes().vec(), [tensor] { return tensor; });
}

constexpr uint64_t no_limit = UINT64_MAX;

// Writes the bytes of a tensor with no check at all, as a foreign program would.
void write_raw(const fs::path& path, const at::Tensor& tensor, Dtype dtype) {
  SafetensorsWriter writer(path, {{"w", {dtype, tensor.sizes().vec()}}}, {});
  writer.write("w", {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  writer.finish();
}

}  // namespace

TEST_CASE("weights of every type are written and loaded bit by bit") {
  TemporaryFolder folder;
  at::Tensor bits = at::randint(-1000, 1000, {7, 5}, at::kLong);
  Weights weights;
  for (Dtype dtype : {Dtype::boolean, Dtype::u8, Dtype::i8, Dtype::u16, Dtype::i16, Dtype::u32, Dtype::i32, Dtype::u64,
                      Dtype::i64, Dtype::f16, Dtype::bf16, Dtype::f32, Dtype::f64, Dtype::c64}) {
    weights[std::string(dtype_name(dtype))] = weight_of(bits.to(scalar_type(dtype)));
  }
  weights["scalar"] = weight_of(at::scalar_tensor(2.5, at::kFloat));
  weights["empty"] = weight_of(at::empty({3, 0}, at::kFloat));
  weights["transposed"] = weight_of(bits.to(at::kFloat).t());
  write_weights(folder.path(), weights, no_limit);
  Weights read = open_weights(folder.path());
  REQUIRE(read.size() == weights.size());
  for (const auto& [name, weight] : weights) {
    CAPTURE(name);
    at::Tensor expected = weight.load(), found = read[name].load();
    CHECK(read[name].dtype() == weight.dtype());
    CHECK(read[name].shape() == weight.shape());
    CHECK(at::equal(found.contiguous().flatten().view(at::kByte), expected.contiguous().flatten().view(at::kByte)));
  }
}

TEST_CASE("every load gives a fresh tensor, also after the file object is gone") {
  TemporaryFolder folder;
  write_weights(folder.path(), {{"a", weight_of(at::ones({4}))}}, no_limit);
  Weights weights = open_weights(folder.path());
  weights["a"].load().zero_();
  CHECK(at::equal(weights["a"].load(), at::ones({4})));
}

TEST_CASE("a tensor that is not finite is named when it is loaded, with the first bad element") {
  TemporaryFolder folder;
  double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat}) {
    for (double bad : {infinity, -infinity, nan}) {
      // Large enough for several pieces, with the bad element in a later one.
      at::Tensor tensor = at::zeros({3, 200'001}, type);
      int64_t place = 590'003;
      tensor.flatten()[place] = bad;
      fs::path path = folder.path() / fmt::format("{}{}.safetensors", at::toString(type), bad);
      write_raw(path, tensor, dtype_of(type));
      Weights weights = weights_of(SafetensorsFile(path));
      std::string message = message_of<InputError>([&] { weights["w"].load(); });
      CAPTURE(message);
      CHECK(contains(message, fmt::format("tensor 'w' of '{}' is not finite", path.filename().string())));
      std::string shown = type == at::kComplexFloat ? "element 1,180,006 is" : "element 590,003 is";
      CHECK(contains(message, fmt::format("{} {}", shown, bad)));
      fs::remove(path);
    }
  }
}

TEST_CASE("the largest and smallest floats are finite") {
  TemporaryFolder folder;
  Weights weights;
  for (at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    double largest = type == at::kHalf       ? 65504
                     : type == at::kBFloat16 ? 3.3895313892515355e38
                     : type == at::kFloat    ? std::numeric_limits<float>::max()
                                             : std::numeric_limits<double>::max();
    at::Tensor extremes = at::tensor({largest, -largest, 1e-300, -0.0}, at::kDouble).to(type);
    REQUIRE(at::isfinite(extremes).all().item<bool>());
    weights[at::toString(type)] = weight_of(extremes);
  }
  write_weights(folder.path(), weights, no_limit);
  for (const auto& [name, weight] : open_weights(folder.path())) {
    CHECK_NOTHROW(weight.load());
  }
}

TEST_CASE("integers of any bits are no floats") {
  TemporaryFolder folder;
  write_weights(folder.path(), {{"a", weight_of(at::full({9}, -1, at::kInt))}}, no_limit);
  CHECK(at::equal(open_weights(folder.path())["a"].load(), at::full({9}, -1, at::kInt)));
}

TEST_CASE("types we cannot compute with can be listed, and are named when they are loaded") {
  TemporaryFolder folder;
  write_raw(folder.path() / "model.safetensors", at::zeros({4}, at::kByte), Dtype::f8_e4m3);
  Weights weights = open_weights(folder.path());
  CHECK(weights["w"].dtype() == Dtype::f8_e4m3);
  std::string message = message_of<InputError>([&] { weights["w"].load(); });
  CHECK(contains(message, "tensor 'w' of 'model.safetensors': F8_E4M3 is a quantised type"));
}

TEST_CASE("a tensor whose file shrank is named") {
  TemporaryFolder folder;
  write_weights(folder.path(), {{"the.weight", weight_of(at::ones({1'000'000}))}}, no_limit);
  Weights weights = open_weights(folder.path());
  fs::resize_file(folder.path() / "model.safetensors", 3'000'000);
  CHECK(contains(message_of<InputError>([&] { weights["the.weight"].load(); }), "tensor 'the.weight' ends at byte"));
}

TEST_CASE("the same weights give the same bytes, also after a round trip") {
  TemporaryFolder one, two;
  Weights weights = {{"b", weight_of(at::randn({30, 7}))}, {"a", weight_of(at::randn({5}).to(at::kBFloat16))}};
  write_weights(one.path(), weights, no_limit);
  write_weights(two.path(), open_weights(one.path()), no_limit);
  std::string bytes = bytes_of_file(one.path() / "model.safetensors");
  CHECK(bytes.size() > 850);
  CHECK(bytes == bytes_of_file(two.path() / "model.safetensors"));
}

TEST_CASE("shards are filled in order, named as usual, and read back") {
  TemporaryFolder folder;
  Weights weights;
  for (const char* name : {"a", "b", "c", "e"}) {
    weights[name] = weight_of(at::ones({10}));
  }
  weights["d.large"] = weight_of(at::ones({100}));
  write_weights(folder.path(), weights, 80);
  CHECK(folder.entries() == 5);
  auto names = [&](int shard) {
    SafetensorsFile file(folder.path() / fmt::format("model-{:05}-of-00004.safetensors", shard));
    std::string list;
    for (const auto& [name, tensor] : file.tensors()) {
      list += name + " ";
    }
    return list;
  };
  CHECK(names(1) == "a b ");
  CHECK(names(2) == "c ");
  CHECK(names(3) == "d.large ");
  CHECK(names(4) == "e ");
  CHECK(contains(bytes_of_file(folder.path() / "model.safetensors.index.json"), "\"total_size\": 560"));
  CHECK(open_weights(folder.path()).size() == 5);
}

TEST_CASE("weights that are not finite are not written") {
  TemporaryFolder folder;
  at::Tensor overflown = at::full({3}, 1e30).to(at::kHalf);
  std::string message = message_of<InputError>([&] {
    write_weights(folder.path(), {{"w", weight_of(overflown)}}, no_limit);
  });
  CHECK(contains(message, "tensor 'w' of 'model.safetensors' is not finite: element 0 is inf"));
}

TEST_CASE("a weight that does not give what it promised is a bug of ours") {
  TemporaryFolder folder;
  const Weight wrong = Weight::leaf("w", Dtype::f32, {3}, [] { return at::ones({4}); });
  CHECK_THROWS_AS(write_weights(folder.path(), {{"w", wrong}}, no_limit), InternalError);
}
