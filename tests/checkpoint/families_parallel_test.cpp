// GPT-NeoX, GPT-J, Phi and Falcon, on configurations and tensor names as transformers 5.22.2 saved them.

#include "pare/arch/presets.h"
#include "tests/checkpoint/family_samples.h"

using namespace pare;
using nlohmann::json;

namespace {

const char* neox_tensors = R"(
embed_out.weight 11,16
gpt_neox.embed_in.weight 11,16
gpt_neox.final_layer_norm.bias 16
gpt_neox.final_layer_norm.weight 16
gpt_neox.layers.0.attention.dense.weight 16,16
gpt_neox.layers.0.attention.query_key_value.weight 48,16
gpt_neox.layers.0.input_layernorm.bias 16
gpt_neox.layers.0.input_layernorm.weight 16
gpt_neox.layers.0.mlp.dense_4h_to_h.bias 16
gpt_neox.layers.0.mlp.dense_4h_to_h.weight 16,20
gpt_neox.layers.0.mlp.dense_h_to_4h.bias 20
gpt_neox.layers.0.mlp.dense_h_to_4h.weight 20,16
gpt_neox.layers.0.post_attention_layernorm.bias 16
gpt_neox.layers.0.post_attention_layernorm.weight 16
)";

const char* neox_biases = R"(
gpt_neox.layers.0.attention.dense.bias 16
gpt_neox.layers.0.attention.query_key_value.bias 48
)";

const char* gptj_tensors = R"(
lm_head.bias 11
transformer.h.0.attn.k_proj.weight 16,16
transformer.h.0.attn.out_proj.weight 16,16
transformer.h.0.attn.q_proj.weight 16,16
transformer.h.0.attn.v_proj.weight 16,16
transformer.h.0.ln_1.bias 16
transformer.h.0.ln_1.weight 16
transformer.h.0.mlp.fc_in.bias 64
transformer.h.0.mlp.fc_in.weight 64,16
transformer.h.0.mlp.fc_out.bias 16
transformer.h.0.mlp.fc_out.weight 16,64
transformer.ln_f.bias 16
transformer.ln_f.weight 16
transformer.wte.weight 11,16
)";

const char* phi_tensors = R"(
lm_head.bias 11
model.embed_tokens.weight 11,16
model.final_layernorm.bias 16
model.final_layernorm.weight 16
model.layers.0.input_layernorm.bias 16
model.layers.0.input_layernorm.weight 16
model.layers.0.mlp.fc1.bias 20
model.layers.0.mlp.fc1.weight 20,16
model.layers.0.mlp.fc2.bias 16
model.layers.0.mlp.fc2.weight 16,20
model.layers.0.self_attn.dense.bias 16
model.layers.0.self_attn.dense.weight 16,16
model.layers.0.self_attn.k_proj.bias 8
model.layers.0.self_attn.k_proj.weight 8,16
model.layers.0.self_attn.q_proj.bias 16
model.layers.0.self_attn.q_proj.weight 16,16
model.layers.0.self_attn.v_proj.bias 8
model.layers.0.self_attn.v_proj.weight 8,16
)";

const char* phi_head_norms = R"(
model.layers.0.self_attn.k_layernorm.bias 8
model.layers.0.self_attn.k_layernorm.weight 8
model.layers.0.self_attn.q_layernorm.bias 8
model.layers.0.self_attn.q_layernorm.weight 8
)";

const std::string head = "lm_head.weight 11,16\n";

// `rows` of the fused matrix; the names of the norms before attention and MLP, the second empty where there is one.
std::string falcon_tensors(int rows, const std::string& norm, const std::string& mlp_norm, bool biased) {
  std::string lines = R"(
transformer.h.0.mlp.dense_4h_to_h.weight 16,20
transformer.h.0.mlp.dense_h_to_4h.weight 20,16
transformer.h.0.self_attention.dense.weight 16,16
transformer.ln_f.bias 16
transformer.ln_f.weight 16
transformer.word_embeddings.weight 11,16
)";
  const std::string layer = "transformer.h.0.", fused = layer + "self_attention.query_key_value";
  lines += fused + ".weight " + std::to_string(rows) + ",16\n";
  for (const std::string& name : {norm, mlp_norm}) {
    lines += name.empty() ? "" : layer + name + ".weight 16\n" + layer + name + ".bias 16\n";
  }
  if (biased) {
    lines += fused + ".bias " + std::to_string(rows) + "\n" + layer + "self_attention.dense.bias 16\n" + layer +
             "mlp.dense_h_to_4h.bias 20\n" + layer + "mlp.dense_4h_to_h.bias 16\n";
  }
  return lines;
}

