// Llama's relatives, on configurations and tensor names as transformers 5.22.2 saved them.

#include <cmath>

#include "pare/arch/presets.h"
#include "tests/checkpoint/family_samples.h"

using namespace pare;
using nlohmann::json;

namespace {

const char* common_tensors = R"(
lm_head.weight 11,16
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

const char* input_biases = R"(
model.layers.0.self_attn.k_proj.bias 6
model.layers.0.self_attn.q_proj.bias 12
model.layers.0.self_attn.v_proj.bias 6
)";

const char* output_bias = "model.layers.0.self_attn.o_proj.bias 16\n";

const char* head_norms = R"(
model.layers.0.self_attn.k_norm.weight 6
model.layers.0.self_attn.q_norm.weight 6
)";

const char* outer_norms = R"(
model.layers.0.post_feedforward_layernorm.weight 16
model.layers.0.pre_feedforward_layernorm.weight 16
)";

const std::string head = "lm_head.weight 11,16\n";
const std::string tied_tensors = std::string(common_tensors).erase(1, head.size());

json small(const char* model_type, json more = json::object()) {
  json config = {{"model_type", model_type}, {"hidden_size", 16},
                 {"intermediate_size", 20},  {"head_dim", 6},
                 {"num_attention_heads", 2}, {"num_key_value_heads", 1},
                 {"num_hidden_layers", 1},   {"vocab_size", 11},
                 {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 16}};
  config.update(more);
  return config;
}

// Four layers, so that there is something to say about each.
json deep(const char* model_type, json more = json::object()) {
  more["num_hidden_layers"] = 4;
  return small(model_type, std::move(more));
}

std::vector<FamilySample> samples() {
  return {
      {"mistral", small("mistral"), common_tensors},
      {"mistral, bare", small("mistral", {{"architectures", {"MistralModel"}}}), without(tied_tensors, "model.")},
      {"qwen2", small("qwen2"), with(common_tensors, input_biases)},
      {"qwen2, tied", small("qwen2", {{"tie_word_embeddings", true}}), tied_tensors + input_biases},
      {"qwen3", small("qwen3"), with(common_tensors, head_norms)},
      {"qwen3, biases", small("qwen3", {{"attention_bias", true}}),
       with(common_tensors, head_norms) + input_biases + output_bias},
      {"gemma", small("gemma"), tied_tensors},
      {"gemma, untied, biases", small("gemma", {{"tie_word_embeddings", false}, {"attention_bias", true}}),
       with(common_tensors, input_biases) + output_bias},
      {"gemma2", small("gemma2"), tied_tensors + outer_norms},
      {"gemma2, untied, biases", small("gemma2", {{"tie_word_embeddings", false}, {"attention_bias", true}}),
       with(common_tensors, input_biases) + output_bias + outer_norms},
      {"gemma2, bare", small("gemma2", {{"architectures", {"Gemma2Model"}}}),
       without(tied_tensors + outer_norms, "model.")},
  };
}

// The window of every layer, 0 for none.
std::vector<int64_t> windows(const json& config) {
  std::vector<int64_t> all;
  for (const Block& block : architecture_of(config).blocks) {
    all.push_back(block.attention.window.value_or(0));
  }
  return all;
}

std::string refusal(const json& config) {
  return message_of<InputError>([&] { architecture_of(config); });
}

using Windows = std::vector<int64_t>;

}  // namespace

TEST_CASE("llama's relatives: reading and writing back gives the same architecture, names and bytes") {
  for (const FamilySample& sample : samples()) {
    check_round_trip(sample);
  }
}

TEST_CASE("the norm after attention is the MLP's own, but in gemma2 the attention output's") {
  const auto canonical = [](const char* model_type, const char* stored) {
    const json config = small(model_type);
    const Family& family = find_family(model_type, "config.json");
    for (const Binding& binding : family.bindings(architecture_of(config))) {
      if (binding.stored == std::string("model.layers.0.") + stored) {
        return binding.canonical.front();
      }
    }
    return std::string("none");
  };
  CHECK(canonical("gemma", "post_attention_layernorm.weight") == "blocks.0.mlp.norm.weight");
  CHECK(canonical("gemma2", "post_attention_layernorm.weight") == "blocks.0.attention.output_norm.weight");
  CHECK(canonical("gemma2", "pre_feedforward_layernorm.weight") == "blocks.0.mlp.norm.weight");
  CHECK(canonical("gemma2", "post_feedforward_layernorm.weight") == "blocks.0.mlp.output_norm.weight");
  CHECK(canonical("qwen3", "self_attn.q_norm.weight") == "blocks.0.attention.query_norm.weight");
}

