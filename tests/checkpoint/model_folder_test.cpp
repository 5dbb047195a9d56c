#include "pare/checkpoint/model_folder.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr uint64_t no_limit = UINT64_MAX;

Architecture small() {
  return architecture_from_json(json::parse(R"({"width": 8, "vocab": 11, "context": 6, "blocks": [{"repeat": 2,
        "attention": {"heads": 2, "head_width": 4, "norm": {"kind": "rms"}, "rope": {}},
        "mlp": {"width": 12, "activation": "silu", "gated": true}}], "head": {"tied": false}})"),
                                "small");
}

Weights random_weights(const Architecture& architecture) {
  Weights weights;
  for (const TensorSpec& spec : tensor_table(architecture)) {
    const at::Tensor data = at::randn(spec.shape, at::kFloat);
    weights[spec.name] = Weight::leaf(spec.name, Dtype::f32, spec.shape, [data] { return data; });
  }
  return weights;
}

// A good native model, to be spoiled.
struct Folder {
  TemporaryFolder temporary;
  fs::path path = temporary.path() / "model";
  Weights weights = random_weights(small());
  Folder() { write_native_model(path, {small(), weights}, false, no_limit); }
  std::string refusal() {
    return message_of<InputError>([&] { open_model(path); });
  }
  void set(const std::string& key, const json& value) {
    json config = json::parse(bytes_of_file(path / "config.json"));
    config[key] = value;
    std::ofstream(path / "config.json") << config.dump();
  }
};

}  // namespace

TEST_CASE("a native model is written and opened again, single or sharded") {
  for (const uint64_t shard_bytes : {no_limit, uint64_t{400}}) {
    TemporaryFolder temporary;
    const fs::path path = temporary.path() / "model";
    const Weights weights = random_weights(small());
    write_native_model(path, {small(), weights}, false, shard_bytes);
    CHECK(fs::exists(path / "model.safetensors") == (shard_bytes == no_limit));
    const ModelFolder model = open_model(path);
    CHECK(model.family == "pare");
    CHECK(model.model.architecture == small());
    CHECK(model.dtype == Dtype::f32);
    REQUIRE(model.model.weights.size() == weights.size());
    for (const auto& [name, weight] : weights) {
      CHECK(at::equal(model.model.weights.at(name).load(), weight.load()));
    }
    const json config = json::parse(bytes_of_file(path / "config.json"));
    CHECK(config["model_type"] == "pare");
    CHECK(config["pare_format"] == 1);
    CHECK(message_of<InputError>([&] { write_native_model(path, {small(), weights}, false, no_limit); }) != "");
    write_native_model(path, {small(), weights}, true, no_limit);
  }
}

TEST_CASE("an output that fails leaves nothing behind") {
  TemporaryFolder temporary;
  Weights weights = random_weights(small());
  Weight& up = weights["blocks.1.mlp.up.weight"];
  up = Weight::leaf("up", up.dtype(), up.shape(), []() -> at::Tensor { throw IoError("the disk is gone"); });
  CHECK_THROWS_AS(write_native_model(temporary.path() / "model", {small(), weights}, false, no_limit), IoError);
  CHECK(temporary.entries() == 0);
}

TEST_CASE("folders that are no models say why") {
  TemporaryFolder temporary;
  const auto refusal = [](const fs::path& path) { return message_of<InputError>([&] { open_model(path); }); };
  CHECK(contains(refusal(temporary.path() / "none"), "none' is not there"));
  CHECK(contains(refusal(temporary.write("file", "text")), "file' is not a folder"));
  CHECK(contains(refusal(temporary.path()), "config.json"));
  temporary.write("adapter_config.json", "{}");
  CHECK(contains(refusal(temporary.path()), "holds an adapter"));
}

TEST_CASE("an adapter beside a model is not left out in silence") {
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"}) {
    Folder folder;
    std::ofstream(folder.path / name) << "{}";
    CHECK(contains(folder.refusal(), std::string("holds an adapter, '") + name + "'"));
    CHECK(contains(folder.refusal(), "give that with --adapter"));
  }
}