json updated(json config, const json& more) {
  config.update(more);
  return config;
}

json neox(const json& more = json::object()) {
  return updated({{"model_type", "gpt_neox"},
                  {"hidden_size", 16},
                  {"intermediate_size", 20},
                  {"max_position_embeddings", 8},
                  {"num_attention_heads", 2},
                  {"num_hidden_layers", 1},
                  {"vocab_size", 11}},
                 more);
}

json gptj(const json& more = json::object()) {
  return updated({{"model_type", "gptj"},
                  {"n_embd", 16},
                  {"n_head", 2},
                  {"n_inner", nullptr},
                  {"n_layer", 1},
                  {"n_positions", 8},
                  {"rotary_dim", 4},
                  {"vocab_size", 11}},
                 more);
}

json phi(const json& more = json::object()) {
  return updated({{"model_type", "phi"},
                  {"hidden_size", 16},
                  {"intermediate_size", 20},
                  {"max_position_embeddings", 8},
                  {"num_attention_heads", 2},
                  {"num_hidden_layers", 1},
                  {"num_key_value_heads", 1},
                  {"vocab_size", 11}},
                 more);
}

json falcon(const json& more = json::object()) {
  return updated({{"model_type", "falcon"},
                  {"ffn_hidden_size", 20},
                  {"hidden_size", 16},
                  {"max_position_embeddings", 8},
                  {"num_attention_heads", 4},
                  {"num_hidden_layers", 1},
                  {"num_kv_heads", 4},
                  {"vocab_size", 11}},
                 more);
}

json named(const char* kind) {
  return {{"architectures", {kind}}};
}

std::vector<FamilySample> samples() {
  const json tied = {{"tie_word_embeddings", true}};
  const std::string neox_body = std::string(neox_tensors).erase(1, std::string("embed_out.weight 11,16\n").size());
  const std::string no_bias = "lm_head.bias 11\n";
  const std::string gptj_body = std::string(gptj_tensors).erase(1, no_bias.size());
  const std::string phi_body = std::string(phi_tensors).erase(1, no_bias.size());
  return {
      {"gpt_neox", neox(), with(neox_tensors, neox_biases)},
      {"gpt_neox, serial, no biases", neox({{"use_parallel_residual", false}, {"attention_bias", false}}),
       neox_tensors},
      {"gpt_neox, tied", neox(tied), neox_body + neox_biases},
      {"gpt_neox, bare", neox(named("GPTNeoXModel")), without(neox_body + neox_biases, "gpt_neox.")},
      {"gptj", gptj(), gptj_tensors + head},
      {"gptj, tied", gptj(tied), gptj_tensors},
      {"gptj, bare", gptj(named("GPTJModel")), without(gptj_body, "transformer.")},
      {"phi", phi(), phi_tensors + head},
      {"phi, norms of heads, tied", phi({{"qk_layernorm", true}, {"tie_word_embeddings", true}}),
       with(phi_tensors, phi_head_norms)},
      {"phi, bare", phi(named("PhiModel")), without(phi_body, "model.")},
      {"falcon 7b", falcon(), falcon_tensors(24, "input_layernorm", "", false)},
      {"falcon 7b, untied, biases", falcon({{"tie_word_embeddings", false}, {"bias", true}}),
       falcon_tensors(24, "input_layernorm", "", true) + head},
      {"falcon 40b", falcon({{"new_decoder_architecture", true}, {"num_kv_heads", 2}, {"bias", true}}),
       falcon_tensors(32, "ln_attn", "ln_mlp", true)},
      {"falcon 11b, one norm",
       falcon({{"new_decoder_architecture", true}, {"num_kv_heads", 2}, {"num_ln_in_parallel_attn", 1}}),
       falcon_tensors(32, "input_layernorm", "", false)},
      {"falcon rw", falcon({{"multi_query", false}, {"parallel_attn", false}, {"alibi", true}, {"bias", true}}),
       falcon_tensors(48, "input_layernorm", "post_attention_layernorm", true)},
      {"falcon, bare", falcon(named("FalconModel")),
       without(falcon_tensors(24, "input_layernorm", "", false), "transformer.")},
  };
}

std::string refusal(const json& config) {
  return message_of<InputError>([&] { architecture_of(config); });
}

