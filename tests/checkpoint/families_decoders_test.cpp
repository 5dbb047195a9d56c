// Gemma 3, CodeGen, nanochat, HunYuan and Apertus: what their files have that those of other decoders do not.

#include <fmt/format.h>

#include <cmath>

#include "tests/checkpoint/family_samples.h"

using namespace pare;
using nlohmann::json;

namespace {

json small_text(const char* type, const char* kind) {
  return {
      {"model_type", type},       {"architectures", {kind}},      {"hidden_size", 16},      {"intermediate_size", 20},
      {"num_attention_heads", 2}, {"num_key_value_heads", 1},     {"num_hidden_layers", 2}, {"head_dim", 8},
      {"vocab_size", 11},         {"max_position_embeddings", 32}};
}

json small_gemma3() {
  json config = small_text("gemma3_text", "Gemma3TextModel");
  config["layer_types"] = {"sliding_attention", "full_attention"};
  config["sliding_window"] = 4;
  return config;
}

std::pair<Rope, Rope> ropes_of(const json& config) {
  const Architecture a = architecture_of(config);
  return {a.blocks.at(1).attention.rope.value(), a.blocks.at(0).attention.rope.value()};
}

std::string refused(json config, const std::string& key, const json& value) {
  config[key] = value;
  return message_of<InputError>([&] { architecture_of(config); });
}

const char* gemma3_tensors = R"(
language_model.model.embed_tokens.weight 11,16
language_model.model.layers.0.input_layernorm.weight 16
language_model.model.layers.0.mlp.down_proj.weight 16,20
language_model.model.layers.0.mlp.gate_proj.weight 20,16
language_model.model.layers.0.mlp.up_proj.weight 20,16
language_model.model.layers.0.post_attention_layernorm.weight 16
language_model.model.layers.0.post_feedforward_layernorm.weight 16
language_model.model.layers.0.pre_feedforward_layernorm.weight 16
language_model.model.layers.0.self_attn.k_norm.weight 8
language_model.model.layers.0.self_attn.k_proj.weight 8,16
language_model.model.layers.0.self_attn.o_proj.weight 16,16
language_model.model.layers.0.self_attn.q_norm.weight 8
language_model.model.layers.0.self_attn.q_proj.weight 16,16
language_model.model.layers.0.self_attn.v_proj.weight 8,16
language_model.model.norm.weight 16
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

at::Tensor counted(int64_t rows, int64_t columns) {
  return at::arange(rows * columns, at::kFloat).view({rows, columns});
}

}  // namespace