TEST_CASE("a model with unknown keys opens where they are ignored, and says which they are") {
  Folder folder;
  CHECK(open_model(folder.path, UnknownKeys::ignore).ignored_keys.empty());
  folder.set("mystery", 1);
  CHECK(contains(folder.refusal(), "a key that pare does not know for this family: 'mystery'"));
  const ModelFolder opened = open_model(folder.path, UnknownKeys::ignore);
  CHECK(opened.ignored_keys == std::vector<std::string>{"mystery"});
  REQUIRE(opened.warnings.size() == 1);
  CHECK(contains(opened.warnings[0], "ignored a key that pare does not know for this family: 'mystery'"));
}

TEST_CASE("PyTorch's weights are left alone beside safetensors, and read without them") {
  Folder folder;
  std::ofstream(folder.path / "pytorch_model.bin") << "pickle";
  CHECK(folder.refusal() == "");
  fs::remove(folder.path / "model.safetensors");
  CHECK(contains(folder.refusal(), "pytorch_model.bin' is no file of torch.save"));
}

TEST_CASE("tensors of what pare does not have are named for what they are") {
  for (const auto& [name, reason] : {std::pair{"blocks.0.mlp.up.qweight", "quantised weights are not supported"},
                                     {"blocks.0.mlp.up.weight_scale_inv", "quantised weights are not supported"},
                                     {"blocks.0.mlp.up.weight.absmax", "quantised weights are not supported"},
                                     {"blocks.0.mlp.experts.3.up.weight", "mixtures of experts are not supported"},
                                     {"blocks.0.block_sparse_moe.gate.weight", "mixtures of experts are not supported"},
                                     {"blocks.0.attention.query.lora_A.default.weight", "adapters are not supported"},
                                     {"blocks.0.crossattention.self.key.weight", "cross attention is not supported"},
                                     {"blocks.0.encoder_attn.k_proj.weight", "cross attention is not supported"}}) {
    Folder folder;
    Weights weights = folder.weights;
    weights[name] = weights.begin()->second;
    fs::remove(folder.path / "model.safetensors");
    write_weights(folder.path, weights, no_limit);
    CAPTURE(folder.refusal());
    CHECK(contains(folder.refusal(), std::string("a tensor is unexpected: '") + name + "'; " + reason));
  }
}

TEST_CASE("another version of the format, and spoiled configurations, are refused") {
  Folder folder;
  CHECK(folder.refusal() == "");
  folder.set("pare_format", 2);
  folder.set("architecture", {{"shape", "of things to come"}});
  CHECK(contains(folder.refusal(), "pare_format is 2; expected 1"));
  folder.set("pare_format", nullptr);
  CHECK(contains(folder.refusal(), "pare_format is missing"));
  folder.set("pare_format", 1);
  folder.set("architecture", {{"width", 8}});
  CHECK(contains(folder.refusal(), "architecture"));
  folder.set("model_type", "gtp2");
  CHECK(contains(folder.refusal(), "'gtp2' is not supported (did you mean 'gpt2'?)"));
}

TEST_CASE("missing and unexpected tensors of a native model are listed") {
  TemporaryFolder temporary;
  Folder folder;
  json architecture = json::parse(architecture_text(small()));
  architecture["blocks"][0]["repeat"] = 3;
  architecture["blocks"][0]["mlp"]["gated"] = false;
  folder.set("architecture", architecture);
  const std::string message = folder.refusal();
  CHECK(contains(message, "'blocks.2.attention.query.weight'"));
  CHECK(contains(message, "missing"));
  CHECK(contains(message, "2 tensors are unexpected: 'blocks.0.mlp.gate.weight', 'blocks.1.mlp.gate.weight'"));
}

TEST_CASE("the real stories260K opens") {
  const char* chosen = std::getenv("PARE_SHARED");
  const fs::path path = fs::path(chosen ? chosen : "../shared") / "models" / "stories260K";
  if (!fs::exists(path)) {
    std::puts(("skipped stories260K opens: no " + path.string()).c_str());
    return;
  }
  const ModelFolder model = open_model(path);
  CHECK(model.family == "llama");
  CHECK(model.model.architecture.head.tied);
  CHECK(model.model.architecture.blocks.at(0).attention.kv_heads == 4);
  CHECK(model.model.weights.at("embed.token.weight").load().sizes() == at::IntArrayRef({512, 64}));
}
