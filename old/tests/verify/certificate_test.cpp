// Certificates of stored models, native and of a family, and those that do not fit their files.
#include "pare/verify/certificate.h"

#include <doctest/doctest.h>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/sha256.h"
#include "tests/checkpoint/family_samples.h"
#include "tests/verify/helpers.h"

using namespace pare;
using namespace pare::test;
using nlohmann::ordered_json;

namespace {

const char* gemma_tensors = R"(
model.embed_tokens.weight 11,16
model.layers.0.input_layernorm.weight 16
model.layers.0.mlp.down_proj.weight 16,20
model.layers.0.mlp.gate_proj.weight 20,16
model.layers.0.mlp.up_proj.weight 20,16
model.layers.0.post_attention_layernorm.weight 16
model.layers.0.self_attn.k_proj.weight 6,16
model.layers.0.self_attn.o_proj.weight 16,12
model.layers.0.self_attn.q_proj.weight 12,16
model.layers.0.self_attn.v_proj.weight 6,16
model.norm.weight 16
)";

// A folder as Hugging Face writes it, in shards, and its native copy in one file.
struct Stored {
  TemporaryFolder folder;
  std::filesystem::path family = folder.path() / "family", native = folder.path() / "native";

  Stored() {
    const json config = {{"model_type", "gemma"},    {"hidden_size", 16},
                         {"intermediate_size", 20},  {"head_dim", 6},
                         {"num_attention_heads", 2}, {"num_key_value_heads", 1},
                         {"num_hidden_layers", 1},   {"vocab_size", 11},
                         {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 16}};
    at::manual_seed(5);
    std::filesystem::create_directory(family);
    write_text_file(family / "config.json", config.dump());
    write_weights(family, random_weights(gemma_tensors), 2000);
    const ModelFolder opened = open_model(family);
    write_native_model(native, opened.model, false, 1 << 30);
  }

  ordered_json certificate() const {
    const ModelFolder reference = open_model(family), candidate = open_model(native);
    Verification v = verify_drawn(reference, candidate);
    v.predicted_error = 1e-10;
    return certificate_json(describe_files(reference), describe_files(candidate),
                            ordered_json::array({{{"id", "test"}}}), {"random", 3}, v);
  }
};

}  // namespace

TEST_CASE("a family's folder and its native copy are equivalent") {
  const Stored stored;
  const ModelFolder reference = open_model(stored.family), candidate = open_model(stored.native);
  CHECK(reference.family == "gemma");
  for (const auto& [first, second] : {std::pair(reference, candidate), std::pair(candidate, reference)}) {
    const Verification v = verify_drawn(first, second);
    CHECK(v.verdict == Verdict::equivalent);
    CHECK(v.metrics.max_relative_logit_error == 0);
    CHECK(v.floor_dtype == Dtype::f32);
  }
}

TEST_CASE("a certificate has every key, in order, and the hash of every file") {
  const Stored stored;
  const ordered_json document = stored.certificate();
  std::vector<std::string> keys;
  for (const auto& [key, value] : document.items()) {
    keys.push_back(key);
  }
  CHECK(keys == std::vector<std::string>{"tool", "reference", "candidate", "passes", "form", "companions", "formulas",
                                         "predicted_error", "inputs", "compute_dtype", "metrics", "noise_floor",
                                         "first_divergence", "self_test", "verdict"});
  CHECK(document["verdict"] == "equivalent");
  CHECK(document["first_divergence"].is_null());
  CHECK(document["inputs"] == ordered_json({{"kind", "random"}, {"sequences", 8}, {"tokens", 128}, {"seed", 3}}));
  CHECK(document["reference"]["parameters"] == 11 * 16 + 3 * 16 + 3 * 320 + 2 * 192 + 2 * 96);
  CHECK(document["candidate"]["files"].size() == 2);
  const ordered_json& files = document["reference"]["files"];
  size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(stored.family)) {
    CHECK(files[entry.path().filename().string()] == sha256_of_file(entry.path()));
    ++entries;
  }
  CHECK(files.size() == entries);
  CHECK(entries > 3);  // shards and their index
}

TEST_CASE("a certificate is believed only where its files are as they were") {
  const Stored stored;
  CHECK_FALSE(read_certificate(stored.native));
  write_text_file(stored.native / "certificate.json", stored.certificate().dump(2));
  const std::optional<nlohmann::json> read = read_certificate(stored.native);
  REQUIRE(read);
  const ordered_json candidate = describe_files(open_model(stored.native));
  const ordered_json reference = describe_files(open_model(stored.family));
  CHECK_FALSE(candidate["files"].contains("certificate.json"));
  check_certified(*read, candidate);
  const Origin origin = certified_origin(*read, reference);
  CHECK(origin.predicted_error == 1e-10);
  CHECK(origin.passes[0]["id"] == "test");
  CHECK(certified_origin(*read, candidate).predicted_error == 0);  // made against another reference

  ordered_json tampered = candidate;
  tampered["files"]["model.safetensors"] = std::string(64, '0');
  const std::string message = message_of<InputError>([&] { check_certified(*read, tampered); });
  CHECK(contains(message, "'model.safetensors'"));
  CHECK(contains(message, std::string(64, '0')));
  CHECK(contains(message, candidate["files"]["model.safetensors"].get<std::string>()));
  CHECK(contains(message, "changed after it was certified"));
  ordered_json more = candidate, less = candidate;
  more["files"]["other.safetensors"] = std::string(64, '1');
  less["files"].erase("config.json");
  CHECK(
      contains(message_of<InputError>([&] { check_certified(*read, more); }), "'other.safetensors' was not certified"));
  CHECK(contains(message_of<InputError>([&] { check_certified(*read, less); }), "'config.json' was certified but"));
}

TEST_CASE("what is no certificate is refused by name") {
  const TemporaryFolder folder;
  for (const char* text : {"{", "[]", "null", "{}", R"({"reference": {"files": []}})",
                           R"({"reference": {"files": {}}, "candidate": {"files": {"config.json": 3}}})"}) {
    CAPTURE(text);
    folder.write("certificate.json", text);
    CHECK(contains(message_of<InputError>([&] { read_certificate(folder.path()); }), "certificate.json"));
  }
  const ordered_json described = {{"path", "x"}, {"files", ordered_json::object()}};
  for (const char* text :
       {R"({"reference": {"files": {}}, "candidate": {"files": {}}, "predicted_error": -1, "passes": []})",
        R"({"reference": {"files": {}}, "candidate": {"files": {}}, "predicted_error": 0})",
        R"({"reference": {"files": {}}, "candidate": {"files": {}}, "predicted_error": 0, "passes": 7})"}) {
    CAPTURE(text);
    CHECK(contains(message_of<InputError>([&] { certified_origin(nlohmann::json::parse(text), described); }),
                   "predicted_error"));
  }
}