using Rows = std::vector<std::vector<int64_t>>;

// The rows of the fused matrix that are queries, keys and values, by number.
Rows fused_rows(const json& config) {
  const Family& family = find_family(config["model_type"], "config.json");
  const Architecture a = architecture_of(config);
  const Attention& t = a.blocks[0].attention;
  const at::Tensor numbers = at::arange((t.heads + 2 * t.kv_heads) * t.head_width).unsqueeze(1);
  Rows rows;
  for (const Binding& binding : family.bindings(a)) {
    if (binding.stored.ends_with("query_key_value.weight")) {
      for (const at::Tensor& piece : binding.layout.split(numbers)) {
        const at::Tensor flat = piece.flatten().contiguous();
        rows.emplace_back(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel());
      }
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("parallel decoders: reading and writing back gives the same architecture, names and bytes") {
  for (const FamilySample& sample : samples()) {
    check_round_trip(sample);
  }
}

TEST_CASE("fused matrices hold each key head's queries, its key and its value") {
  // Four heads of two rows each.
  const auto narrow = [](const json& config) { return fused_rows(updated(config, {{"hidden_size", 8}})); };
  const Rows by_head = {{0, 1, 6, 7, 12, 13, 18, 19}, {2, 3, 8, 9, 14, 15, 20, 21}, {4, 5, 10, 11, 16, 17, 22, 23}};
  CHECK(narrow(neox({{"num_attention_heads", 4}, {"rotary_pct", 1.0}})) == by_head);
  CHECK(narrow(falcon({{"multi_query", false}})) == by_head);
  CHECK(narrow(falcon()) == Rows{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9}, {10, 11}});
  CHECK(narrow(falcon({{"new_decoder_architecture", true}, {"num_kv_heads", 2}})) ==
        Rows{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}});
}

TEST_CASE("parallel decoders: other names of a tensor load, and so do files with masks and frequencies") {
  const std::string neox_layer = "gpt_neox.layers.0.attention.";
  Weights stored = random_weights(with(neox_tensors, neox_biases) + neox_layer + "bias 1,1,8,8\n" + neox_layer +
                                  "masked_bias 1\n" + neox_layer + "rotary_emb.inv_freq 1\n");
  auto renamed = stored.extract("embed_out.weight");
  const at::Tensor table = renamed.mapped().load();
  renamed.key() = "lm_head.weight";
  stored.insert(std::move(renamed));
  CHECK(at::equal(open(neox(), stored).weights.at("head.weight").load(), table));

  const std::string falcon_layer = "transformer.h.0.self_attention.";
  CHECK(refusal(falcon(), random_weights(falcon_tensors(24, "input_layernorm", "", false) + falcon_layer +
                                         "rotary.inv_freq 2\n" + falcon_layer + "maybe_rotary.inv_freq 2\n"))
            .empty());
  CHECK(refusal(gptj(), random_weights(gptj_tensors + head + "transformer.h.0.attn.bias 1,1,8,8\n")).empty());
  CHECK(refusal(phi(), random_weights(phi_tensors + head + "model.layers.0.self_attn.rotary_emb.inv_freq 2")).empty());
}

TEST_CASE("parallel decoders: a silent file means what the class in transformers takes") {
  const auto agrees = [](const json& said) {
    CAPTURE(said.dump());
    CHECK(architecture_of(json{{"model_type", said["model_type"]}}) == architecture_of(said));
    CHECK(survives(said));
  };
  const auto rope = [](double part) {
    return json{{"rope_theta", 10000.0}, {"rope_type", "default"}, {"partial_rotary_factor", part}};
  };
  agrees({{"model_type", "gpt_neox"},
          {"vocab_size", 50432},
          {"hidden_size", 6144},
          {"num_hidden_layers", 44},
          {"num_attention_heads", 64},
          {"intermediate_size", 24576},
          {"hidden_act", "gelu"},
          {"max_position_embeddings", 2048},
          {"layer_norm_eps", 1e-5},
          {"tie_word_embeddings", false},
          {"use_parallel_residual", true},
          {"attention_bias", true},
          {"rope_parameters", rope(0.25)}});
  agrees({{"model_type", "gptj"},
          {"vocab_size", 50400},
          {"n_positions", 2048},
          {"n_embd", 4096},
          {"n_layer", 28},
          {"n_head", 16},
          {"rotary_dim", 64},
          {"n_inner", 16384},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", 1e-5},
          {"tie_word_embeddings", false}});
  agrees({{"model_type", "phi"},
          {"vocab_size", 51200},
          {"hidden_size", 2048},
          {"intermediate_size", 8192},
          {"num_hidden_layers", 24},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 32},
          {"hidden_act", "gelu_new"},
          {"max_position_embeddings", 2048},
          {"layer_norm_eps", 1e-5},
          {"tie_word_embeddings", false},
          {"qk_layernorm", false},
          {"rope_parameters", rope(0.5)}});
  agrees({{"model_type", "falcon"},
          {"vocab_size", 65024},
          {"hidden_size", 4544},
          {"num_hidden_layers", 32},
          {"num_attention_heads", 71},
          {"num_kv_heads", 71},
          {"num_ln_in_parallel_attn", nullptr},
          {"layer_norm_epsilon", 1e-5},
          {"alibi", false},
          {"new_decoder_architecture", false},
          {"multi_query", true},
          {"parallel_attn", true},
          {"bias", false},
          {"max_position_embeddings", 2048},
          {"ffn_hidden_size", 18176},
          {"activation", "gelu"},
          {"tie_word_embeddings", true},
          {"rope_parameters", rope(1)}});
}

