#include "pare/checkpoint/config.h"

#include <doctest/doctest.h>

#include <cmath>

#include "pare/checkpoint/family.h"
#include "pare/checkpoint/model_folder.h"
#include "tests/support/helpers.h"

using namespace pare;
using nlohmann::json;

namespace {

json small_llama() {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 16},
          {"intermediate_size", 20},
          {"num_attention_heads", 2},
          {"num_hidden_layers", 2},
          {"max_position_embeddings", 32},
          {"vocab_size", 11},
          {"rms_norm_eps", 1e-6}};
}

json small_bert() {
  return {{"model_type", "bert"},    {"architectures", {"BertModel"}}, {"hidden_size", 16},
          {"intermediate_size", 20}, {"num_attention_heads", 2},       {"num_hidden_layers", 1},
          {"vocab_size", 11},        {"max_position_embeddings", 8}};
}

Architecture parsed(const json& config) {
  return parse_config(config.dump(), "config.json");
}

// The message that a good configuration with one key changed ends with.
std::string refusal(json config, const std::string& key, const json& value) {
  config[key] = value;
  return message_of<InputError>([&] { parsed(config); });
}

Rope rope_of(const json& config) {
  return parsed(config).blocks.at(0).attention.rope.value();
}

}  // namespace

TEST_CASE("text that is no configuration is refused with what it is") {
  const auto refused = [](const std::string& text) {
    return message_of<InputError>([&] { parse_config(text, "m/config.json"); });
  };
  CHECK(contains(refused("{\"model_type\": "), "m/config.json is not valid JSON"));
  CHECK(contains(refused("[1, 2]"), "m/config.json holds array, expected an object"));
  CHECK(contains(refused("{}"), "m/config.json has no model_type"));
  CHECK(contains(refused("{\"model_type\": 7}"), "has no model_type"));
  CHECK(contains(refused("{\"model_type\": \"lama\"}"), "'lama' is not supported (did you mean 'llama'?)"));
  for (const char* known : {"; supported are ", " gpt2, ", " llama, ", " vit, ", ", pare"}) {
    CHECK(contains(refused("{\"model_type\": \"unheard-of\"}"), known));
  }
  CHECK(contains(refused("{\"model_type\": \"mixtral\"}"), "'mixtral' is not supported: it has experts"));
  for (const std::string value : {"NaN", "Infinity", "-Infinity"}) {  // as Python writes them
    const std::string message = refused("{\"model_type\": \"llama\", \"rms_norm_eps\": " + value + "}");
    CHECK(contains(message, "is not valid JSON"));
    CHECK(contains(message, "NaN and Infinity are no numbers: expected a finite one"));
  }
  CHECK(contains(refused("{\"model_type\": \"lama\", }"), "is not valid JSON"));
  CHECK_FALSE(contains(refused("{\"model_type\": \"lama\", }"), "Infinity"));
}

TEST_CASE("numbers that only enter the arithmetic are whatever transformers takes") {
  json config = small_llama();
  for (const double epsilon : {0.0, 1e-30, 2.0, 1e12, 1e38}) {
    config["rms_norm_eps"] = epsilon;
    CHECK(parsed(config).final_norm->epsilon == epsilon);
  }
  CHECK(contains(refusal(small_llama(), "rms_norm_eps", 1e300), "1e+300 is beyond what float32 can hold"));
  for (const double epsilon : {-1e-30, -1.0}) {
    CHECK(contains(refusal(small_llama(), "rms_norm_eps", epsilon), "expected a finite number, 0 or more"));
  }
  CHECK(contains(refusal(small_llama(), "rms_norm_eps", "1e12"), "expected a finite number, 0 or more"));
  CHECK(contains(message_of<InputError>([] { parse_config(R"({"model_type": "llama", "rms_norm_eps": 1e999})", "c"); }),
                 "c is not valid JSON"));
  config = small_llama();
  for (const double theta : {0.5, 1e18}) {
    config["rope_theta"] = theta;
    CHECK(rope_of(config).theta == theta);
  }
  for (const double theta : {0.0, -10000.0}) {
    CHECK(contains(refusal(small_llama(), "rope_theta", theta), "expected a finite number above 0"));
  }
  config = small_llama();
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 1e16}};
  CHECK(rope_of(config).scaling->factor == 1e16);
}

