// Certificates of stored models, native and of a family, and those that do not fit their files.
#include "pare/verify/certificate.h"

#include <doctest/doctest.h>

#include <chrono>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/sha256.h"
#include "pare/verify/questions.h"
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
struct StoredPair {
  TemporaryFolder folder;
  std::filesystem::path family = folder.path() / "family", native = folder.path() / "native";

  StoredPair() {
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
    return certificate_json(describe_files(reference), describe_files(candidate),
                            ordered_json::array({{{"id", "test"}}}), "random",
                            verify_drawn(reference, candidate, {.seed = 3}));
  }
};

}  // namespace

TEST_CASE("a family's folder and its native copy are identical") {
  const StoredPair stored;
  const ModelFolder reference = open_model(stored.family), candidate = open_model(stored.native);
  CHECK(reference.family == "gemma");
  for (const auto& [first, second] : {std::pair(reference, candidate), std::pair(candidate, reference)}) {
    const Verification v = verify_drawn(first, second);
    CHECK(v.verdict == Verdict::identical);
    CHECK(v.metrics.max_relative_logit_error == 0);
    CHECK(v.floor_dtype == Dtype::f64);  // nothing was rounded
  }
}

TEST_CASE("a certificate has every key, in order, and the hash of every file") {
  const StoredPair stored;
  const ordered_json document = stored.certificate();
  std::vector<std::string> keys;
  for (const auto& [key, value] : document.items()) {
    keys.push_back(key);
  }
  CHECK(keys ==
        std::vector<std::string>{"tool",        "reference",     "candidate",     "passes",           "claim",
                                 "form",        "companions",    "links",         "formulas",         "predicted_error",
                                 "approximate", "inputs",        "compute_dtype", "metrics",          "noise_floor",
                                 "excess",      "allowed_error", "allowed_for",   "first_divergence", "differences",
                                 "proof",       "coverage",      "self_test",     "quantisation",     "apart",
                                 "near_misses", "statistics",    "tensor_costs",  "verdict",          "warnings"});
  CHECK(document["verdict"] == "identical");
  CHECK(document["first_divergence"].is_null());
  CHECK(document["claim"].is_null());
  const uint64_t drawn = drawn_seed(open_model(stored.family), open_model(stored.native), 3);
  CHECK(document["inputs"]["kind"] == "random");
  CHECK(document["inputs"]["seed"] == 3);
  CHECK(document["inputs"]["drawn_seed"] == fmt::format("{:016x}", drawn));
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
  const StoredPair stored;
  CHECK_FALSE(read_certificate(stored.native));
  write_text_file(stored.native / "certificate.json", stored.certificate().dump(2));
  const std::optional<nlohmann::json> read = read_certificate(stored.native);
  REQUIRE(read);
  const ordered_json candidate = describe_files(open_model(stored.native));
  const ordered_json reference = describe_files(open_model(stored.family));
  CHECK_FALSE(candidate["files"].contains("certificate.json"));
  check_certified(*read, candidate);
  const Claim claim = read_claim(*read, reference);
  CHECK(claim.passes == std::vector<std::string>{"test"});
  CHECK(claim.reference_matches);
  CHECK_FALSE(read_claim(*read, candidate).reference_matches);  // it was made against another reference

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
  const std::string long_id(81, 'a'), newline = "fold\nverdict: identical";
  for (const ordered_json& passes :
       {ordered_json(nullptr), ordered_json(7), ordered_json::array({7}), ordered_json::array({{{"id", 7}}}),
        ordered_json::array({ordered_json::object()}), ordered_json::array({{{"id", ""}}}),
        ordered_json::array({{{"id", long_id}}}), ordered_json::array({{{"id", newline}}}),
        ordered_json(std::vector<ordered_json>(1001, {{"id", "fold"}}))}) {
    CAPTURE(passes.dump().substr(0, 80));
    nlohmann::json certificate = {{"reference", {{"files", nlohmann::json::object()}}},
                                  {"candidate", {{"files", nlohmann::json::object()}}}};
    if (!passes.is_null()) {
      certificate["passes"] = passes;
    }
    CHECK(contains(message_of<InputError>([&] { read_claim(certificate, described); }), "not a certificate of pare?"));
  }
}