TEST_CASE("a silent file means what the class in transformers takes") {
  // Each with all that its class saves about itself that changes the computation.
  const json rope = {{"rope_theta", 10000.0}, {"rope_type", "default"}};
  const auto sizes = [&](const char* type, int width, int mlp, int layers, int heads, int kv_heads, int context) {
    return json{{"model_type", type},
                {"hidden_size", width},
                {"intermediate_size", mlp},
                {"num_hidden_layers", layers},
                {"num_attention_heads", heads},
                {"num_key_value_heads", kv_heads},
                {"max_position_embeddings", context},
                {"rms_norm_eps", 1e-6},
                {"rope_parameters", rope}};
  };
  const auto agrees = [](json said, const json& more) {
    said.update(more);
    CAPTURE(said.dump());
    CHECK(architecture_of(json{{"model_type", said["model_type"]}}) == architecture_of(said));
    CHECK(survives(said));
  };
  agrees(sizes("llama", 4096, 11008, 32, 32, 32, 2048), {{"vocab_size", 32000},
                                                         {"head_dim", 128},
                                                         {"hidden_act", "silu"},
                                                         {"tie_word_embeddings", false},
                                                         {"attention_bias", false},
                                                         {"mlp_bias", false}});
  agrees(sizes("mistral", 4096, 14336, 32, 32, 8, 131072), {{"vocab_size", 32000},
                                                            {"head_dim", 128},
                                                            {"hidden_act", "silu"},
                                                            {"tie_word_embeddings", false},
                                                            {"sliding_window", 4096}});
  const json qwen = {{"vocab_size", 151936},         {"head_dim", 128},           {"hidden_act", "silu"},
                     {"tie_word_embeddings", false}, {"sliding_window", nullptr}, {"use_sliding_window", false},
                     {"max_window_layers", 28}};
  agrees(sizes("qwen2", 4096, 22016, 32, 32, 32, 32768), qwen);
  agrees(sizes("qwen3", 4096, 22016, 32, 32, 32, 32768), qwen);
  agrees(sizes("gemma", 3072, 24576, 28, 16, 16, 8192), {{"vocab_size", 256000},
                                                         {"head_dim", 256},
                                                         {"hidden_act", "gelu_pytorch_tanh"},
                                                         {"tie_word_embeddings", true},
                                                         {"attention_bias", false},
                                                         {"use_bidirectional_attention", nullptr}});
  json alternating;
  for (int layer = 0; layer < 26; ++layer) {
    alternating.push_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
  }
  agrees(sizes("gemma2", 2304, 9216, 26, 8, 4, 8192), {{"vocab_size", 256000},
                                                       {"head_dim", 256},
                                                       {"hidden_activation", "gelu_pytorch_tanh"},
                                                       {"tie_word_embeddings", true},
                                                       {"attention_bias", false},
                                                       {"query_pre_attn_scalar", 256},
                                                       {"sliding_window", 4096},
                                                       {"layer_types", alternating},
                                                       {"attn_logit_softcapping", 50.0},
                                                       {"final_logit_softcapping", 30.0}});
}

TEST_CASE("the published configurations are the presets") {
  const auto is_preset = [](const char* name, const char* text) {
    CAPTURE(name);
    Architecture read = architecture_of(json::parse(text));
    read.name = name;
    CHECK(read == find_preset(name).value());
  };
  is_preset("mistral-7b", R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu",
      "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
      "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000})");
  is_preset("llama-3.1-8b", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false,
      "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
      "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
      "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256})");
  is_preset("qwen2.5-0.5b", R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
      "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
      "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "use_mrope": false,
      "use_sliding_window": false, "vocab_size": 151936})");
  is_preset("gemma-2b", R"({"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "attention_bias": false,
      "head_dim": 256, "hidden_act": "gelu", "hidden_size": 2048, "intermediate_size": 16384,
      "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
      "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000.0, "vocab_size": 256000})");
}

TEST_CASE("null is not silence where a class has a default") {
  CHECK(windows(deep("mistral")) == Windows{4096, 4096, 4096, 4096});
  CHECK(windows(deep("mistral", {{"sliding_window", nullptr}})) == Windows{0, 0, 0, 0});
  const auto kv_heads = [](const json& more) {
    return architecture_of(small("qwen2", more)).blocks.at(0).attention.kv_heads;
  };
  CHECK(kv_heads({{"num_key_value_heads", nullptr}}) == 2);
  const Architecture gemma2 =
      architecture_of(small("gemma2", {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr}}));
  CHECK_FALSE(gemma2.blocks.at(0).attention.softcap);
  CHECK_FALSE(gemma2.head.softcap);
}

TEST_CASE("windows are said in several ways, and written so that all readers agree") {
  const json on = {{"use_sliding_window", true}, {"sliding_window", 5}};
  const auto qwen = [&](json more) {
    more.update(on);
    return deep("qwen3", more);
  };
  CHECK(windows(deep("qwen2", {{"sliding_window", 5}, {"max_window_layers", 0}})) == Windows{0, 0, 0, 0});
  CHECK(windows(qwen({{"max_window_layers", 3}})) == Windows{0, 0, 0, 5});
  CHECK(windows(qwen({{"max_window_layers", 9}})) == Windows{0, 0, 0, 0});
  CHECK(windows(qwen({{"max_window_layers", 0}})) == Windows{5, 5, 5, 5});
  const json listed = {"sliding_attention", "attention", "sliding_attention", "full_attention"};
  CHECK(windows(qwen({{"layer_types", listed}})) == Windows{5, 0, 5, 0});
  CHECK(windows(deep("gemma2", {{"sliding_window", 3}})) == Windows{3, 0, 3, 0});
  for (const json& config :
       {qwen({{"max_window_layers", 3}}), qwen({{"max_window_layers", 9}}), qwen({{"layer_types", listed}}),
        deep("mistral", {{"sliding_window", nullptr}}), deep("gemma2", {{"layer_types", json(4, "full_attention")}})}) {
    CAPTURE(config.dump());
    CHECK(survives(config));
  }
  const Family& family = find_family("qwen3", "config.json");
  const auto written = family_config(family, architecture_of(qwen({{"max_window_layers", 3}})));
  CHECK(written["max_window_layers"] == 3);
  CHECK(written["use_sliding_window"] == true);
  CHECK(written["layer_types"][3] == "sliding_attention");
}