TEST_CASE("layers with a window turn in their own way") {
  const json plain = small_gemma3();
  CHECK(ropes_of(plain).first.theta == 1e6);
  CHECK(ropes_of(plain).second.theta == 1e4);

  json older = plain, newer = plain;
  older["rope_theta"] = 5000.0;
  older["rope_local_base_freq"] = 700.0;
  older["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  newer["rope_parameters"]["full_attention"] = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5000.0}};
  newer["rope_parameters"]["sliding_attention"] = {{"rope_type", "default"}, {"rope_theta", 700.0}};
  const auto [full, sliding] = ropes_of(older);
  CHECK(full.theta == 5000);
  CHECK(full.scaling->factor == 8);
  CHECK(sliding == Rope{.theta = 700, .width = 8});
  CHECK((ropes_of(newer) == ropes_of(older)));
  json both = newer;
  both.update(older);
  CHECK((ropes_of(both) == ropes_of(older)));
  for (const json& config : {plain, older, newer, both}) {
    CHECK(survives(config));
  }
  // What is there for one kind alone leaves the other as it usually is.
  newer["rope_parameters"].erase("sliding_attention");
  CHECK(ropes_of(newer).second.theta == 1e4);
  newer["rope_parameters"]["sliding_attention"] = {{"rope_type", "yarn"}, {"factor", 2.0}, {"truncate", false}};
  CHECK(ropes_of(newer).second.scaling->truncate);  // looked for beside the two, and not there
}

TEST_CASE("settings of two kinds of layers that Hugging Face would not read are refused") {
  const json config = small_gemma3();
  CHECK(contains(refused(config, "rope_parameters", {{"rope_type", "default"}}), "'rope_parameters.rope_type'"));
  CHECK(contains(refused(config, "rope_scaling", {{"type", "linear"}, {"factor", 8.0}}), "no rope_type"));
  CHECK(contains(refused(config, "rope_parameters", {{"full_attention", {{"twist", 1}}}}),
                 "'rope_parameters.full_attention.twist'"));
  CHECK(contains(refused(config, "rope_parameters", {{"sliding_attention", 3}}),
                 "rope_parameters.sliding_attention is 3; expected an object"));
  CHECK(contains(refused(config, "original_max_position_embeddings", 16), "'original_max_position_embeddings'"));
}

TEST_CASE("a window of EmbeddingGemma reaches half as far to each side") {
  json config = small_gemma3();
  config["use_bidirectional_attention"] = true;
  config["sliding_window"] = 7;
  const Architecture a = architecture_of(config);
  CHECK(a.blocks[0].attention.mask == Mask::full);
  CHECK(a.blocks[0].attention.window == 4);
  CHECK_FALSE(a.blocks[1].attention.window);
  CHECK(survives(config));
}

TEST_CASE("the text of Gemma 3 beside a tower") {
  json text = small_text("gemma3_text", "");
  text.erase("architectures");
  text["num_hidden_layers"] = 1;
  text["tie_word_embeddings"] = false;  // the file's own word counts
  text["initializer_range"] = 0.02;
  const json config = {{"model_type", "gemma3"},
                       {"architectures", {"Gemma3ForConditionalGeneration"}},
                       {"text_config", text},
                       {"vision_config", {{"hidden_size", 6}}}};
  json untied = config, bare = config, classes = config;
  untied["tie_word_embeddings"] = false;
  bare["architectures"] = {"Gemma3Model"};
  classes["architectures"] = {"Gemma3ForSequenceClassification"};
  classes["num_labels"] = 3;
  const std::string in_memory = replaced(gemma3_tensors, "language_model.model.", "model.language_model.");
  const std::string head = "language_model.lm_head.weight 11,16\n", score = "score.weight 3,16\n";
  for (const FamilySample& sample : {FamilySample{"tied", config, gemma3_tensors},
                                     {"a head of its own", untied, gemma3_tensors + head},
                                     {"without a head", bare, gemma3_tensors},
                                     {"a classifier", classes, gemma3_tensors + score},
                                     {"names as in memory", untied, in_memory + "lm_head.weight 11,16\n"}}) {
    check_round_trip(sample);
  }
  CHECK(architecture_of(config).head.tied);
  Weights stored = random_weights(with(gemma3_tensors, "multi_modal_projector.a.weight 6,16\nvision_tower.b 3\n"));
  CHECK(refusal(config, stored).empty());
  stored.merge(random_weights("image_tower.b 3\n"));
  CHECK(contains(refusal(config, stored), "image_tower.b"));
  CHECK(contains(refused(config, "text_config", nullptr), "text_config is null"));
  CHECK(contains(refused(config, "text_config", {{"twist", 1}}), "'text_config.twist'"));
  CHECK(contains(refused(config, "twist", 1), "'twist'"));
}

TEST_CASE("CodeGen stores queries, values and keys of each quarter of the heads together") {
  const json config = {{"model_type", "codegen"},
                       {"architectures", {"CodeGenModel"}},
                       {"n_embd", 16},
                       {"n_head", 4},
                       {"n_layer", 1},
                       {"n_positions", 8},
                       {"n_inner", 20},
                       {"rotary_dim", 2},
                       {"vocab_size", 11}};
  const std::string tensors = R"(
h.0.attn.out_proj.weight 16,16
h.0.attn.qkv_proj.weight 48,16
h.0.ln_1.bias 16
h.0.ln_1.weight 16
h.0.mlp.fc_in.bias 20
h.0.mlp.fc_in.weight 20,16
h.0.mlp.fc_out.bias 16
h.0.mlp.fc_out.weight 16,20
ln_f.bias 16
ln_f.weight 16
wte.weight 11,16
)";
  check_round_trip({"codegen", config, tensors});
  Weights stored = random_weights(tensors);
  const at::Tensor fused = counted(48, 16);
  stored["h.0.attn.qkv_proj.weight"] = weight_of(fused);
  const Opened model = open(config, stored);
  const auto rows = [&](int64_t first) {  // of each of the four parts
    return fused.view({4, 12, 16}).narrow(1, first, 4).reshape({16, 16});
  };
  CHECK(at::equal(model.weights.at("blocks.0.attention.query.weight").load(), rows(0)));
  CHECK(at::equal(model.weights.at("blocks.0.attention.value.weight").load(), rows(4)));
  CHECK(at::equal(model.weights.at("blocks.0.attention.key.weight").load(), rows(8)));
  json six = config;
  six["n_embd"] = 24;
  CHECK(contains(refused(six, "n_head", 6), "n_head 6 is not divisible by 4"));
}