TEST_CASE("pythia's published configuration is the preset") {
  Architecture read = architecture_of(json::parse(R"({"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0,
      "eos_token_id": 0, "hidden_act": "gelu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 16384, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox",
      "num_attention_heads": 32, "num_hidden_layers": 32, "rotary_emb_base": 10000, "rotary_pct": 0.25,
      "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": true,
      "use_parallel_residual": true, "vocab_size": 50432})"));
  read.name = "pythia-6.9b";
  CHECK(read == find_preset("pythia-6.9b").value());
}

TEST_CASE("falcon's published configurations are the presets") {
  json published = json::parse(R"({"alibi": false, "apply_residual_connection_post_layernorm": false,
      "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0, "bias": false, "bos_token_id": 11,
      "eos_token_id": 11, "hidden_dropout": 0.0, "hidden_size": 4544, "initializer_range": 0.02,
      "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": true, "new_decoder_architecture": false,
      "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": true, "torch_dtype": "bfloat16",
      "use_cache": true, "vocab_size": 65024})");
  Architecture read = architecture_of(published);
  read.name = "falcon-7b";
  CHECK(read == find_preset("falcon-7b").value());
  read = architecture_of(updated(published, {{"alibi", true},
                                             {"bias", true},
                                             {"hidden_size", 2048},
                                             {"multi_query", false},
                                             {"num_attention_heads", 32},
                                             {"num_hidden_layers", 24},
                                             {"parallel_attn", false},
                                             {"vocab_size", 50304}}));
  read.name = "falcon-rw-1b";
  CHECK(read == find_preset("falcon-rw-1b").value());
}

TEST_CASE("the part of a head that turns: both spellings, every kind, rounded down") {
  for (const json& scaling :
       {json{{"rope_type", "linear"}, {"factor", 3.5}}, json{{"rope_type", "dynamic"}, {"factor", 2.0}},
        json{{"rope_type", "longrope"}, {"short_factor", {1, 2, 3}}, {"long_factor", {4, 5, 6}}}}) {
    CAPTURE(scaling.dump());
    const json newer = updated(scaling, {{"rope_theta", 500.0}, {"partial_rotary_factor", 0.76}});
    for (const json& config : {neox({{"rope_scaling", scaling}, {"rotary_emb_base", 500}, {"rotary_pct", 0.76}}),
                               neox({{"rope_parameters", newer}}),
                               phi({{"rope_scaling", scaling}, {"rope_theta", 500}, {"partial_rotary_factor", 0.76}}),
                               phi({{"rope_parameters", newer}})}) {
      const Rope rope = architecture_of(config).blocks[0].attention.rope.value();
      CHECK(rope.width == 6);
      CHECK(rope.theta == 500);
      CHECK(survives(config));
    }
  }
  CHECK(survives(neox({{"rotary_pct", 1.0}})));
  CHECK(survives(phi({{"partial_rotary_factor", 1.0}, {"head_dim", 6}})));
  for (int64_t width = 2; width < 126; width += 2) {
    CAPTURE(width);
    const double part = (static_cast<double>(width) + 0.01) / 126;
    CHECK(survives(phi({{"partial_rotary_factor", part}, {"head_dim", 126}})));
  }
}