TEST_CASE("gemma says gelu and means its tanh form, and can still say the exact one") {
  const auto activation = [](const char* word) {
    return dense_mlp(architecture_of(small("gemma", {{"hidden_act", word}})).blocks.at(0)).activation;
  };
  CHECK(activation("gelu") == Activation::gelu_tanh);
  CHECK(activation("gelu_python") == Activation::gelu);
  CHECK(survives(small("gemma", {{"hidden_act", "gelu_python"}})));
  CHECK(survives(small("gemma2", {{"hidden_activation", "gelu"}})));
  CHECK(survives(small("gemma", {{"hidden_act", "gelu"}, {"hidden_activation", "gelu_pytorch_tanh"}})));
  CHECK(contains(refusal(small("gemma", {{"hidden_activation", "relu"}})), "hidden_activation is \"relu\""));
  CHECK(contains(refusal(small("gemma2", {{"hidden_act", "silu"}})), "hidden_act is \"silu\""));
}

TEST_CASE("gemma2 scales scores by a root of its own") {
  const auto scale = [](int scalar) {
    const json config = small("gemma2", {{"query_pre_attn_scalar", scalar}});
    CHECK(survives(config));
    return architecture_of(config).blocks.at(0).attention.scale;
  };
  CHECK(scale(144) == 1 / std::sqrt(144.0));
  CHECK(scale(7) == 1 / std::sqrt(7.0));
  CHECK_FALSE(scale(6));  // the width of a head: the usual scale
}

TEST_CASE("older files of some relatives hold frequencies that nobody reads") {
  const Weights stored = random_weights(std::string(common_tensors) + "model.layers.0.rotary_emb.inv_freq 3\n");
  for (const char* type : {"llama", "mistral"}) {
    CHECK(refusal(small(type, {{"architectures", {type[0] == 'l' ? "LlamaForCausalLM" : "MistralForCausalLM"}}}),
                  stored) == "");
  }
  CHECK(contains(refusal(small("qwen3", {{"architectures", {"Qwen3ForCausalLM"}}}), stored),
                 "'model.layers.0.rotary_emb.inv_freq'"));
}

TEST_CASE("what llama's relatives do not compute is refused by name") {
  const std::pair<json, const char*> cases[] = {
      {small("mistral", {{"layer_types", {"full_attention"}}}), "layer_types is [\"full_attention\"]"},
      {small("mistral", {{"sliding_window", 0}}), "sliding_window is 0"},
      {small("gemma", {{"sliding_window", 8}}), "sliding_window is 8: this family has no window"},
      {small("gemma", {{"use_bidirectional_attention", true}}), "use_bidirectional_attention is true"},
      {small("gemma2", {{"use_bidirectional_attention", true}}), "use_bidirectional_attention is true"},
      {small("gemma2", {{"sliding_window", nullptr}}), "sliding_window is null; expected a whole number"},
      {small("gemma2", {{"attn_logit_softcapping", 0}}), "attn_logit_softcapping is 0"},
      {small("gemma2", {{"query_pre_attn_scalar", 0}}), "query_pre_attn_scalar is 0"},
      {small("gemma2", {{"num_attention_heads", 3}}), "num_attention_heads 3 does not divide hidden_size 16"},
      {small("qwen2", {{"use_mrope", true}}), "use_mrope is true"},
      {small("qwen2", {{"layer_types", {"sliding_attention"}}}), "but there is no sliding_window"},
      {small("qwen3", {{"layer_types", {"chunked_attention"}}}), "layer_types[0] is \"chunked_attention\""},
      {small("qwen3", {{"layer_types", json(2, "full_attention")}}), "expected a list of 1 names"},
      {small("qwen3", {{"layer_types", "full_attention"}}), "expected a list of 1 names"},
      {small("qwen3", {{"is_causal", false}}), "is_causal is false"},
      {small("qwen3", {{"num_experts", 8}}), "num_experts is 8"},
      {small("qwen3", {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}),
       "rope_parameters has settings for 'full_attention' alone"},
      {small("qwen3", {{"architectures", {"Qwen3ForMaskedLM"}}}), "'Qwen3ForMaskedLM'"},
  };
  for (const auto& [config, words] : cases) {
    const std::string message = refusal(config);
    CAPTURE(words);
    CAPTURE(message);
    CHECK(contains(message, words));
  }
}