TEST_CASE("what a family of any name asks for and pare does not have is named") {
  const auto refused = [](const char* type, json more) {
    more["model_type"] = type;
    return message_of<InputError>([&] { parsed(more); });
  };
  CHECK(contains(refused("mixtral", {{"num_local_experts", 8}}), "mixtures of experts are not supported"));
  CHECK(contains(refused("deepseek_v3", {{"n_routed_experts", 256}}), "mixtures of experts are not supported"));
  CHECK(contains(refused("t5", {{"is_encoder_decoder", true}}), "encoder-decoder models are not supported"));
  CHECK(contains(refused("bart", {{"add_cross_attention", true}}), "cross attention is not supported"));
  // A method is named even where the value is too long to be shown.
  const json quantised = {{"bits", 4}, {"desc_act", true}, {"group_size", 128}, {"modules", std::string(80, 'x')}};
  for (const char* method : {"gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors"}) {
    json settings = quantised;
    settings["quant_method"] = method;
    const std::string message = refusal(small_llama(), "quantization_config", settings);
    CHECK(contains(message, std::string("quantization_config is \"") + method + "\": quantised weights"));
  }
  CHECK(contains(refusal(small_llama(), "quantization", {{"bits", 4}}), "quantised weights are not supported"));
  CHECK(contains(refusal(small_llama(), "num_local_experts", 4), "mixtures of experts are not supported"));
  CHECK(contains(refusal(small_bert(), "add_cross_attention", true), "cross attention is not supported"));
}

TEST_CASE("an impossible number names its key, its value and the range") {
  const std::string heads = "num_attention_heads";
  CHECK(contains(refusal(small_llama(), heads, 0), "num_attention_heads is 0; expected a whole number from 1 to"));
  CHECK(contains(refusal(small_llama(), heads, -4), "num_attention_heads is -4; expected"));
  CHECK(contains(refusal(small_llama(), heads, "many"), "num_attention_heads is \"many\"; expected"));
  CHECK(contains(refusal(small_llama(), heads, 2.0), "num_attention_heads is 2.0; expected a whole number"));
  CHECK(contains(refusal(small_llama(), heads, true), "num_attention_heads is true; expected"));
  CHECK(contains(refusal(small_llama(), heads, json::array({2})), "num_attention_heads is [2]; expected"));
  CHECK(contains(refusal(small_llama(), heads, UINT64_MAX), "num_attention_heads is 18446744073709551615; expected"));
  CHECK(contains(refusal(small_llama(), "num_hidden_layers", 1'000'000'000), "num_hidden_layers is 1000000000"));
  CHECK(contains(refusal(small_llama(), "vocab_size", 1e30), "vocab_size is 1e+30; expected a whole number"));
  CHECK(
      contains(refusal(small_llama(), "rms_norm_eps", "small"), "rms_norm_eps is \"small\"; expected a finite number"));
  CHECK(contains(refusal(small_llama(), "rms_norm_eps", -1.0),
                 "rms_norm_eps is -1.0; expected a finite number, 0 or more"));
  CHECK(contains(refusal(small_llama(), "attention_bias", 1), "attention_bias is 1; expected true or false"));
  CHECK(contains(refusal(small_llama(), heads, 3), "num_attention_heads 3 does not divide hidden_size 16"));
  CHECK(contains(refusal(small_llama(), "num_key_value_heads", 3), "num_key_value_heads is 3") == false);
  CHECK(contains(refusal(small_llama(), "num_key_value_heads", 3), "kv_heads"));
}

TEST_CASE("every problem is listed at once") {
  json config = small_llama();
  config["hidden_size"] = -1;
  config["hidden_act"] = "mish";
  config["quantization_config"] = {{"quant_method", "gptq"}};
  const std::string message = message_of<InputError>([&] { parsed(config); });
  CHECK(contains(message, "hidden_size is -1"));
  CHECK(contains(message, "hidden_act is \"mish\"; expected an activation that pare has: gelu"));
  CHECK(contains(message, "quantization_config is \"gptq\": quantised weights are not supported"));
}

TEST_CASE("a key that would change the computation is refused by name") {
  CHECK(contains(refusal(small_llama(), "auto_map", {{"AutoModel", "x.Y"}}), "auto_map"));
  CHECK(contains(refusal(small_llama(), "sliding_window", 128), "sliding_window is 128: this family has no window"));
  CHECK(contains(refusal(small_llama(), "num_local_experts", 8), "mixtures of experts"));
  CHECK(contains(refusal(small_llama(), "is_encoder_decoder", true), "is_encoder_decoder"));
  CHECK(contains(refusal(small_llama(), "per_layer_config", {{"0", {{"hidden_act", "relu"}}}}), "per_layer_config"));
  CHECK(contains(refusal(small_llama(), "is_causal", false), "is_causal is false; only true is supported"));
  CHECK(contains(refusal(small_llama(), "partial_rotary_factor", 0.5), "partial_rotary_factor is 0.5"));
  CHECK(contains(refusal(small_llama(), "architectures", {"LlamaForMultipleChoice"}),
                 "class 'LlamaForMultipleChoice', which is not supported; supported are LlamaForCausalLM, "
                 "LlamaForSequenceClassification, LlamaForTokenClassification, LlamaForQuestionAnswering, LlamaModel"));
  CHECK(contains(refusal(small_bert(), "position_embedding_type", "relative_key"), "position_embedding_type"));
  CHECK(contains(refusal(small_bert(), "is_decoder", true), "is_decoder is true; only false is supported"));
  CHECK(contains(refusal(small_bert(), "add_cross_attention", true), "cross attention is not supported"));
  CHECK(contains(refusal(small_bert(), "pruned_heads", {{"0", {1}}}), "pruned heads"));
  json vit = {{"model_type", "vit"}, {"architectures", {"ViTModel"}}, {"pooler_output_size", 12}};
  CHECK(contains(refusal(vit, "hidden_size", 768), "pooler_output_size is 12; only 768 is supported"));
  CHECK(contains(refusal(vit, "image_size", {224, 192}), "image_size is [224,192]"));
}

TEST_CASE("switches that are off, and keys without effect, are accepted") {
  json config = small_llama();
  config["quantization_config"] = nullptr;
  config["sliding_window"] = nullptr;
  config["is_encoder_decoder"] = false;
  config["attention_dropout"] = 0.5;
  config["attn_implementation"] = "flash_attention_2";
  CHECK(parsed(config) == parsed(small_llama()));
}

TEST_CASE("keys that nobody knows are refused, all of them, or ignored where that is asked for") {
  json config = small_llama();
  config["some_future_key"] = 3;
  config["of_no_value"] = nullptr;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"twist", 1}};
  const std::string message = message_of<InputError>([&] { parsed(config); });
  CHECK(contains(message,
                 "keys that pare does not know for this family: 'rope_scaling.twist', 'of_no_value', "
                 "'some_future_key'"));
  CHECK(contains(message, "--ignore-unknown-keys"));

  std::vector<std::string> warnings, ignored;
  const ConfigRemarks remarks = {.warnings = &warnings, .ignored_keys = &ignored};
  const Architecture a = read_architecture(find_family("llama", "c"), config, "c", std::nullopt, remarks);
  CHECK(a.blocks.at(0).attention.rope->scaling->factor == 2);
  CHECK(ignored == std::vector<std::string>{"rope_scaling.twist", "of_no_value", "some_future_key"});
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "'some_future_key'"));
  // What is known to matter is no unknown key.
  config["num_local_experts"] = 8;
  CHECK(
      contains(message_of<InputError>([&] { read_architecture(find_family("llama", "c"), config, "c", {}, remarks); }),
               "mixtures of experts"));
}