TEST_CASE("gpt_neox refuses names that transformers does not read, where they say something else") {
  CHECK(refusal(neox({{"rope_theta", 10000}, {"partial_rotary_factor", 0.25}})).empty());
  CHECK(contains(refusal(neox({{"rope_theta", 500}})), "rope_theta is 500; only 10000.0 is supported"));
  CHECK(contains(refusal(neox({{"partial_rotary_factor", 0.5}})), "this family reads rotary_pct"));
  CHECK(contains(refusal(neox({{"head_dim", 4}})), "head_dim is 4; only 8 is supported"));
  CHECK(contains(refusal(neox({{"rotary_pct", 0.4}})), "rope.width: 3 is odd"));
  CHECK(contains(refusal(neox({{"num_attention_heads", 3}})), "num_attention_heads 3 does not divide hidden_size 16"));
  CHECK(contains(refusal(neox(named("GPTNeoXForMultipleChoice"))), "GPTNeoXForMultipleChoice"));
}

TEST_CASE("gptj needs a rotary part, of whole pairs and within a head") {
  CHECK(contains(refusal(gptj({{"rotary_dim", nullptr}})), "rotary_dim is null"));
  CHECK(contains(refusal(gptj({{"rotary_dim", 3}})), "rope.width: 3 is odd"));
  CHECK(contains(refusal(gptj({{"rotary_dim", 10}})), "rotary_dim is 10; expected a whole number from 2 to 8"));
  CHECK(contains(refusal(gptj({{"rotary", false}})), "rotary is false; only true"));
}

TEST_CASE("phi: heads of their own width, but not with norms of heads") {
  CHECK(architecture_of(phi({{"head_dim", 12}})).blocks[0].attention.head_width == 12);
  CHECK(contains(refusal(phi({{"head_dim", 12}, {"qk_layernorm", true}})), "head_dim is 12; with qk_layernorm"));
  CHECK(contains(refusal(phi({{"num_attention_heads", 3}})), "num_attention_heads 3 does not divide hidden_size 16"));
}

TEST_CASE("falcon refuses what transformers cannot run") {
  const json newer = {{"new_decoder_architecture", true}};
  CHECK(contains(refusal(falcon(updated(newer, {{"parallel_attn", false}}))), "parallel_attn is false"));
  CHECK(contains(refusal(falcon({{"num_ln_in_parallel_attn", 2}})), "num_ln_in_parallel_attn is 2"));
  CHECK(contains(refusal(falcon(updated(newer, {{"num_ln_in_parallel_attn", 3}}))), "num_ln_in_parallel_attn is 3"));
  CHECK(contains(refusal(falcon({{"multi_query", false}, {"num_kv_heads", 2}})), "num_kv_heads is 2"));
  CHECK(contains(refusal(falcon(updated(newer, {{"num_kv_heads", 3}}))), "kv_heads: 3 does not divide heads 4"));
  CHECK(contains(refusal(falcon({{"partial_rotary_factor", 0.5}})), "partial_rotary_factor is 0.5"));
  CHECK(contains(refusal(falcon({{"n_embed", 32}})), "n_embed"));
  CHECK(contains(refusal(falcon({{"apply_residual_connection_post_layernorm", true}})), "start before the norm"));
}

TEST_CASE("falcon: null is false to transformers, also where silence is true") {
  const Block silent = architecture_of(falcon()).blocks[0];
  CHECK(silent.attention.kv_heads == 1);
  CHECK(silent.wiring == Wiring::parallel);
  const Block null = architecture_of(falcon({{"multi_query", nullptr}, {"parallel_attn", nullptr}})).blocks[0];
  CHECK(null.attention.kv_heads == 4);
  CHECK(null.wiring == Wiring::serial);
}

TEST_CASE("code beside a file is the family's own where its classes are") {
  const auto mapped = [](const char* value) {
    return falcon({{"auto_map", {{"AutoConfig", "configuration_falcon.FalconConfig"}, {"AutoModel", value}}}});
  };
  CHECK(refusal(mapped("modeling_falcon.FalconModel")).empty());
  CHECK(refusal(mapped("someone/falcon--modeling_falcon.FalconModel")).empty());
  CHECK(contains(refusal(mapped("modeling_falcon.RWModel")), "auto_map names \"modeling_falcon.RWModel\""));
  CHECK(contains(refusal(falcon({{"auto_map", 3}})), "auto_map"));
}