TEST_CASE("what a certificate claims decides nothing, and is told as a claim") {
  const StoredPair stored;
  ordered_json forged = stored.certificate();
  forged["predicted_error"] = 1e300;
  forged["passes"] = ordered_json::array({{{"id", "fold_norm_gain"}, {"predicted_error", 1e300}}});
  const ModelFolder reference = open_model(stored.family), candidate = open_model(stored.native);
  const Claim claim = read_claim(forged, describe_files(reference));
  const ordered_json document =
      certificate_json(describe_files(reference), describe_files(candidate), ordered_json::array(), "random",
                       verify_drawn(reference, candidate), claim);
  CHECK(document["claim"] == ordered_json({{"passes", {"fold_norm_gain"}}, {"reference_matches", true}}));
  CHECK(document["passes"].empty());
  CHECK(document["predicted_error"].is_null());
}

TEST_CASE("the drawn seed depends on every byte of both models and on the seed, and on no path") {
  const StoredPair stored;
  const auto drawn = [&](uint64_t seed) {
    return drawn_seed(open_model(stored.family), open_model(stored.native), seed);
  };
  const uint64_t first = drawn(0);
  CHECK(drawn(0) == first);
  CHECK(drawn(1) != first);
  CHECK(drawn_seed(open_model(stored.native), open_model(stored.family), 0) != first);
  CHECK(drawn_seed(open_model(stored.family), open_model(stored.family), 0) != first);
  const std::filesystem::path elsewhere = stored.folder.path() / "elsewhere";
  std::filesystem::copy(stored.native, elsewhere);
  CHECK(drawn_seed(open_model(stored.family), open_model(elsewhere), 0) == first);
  std::ofstream(elsewhere / "config.json", std::ios::app) << "\n";  // the same Architecture
  CHECK(drawn_seed(open_model(stored.family), open_model(elsewhere), 0) != first);
  // By the recipe of docs/formats.md, from what the certificate has: hashlib gives these for "--\n--\n" and a number.
  const ModelFolder never_stored;
  CHECK(drawn_seed(never_stored, never_stored, 0) == 13084926867195920252u);
  CHECK(drawn_seed(never_stored, never_stored, UINT64_MAX) == 12658682028246503664u);
}

TEST_CASE("a certificate names the bytes that were read, whatever has their names by now") {
  const StoredPair stored;
  for (const std::string name : {"config.json", "model.safetensors"}) {
    CAPTURE(name);
    const std::filesystem::path link = stored.folder.path() / ("by-link-" + name);
    std::filesystem::copy(stored.native, link);
    std::filesystem::rename(link / name, link / "first");
    std::filesystem::copy(link / "first", link / "second");
    std::ofstream(link / "second", std::ios::app) << "\n";
    std::filesystem::create_symlink("first", link / name);
    const ModelFolder opened = open_model(link);
    std::filesystem::remove(link / name);
    std::filesystem::create_symlink("second", link / name);
    const ordered_json files = describe_files(opened)["files"];
    CHECK(files[name] == sha256_of_file(link / "first"));
    CHECK(files[name] != sha256_of_file(link / "second"));
  }
}

TEST_CASE("a file that is written to after it was opened is never certified") {
  const StoredPair stored;
  const std::filesystem::path weights = stored.native / "model.safetensors";
  const auto change_last_byte = [&weights] {
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  };
  for (const bool hashed_before : {false, true}) {
    CAPTURE(hashed_before);
    // Long ago, so that the clock's tick does not decide.
    std::filesystem::last_write_time(weights, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    const ModelFolder opened = open_model(stored.native), copy = opened;
    if (hashed_before) {
      describe_files(opened);
    }
    change_last_byte();
    for (const ModelFolder& model : {opened, copy}) {
      const std::string message = message_of<InputError>([&] { describe_files(model); });
      CHECK(contains(message, "model.safetensors' changed while it was read"));
    }
    CHECK_NOTHROW(describe_files(open_model(stored.native)));
  }
}