TEST_CASE("keys that send transformers to other files or other code are refused") {
  CHECK(contains(refusal(small_llama(), "transformers_weights", "other.safetensors"), "reads its weights from that"));
  CHECK(contains(refusal(small_bert(), "configuration_files", {"config.4.0.0.json"}), "another file in place of this"));
  CHECK(contains(refusal(small_llama(), "attn_implementation", "somebody/kernels"), "attention with code of its own"));
  CHECK(contains(refusal(small_llama(), "_attn_implementation", {{"", "eager"}}), "attention with code of its own"));
  for (const char* key : {"attribute_map", "gguf_file", "subfolder", "base_model_tp_plan", "get_text_config"}) {
    CHECK(contains(refusal(small_llama(), key, "x"), "a key that pare does not know"));
  }
}

TEST_CASE("null is Python's None: not true") {
  json config = small_llama();
  config["architectures"] = {"LlamaForTokenClassification"};
  CHECK(parsed(config).head.bias);
  config["token_classification_bias"] = nullptr;
  CHECK_FALSE(parsed(config).head.bias);
  CHECK(contains(refusal(small_llama(), "is_causal", nullptr), "is_causal is null; only true is supported"));
  CHECK(refusal(small_bert(), "is_causal", nullptr).empty());
  CHECK(contains(refusal(small_bert(), "is_causal", true), "only false is supported"));
}