TEST_CASE("nanochat turns the other way: halves of each head change places") {
  json config = small_text("nanochat", "NanoChatModel");
  config["num_hidden_layers"] = 1;
  config["attention_bias"] = true;
  const std::string tensors = R"(
embed_tokens.weight 11,16
layers.0.mlp.fc1.weight 20,16
layers.0.mlp.fc2.weight 16,20
layers.0.self_attn.k_proj.bias 8
layers.0.self_attn.k_proj.weight 8,16
layers.0.self_attn.o_proj.bias 16
layers.0.self_attn.o_proj.weight 16,16
layers.0.self_attn.q_proj.bias 16
layers.0.self_attn.q_proj.weight 16,16
layers.0.self_attn.v_proj.bias 8
layers.0.self_attn.v_proj.weight 8,16
)";
  check_round_trip({"nanochat", config, tensors});
  Weights stored = random_weights(tensors);
  const at::Tensor queries = counted(16, 16);
  stored["layers.0.self_attn.q_proj.weight"] = weight_of(queries);
  const at::Tensor ours = open(config, stored).weights.at("blocks.0.attention.query.weight").load();
  for (int64_t row = 0; row < 16; ++row) {
    CHECK(at::equal(ours[row], queries[row / 8 * 8 + (row + 4) % 8]));
  }
}

TEST_CASE("a dynamic scaling of HunYuan with alpha stretches its base once") {
  const json config = small_text("hunyuan_v1_dense", "HunYuanDenseV1Model");
  json scaled = config;
  scaled["rope_scaling"] = {
      {"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}, {"beta_fast", 32}, {"mscale", 1.0}};
  const Rope rope = ropes_of(scaled).first;
  CHECK_FALSE(rope.scaling);
  CHECK(rope.theta == doctest::Approx(1e4 * std::pow(1000, 8.0 / 6)).epsilon(1e-14));
  CHECK(survives(scaled));
  scaled["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  CHECK(ropes_of(scaled).first.scaling->kind == RopeScalingKind::dynamic);
  CHECK(contains(refused(small_text("llama", "LlamaModel"), "rope_scaling",
                         {{"type", "dynamic"}, {"alpha", 8.0}, {"factor", 2.0}}),
                 "'rope_scaling.alpha'"));
}

TEST_CASE("the curves of Apertus, and its RoPE where nothing is said") {
  json config = small_text("apertus", "ApertusModel");
  config["num_hidden_layers"] = 1;
  Weights stored = random_weights(R"(
embed_tokens.weight 11,16
layers.0.attention_layernorm.weight 16
layers.0.feedforward_layernorm.weight 16
layers.0.mlp.act_fn.alpha_n 1
layers.0.mlp.act_fn.alpha_p 1
layers.0.mlp.down_proj.weight 16,20
layers.0.mlp.up_proj.weight 20,16
layers.0.self_attn.k_norm.weight 8
layers.0.self_attn.k_proj.weight 8,16
layers.0.self_attn.o_proj.weight 16,16
layers.0.self_attn.q_norm.weight 8
layers.0.self_attn.q_proj.weight 16,16
layers.0.self_attn.v_proj.weight 8,16
norm.weight 16
)");
  for (const char* name : {"beta", "eps"}) {
    stored[fmt::format("layers.0.mlp.act_fn.{}", name)] = weight_of(at::scalar_tensor(*name, at::kFloat));
  }
  const Opened model = open(config, stored);
  CHECK(model.weights.at("blocks.0.mlp.curve.slope").load().item<float>() == 'b');
  CHECK(model.weights.at("blocks.0.mlp.curve.least").load().item<float>() == 'e');
  const Weights written = family_weights(*model.family, model.architecture, model.weights);
  REQUIRE(written.size() == stored.size());
  for (const auto& [name, weight] : stored) {
    CHECK(at::equal(written.at(name).load(), weight.load()));
  }
  const Rope rope = model.architecture.blocks[0].attention.rope.value();
  CHECK(rope.theta == 12e6);
  CHECK(rope.scaling->original_context == 8192);
  CHECK(survives(config));
  CHECK(contains(refused(config, "rope_theta", 1e4), "rope_theta is 10000"));
  config["rope_parameters"] = {{"rope_type", "default"}};
  CHECK_FALSE(architecture_of(config).blocks[0].attention.rope->scaling);
  CHECK(survives(config));
  CHECK(contains(refused(small_text("arcee", "ArceeModel"), "hidden_act", "xielu"), "hidden_act is \"xielu\""));
}