TEST_CASE("what transformers computes wrongly for Falcon is refused") {
  json falcon = {{"model_type", "falcon"}, {"num_hidden_layers", 1}, {"hidden_size", 16}, {"num_attention_heads", 2}};
  CHECK(contains(refusal(falcon, "output_attentions", true), "hides no later token, or adds ALiBi twice"));
  CHECK(refusal(falcon, "attn_implementation", "eager").empty());
  falcon["alibi"] = true;
  CHECK(contains(refusal(falcon, "attn_implementation", "eager"), "adds Falcon's ALiBi twice"));
  CHECK(contains(refusal(falcon, "_attn_implementation", "flex_attention"), "adds Falcon's ALiBi twice"));
  CHECK(refusal(falcon, "attn_implementation", "sdpa").empty());
}

TEST_CASE("absent keys have the family's defaults") {
  const Architecture a = parse_config("{\"model_type\": \"gpt2\"}", "config.json");
  CHECK(a.width == 768);
  CHECK(a.vocab == 50257);
  CHECK(a.context == 1024);
  CHECK(a.blocks.size() == 12);
  CHECK(std::get<DenseMlp>(a.blocks.at(0).mlp->kind).width == 3072);
  CHECK(a.head.tied);
}

TEST_CASE("two names of one setting must agree") {
  const json config = {{"model_type", "gpt2"}, {"n_embd", 24}};
  CHECK(contains(refusal(config, "hidden_size", 36), "n_embd is 24 but hidden_size"));
  CHECK(refusal(config, "hidden_size", 24).empty());
}

TEST_CASE("rope settings mean the same in both spellings") {
  const json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 16}};
  json older = small_llama(), newer = small_llama();
  older["rope_theta"] = 5000.0;
  older["rope_scaling"] = scaling;
  older["rope_scaling"]["type"] = "llama3";
  older["rope_scaling"].erase("rope_type");
  newer["rope_parameters"] = scaling;
  newer["rope_parameters"]["rope_theta"] = 5000.0;
  const Rope rope = rope_of(older);
  CHECK(rope == rope_of(newer));
  CHECK(rope.theta == 5000);
  CHECK(rope.width == 8);
  CHECK(rope.scaling->kind == RopeScalingKind::llama3);
  CHECK(rope.scaling->original_context == 16);
  json beside = newer;
  beside["original_max_position_embeddings"] = 24;
  CHECK(rope_of(beside).scaling->original_context == 24);
}

TEST_CASE("rope settings that Hugging Face computes are resolved") {
  json config = small_llama();
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"original_max_position_embeddings", 8}, {"factor", nullptr}};
  RopeScaling s = rope_of(config).scaling.value();
  CHECK(s.factor == 4);  // 32 / 8
  CHECK(s.attention_factor == doctest::Approx(0.1 * std::log(4.0) + 1).epsilon(1e-15));
  config["rope_scaling"]["mscale"] = 0.7;
  config["rope_scaling"]["mscale_all_dim"] = 1.3;
  s = rope_of(config).scaling.value();
  CHECK(s.attention_factor == doctest::Approx((0.07 * std::log(4.0) + 1) / (0.13 * std::log(4.0) + 1)).epsilon(1e-15));
  config["rope_scaling"] = {{"rope_type", "longrope"},
                            {"original_max_position_embeddings", 8},
                            {"short_factor", {1.0, 1.1, 1.2, 1.3}},
                            {"long_factor", {2, 3, 4, 5}}};
  s = rope_of(config).scaling.value();
  CHECK(s.attention_factor == doctest::Approx(std::sqrt(1 + std::log(4.0) / std::log(8.0))).epsilon(1e-15));
  CHECK(s.long_factor == std::vector<double>{2, 3, 4, 5});
  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  CHECK(rope_of(config).scaling->original_context == 32);
}

TEST_CASE("unusable rope settings are refused") {
  const auto refused = [](const json& scaling) { return refusal(small_llama(), "rope_scaling", scaling); };
  CHECK(contains(refused({{"rope_type", "mrope"}}), "the rope type 'mrope' is not supported; supported are default"));
  CHECK(contains(refused({{"rope_type", "linear"}}), "the rope type linear needs the key factor"));
  CHECK(contains(refused({{"rope_type", "linear"}, {"factor", "2"}}), "rope_scaling.factor is \"2\"; expected"));
  CHECK(contains(refused({{"rope_type", "linear"}, {"factor", 0}}), "rope_scaling.factor is 0; expected"));
  CHECK(contains(refused("linear"), "rope_scaling is \"linear\"; expected an object"));
  CHECK(contains(refused({{"rope_type", "longrope"}, {"short_factor", {1, 2}}, {"long_factor", {1, 1, 1, 1}}}),
                 "rope_scaling.short_factor is [1,2]; expected a list of 4 numbers"));
  CHECK(contains(refusal(small_llama(), "head_dim", 5), "rope"));
}
