// Every family, on configurations and tensor names as transformers 5.22.2 saved them.

#include <fmt/format.h>

#include "tests/checkpoint/family_samples.h"

using namespace pare;
using nlohmann::json;

namespace {

const char* gpt2_tensors = R"(
transformer.h.0.attn.c_attn.bias 48
transformer.h.0.attn.c_attn.weight 16,48
transformer.h.0.attn.c_proj.bias 16
transformer.h.0.attn.c_proj.weight 16,16
transformer.h.0.ln_1.bias 16
transformer.h.0.ln_1.weight 16
transformer.h.0.ln_2.bias 16
transformer.h.0.ln_2.weight 16
transformer.h.0.mlp.c_fc.bias 64
transformer.h.0.mlp.c_fc.weight 16,64
transformer.h.0.mlp.c_proj.bias 16
transformer.h.0.mlp.c_proj.weight 64,16
transformer.ln_f.bias 16
transformer.ln_f.weight 16
transformer.wpe.weight 8,16
transformer.wte.weight 11,16
)";

const char* llama_tensors = R"(
lm_head.weight 11,16
model.embed_tokens.weight 11,16
model.layers.0.input_layernorm.weight 16
model.layers.0.mlp.down_proj.weight 16,20
model.layers.0.mlp.gate_proj.weight 20,16
model.layers.0.mlp.up_proj.weight 20,16
model.layers.0.post_attention_layernorm.weight 16
model.layers.0.self_attn.k_proj.weight 8,16
model.layers.0.self_attn.o_proj.weight 16,16
model.layers.0.self_attn.q_proj.weight 16,16
model.layers.0.self_attn.v_proj.weight 8,16
model.norm.weight 16
)";

const char* bert_tensors = R"(
bert.embeddings.LayerNorm.bias 16
bert.embeddings.LayerNorm.weight 16
bert.embeddings.position_embeddings.weight 8,16
bert.embeddings.token_type_embeddings.weight 2,16
bert.embeddings.word_embeddings.weight 11,16
bert.encoder.layer.0.attention.output.LayerNorm.bias 16
bert.encoder.layer.0.attention.output.LayerNorm.weight 16
bert.encoder.layer.0.attention.output.dense.bias 16
bert.encoder.layer.0.attention.output.dense.weight 16,16
bert.encoder.layer.0.attention.self.key.bias 16
bert.encoder.layer.0.attention.self.key.weight 16,16
bert.encoder.layer.0.attention.self.query.bias 16
bert.encoder.layer.0.attention.self.query.weight 16,16
bert.encoder.layer.0.attention.self.value.bias 16
bert.encoder.layer.0.attention.self.value.weight 16,16
bert.encoder.layer.0.intermediate.dense.bias 20
bert.encoder.layer.0.intermediate.dense.weight 20,16
bert.encoder.layer.0.output.LayerNorm.bias 16
bert.encoder.layer.0.output.LayerNorm.weight 16
bert.encoder.layer.0.output.dense.bias 16
bert.encoder.layer.0.output.dense.weight 16,20
)";

const char* bert_pooler = "bert.pooler.dense.bias 16\nbert.pooler.dense.weight 16,16\n";
const char* bert_predictions = R"(
cls.predictions.transform.LayerNorm.bias 16
cls.predictions.transform.LayerNorm.weight 16
cls.predictions.transform.dense.bias 16
cls.predictions.transform.dense.weight 16,16
)";

const char* vit_tensors = R"(
vit.embeddings.cls_token 1,1,16
vit.embeddings.patch_embeddings.projection.bias 16
vit.embeddings.patch_embeddings.projection.weight 16,3,4,4
vit.embeddings.position_embeddings 1,5,16
vit.encoder.layer.0.attention.attention.key.bias 16
vit.encoder.layer.0.attention.attention.key.weight 16,16
vit.encoder.layer.0.attention.attention.query.bias 16
vit.encoder.layer.0.attention.attention.query.weight 16,16
vit.encoder.layer.0.attention.attention.value.bias 16
vit.encoder.layer.0.attention.attention.value.weight 16,16
vit.encoder.layer.0.attention.output.dense.bias 16
vit.encoder.layer.0.attention.output.dense.weight 16,16
vit.encoder.layer.0.intermediate.dense.bias 20
vit.encoder.layer.0.intermediate.dense.weight 20,16
vit.encoder.layer.0.layernorm_after.bias 16
vit.encoder.layer.0.layernorm_after.weight 16
vit.encoder.layer.0.layernorm_before.bias 16
vit.encoder.layer.0.layernorm_before.weight 16
vit.encoder.layer.0.output.dense.bias 16
vit.encoder.layer.0.output.dense.weight 16,20
vit.layernorm.bias 16
vit.layernorm.weight 16
)";

json gpt2(const char* kind, json more = json::object()) {
  json config = {{"model_type", "gpt2"}, {"architectures", {kind}}, {"n_embd", 16},    {"n_head", 2},
                 {"n_layer", 1},         {"n_positions", 8},        {"vocab_size", 11}};
  config.update(more);
  return config;
}

json llama(const char* kind, json more = json::object()) {
  json config = {{"model_type", "llama"},         {"architectures", {kind}}, {"hidden_size", 16},
                 {"intermediate_size", 20},       {"head_dim", 8},           {"num_attention_heads", 2},
                 {"num_hidden_layers", 1},        {"vocab_size", 11},        {"num_key_value_heads", 1},
                 {"max_position_embeddings", 16}, {"rms_norm_eps", 1e-6}};
  config.update(more);
  return config;
}

json bert(const char* kind, json more = json::object()) {
  json config = {{"model_type", "bert"},       {"architectures", {kind}}, {"hidden_size", 16},
                 {"intermediate_size", 20},    {"vocab_size", 11},        {"max_position_embeddings", 8},
                 {"num_attention_heads", 2},   {"num_hidden_layers", 1},  {"type_vocab_size", 2},
                 {"tie_word_embeddings", true}};
  config.update(more);
  return config;
}

json vit(const char* kind, json more = json::object()) {
  json config = {{"model_type", "vit"},      {"architectures", {kind}},
                 {"hidden_size", 16},        {"intermediate_size", 20},
                 {"image_size", 8},          {"patch_size", 4},
                 {"num_attention_heads", 2}, {"num_hidden_layers", 1},
                 {"qkv_bias", true},         {"id2label", {{"0", "a"}, {"1", "b"}, {"2", "c"}}}};
  config.update(more);
  return config;
}

std::vector<FamilySample> samples() {
  const std::string bare_bert = without(bert_tensors, "bert.");
  const json dynamic = {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}};
  return {
      {"gpt2, tied", gpt2("GPT2LMHeadModel"), gpt2_tensors},
      {"gpt2, untied", gpt2("GPT2LMHeadModel", {{"tie_word_embeddings", false}}),
       with(gpt2_tensors, "lm_head.weight 11,16")},
      {"gpt2, bare", gpt2("GPT2Model"), without(gpt2_tensors, "transformer.")},
      {"gpt2, no scale", gpt2("GPT2LMHeadModel", {{"scale_attn_weights", false}}), gpt2_tensors},
      {"gpt2, scale by layer", gpt2("GPT2LMHeadModel", {{"scale_attn_by_inverse_layer_idx", true}}), gpt2_tensors},
      {"llama, untied", llama("LlamaForCausalLM"), llama_tensors},
      {"llama, dynamic rope", llama("LlamaForCausalLM", dynamic), llama_tensors},
      {"llama, bare", llama("LlamaModel"),
       without(std::string(llama_tensors).erase(1, std::string("lm_head.weight 11,16\n").size()), "model.")},
      {"bert, bare with pooler", bert("BertModel"), without(with(bert_tensors, bert_pooler), "bert.")},
      {"bert, bare without pooler", bert("BertModel"), bare_bert},
      {"bert, tied", bert("BertForMaskedLM"), with(bert_tensors, bert_predictions) + "cls.predictions.bias 11"},
      {"bert, untied", bert("BertForMaskedLM", {{"tie_word_embeddings", false}}),
       with(bert_tensors, bert_predictions) + "cls.predictions.decoder.bias 11\ncls.predictions.decoder.weight 11,16"},
      {"bert, classifier", bert("BertForSequenceClassification", {{"num_labels", 3}}),
       with(bert_tensors, bert_pooler) + "classifier.bias 3\nclassifier.weight 3,16"},
      {"vit, classifier", vit("ViTForImageClassification"),
       with(vit_tensors, "classifier.bias 3\nclassifier.weight 3,16")},
      {"vit, bare with pooler", vit("ViTModel", {{"pooler_act", "gelu"}}),
       without(with(vit_tensors, "vit.pooler.dense.bias 16\nvit.pooler.dense.weight 16,16"), "vit.")},
      {"vit, bare without pooler", vit("ViTModel"), without(vit_tensors, "vit.")},
  };
}

}  // namespace

TEST_CASE("reading and writing back gives the same architecture, names and bytes") {
  for (const FamilySample& sample : samples()) {
    check_round_trip(sample);
  }
}

TEST_CASE("several layers, rope kinds and head widths survive writing the configuration") {
  const json three = {{"n_layer", 3}};
  for (bool scaled : {true, false}) {
    for (bool by_layer : {true, false}) {
      json more = three;
      more["scale_attn_weights"] = scaled;
      more["scale_attn_by_inverse_layer_idx"] = by_layer;
      CHECK(survives(gpt2("GPT2LMHeadModel", more)));
    }
  }
  for (const json& scaling :
       {json{{"rope_type", "linear"}, {"factor", 3.5}},
        json{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 4}, {"truncate", false}},
        json{{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 16}, {"mscale", 0.5}, {"mscale_all_dim", 0.75}},
        json{{"rope_type", "longrope"}, {"short_factor", {1, 2, 3, 4}}, {"long_factor", {5, 6, 7, 8}}},
        json{{"rope_type", "llama3"},
             {"factor", 8.0},
             {"low_freq_factor", 1.5},
             {"high_freq_factor", 3.0},
             {"original_max_position_embeddings", 7}}}) {
    CAPTURE(scaling.dump());
    CHECK(survives(llama("LlamaForCausalLM", {{"rope_scaling", scaling}, {"attention_bias", true}})));
  }
  CHECK(survives(vit("ViTModel", {{"head_dim", 12}, {"qkv_bias", false}})));
}

TEST_CASE("gpt2 keeps queries, keys and values in one transposed matrix, which is read once") {
  Weights stored = random_weights(gpt2_tensors);
  const at::Tensor fused = stored["transformer.h.0.attn.c_attn.weight"].load();
  int reads = 0;
  stored["transformer.h.0.attn.c_attn.weight"] =
      Weight::leaf("c_attn", Dtype::f32, fused.sizes().vec(), [&reads, fused] {
        ++reads;
        return fused;
      });
  const Opened model = open(gpt2("GPT2LMHeadModel"), stored);
  CHECK(reads == 0);
  const auto piece = [&](const char* name) {
    return model.weights.at(fmt::format("blocks.0.attention.{}.weight", name)).load();
  };
  for (int round = 1; round <= 2; ++round) {
    CHECK(at::equal(piece("key"), fused.narrow(1, 16, 16).t()));
    CHECK(at::equal(piece("query"), fused.narrow(1, 0, 16).t()));
    CHECK(at::equal(piece("value"), fused.narrow(1, 32, 16).t()));
    CHECK(reads == round);
  }
  const at::Tensor bias = stored["transformer.h.0.attn.c_attn.bias"].load();
  CHECK(at::equal(model.weights.at("blocks.0.attention.value.bias").load(), bias.narrow(0, 32, 16)));
  const at::Tensor up = stored["transformer.h.0.mlp.c_fc.weight"].load();
  CHECK(at::equal(model.weights.at("blocks.0.mlp.up.weight").load(), up.t()));
}

TEST_CASE("stacked layouts interleave by group") {
  // As in GPT-NeoX: two heads, of each the query, key and value rows in turn.
  const at::Tensor stored = at::arange(12).view({12, 1});
  const Layout layout = stacked({2, 2, 2}, 2);
  const std::vector<at::Tensor> pieces = layout.split(stored);
  CHECK(at::equal(pieces.at(0).flatten(), at::tensor({0, 1, 6, 7})));
  CHECK(at::equal(pieces.at(1).flatten(), at::tensor({2, 3, 8, 9})));
  CHECK(at::equal(pieces.at(2).flatten(), at::tensor({4, 5, 10, 11})));
  CHECK(at::equal(layout.join(pieces), stored));
}

TEST_CASE("both spellings of the base prefix load, and older names of norms") {
  const Weights full = random_weights(gpt2_tensors);
  Weights bare;
  for (const auto& [name, weight] : full) {
    bare[name.substr(std::string("transformer.").size())] = weight;
  }
  bare["h.0.attn.bias"] = weight_of(at::ones({1, 1, 8, 8}));
  CHECK(refusal(gpt2("GPT2LMHeadModel"), bare).empty());
  CHECK(refusal(gpt2("GPT2Model"), full).empty());

  Weights stored = random_weights(with(bert_tensors, bert_predictions) + "cls.predictions.bias 11\n" + bert_pooler +
                                  "cls.seq_relationship.weight 2,16\ncls.seq_relationship.bias 2");
  const at::Tensor gain = stored["bert.embeddings.LayerNorm.weight"].load();
  auto renamed = stored.extract("bert.embeddings.LayerNorm.weight");
  renamed.key() = "bert.embeddings.LayerNorm.gamma";
  stored.insert(std::move(renamed));
  CHECK(at::equal(open(bert("BertForMaskedLM"), stored).weights.at("embed.norm.weight").load(), gain));
  stored["bert.embeddings.LayerNorm.weight"] = weight_of(gain);
  CHECK(contains(refusal(bert("BertForMaskedLM"), stored), "two spellings of one name"));
}

TEST_CASE("a tied head that is stored too is a head of its own where it differs") {
  Weights stored = random_weights(gpt2_tensors);
  const at::Tensor table = stored["transformer.wte.weight"].load();
  stored["lm_head.weight"] = weight_of(table.clone());
  CHECK(at::equal(open(gpt2("GPT2LMHeadModel"), stored).weights.at("embed.token.weight").load(), table));

  at::Tensor other = table.clone();
  other[3][5] += 1;
  stored["lm_head.weight"] = weight_of(other);
  const Opened tied = open(gpt2("GPT2LMHeadModel"), stored);
  CHECK(untie_if_different(*tied.family, tied.architecture, stored, "model").size() == 1);
  json untied = gpt2("GPT2LMHeadModel");
  untied["tie_word_embeddings"] = false;
  CHECK(at::equal(open(untied, stored).weights.at("head.weight").load(), other));
  CHECK(at::equal(open(untied, stored).weights.at("embed.token.weight").load(), table));
  stored["lm_head.weight"] = weight_of(table.clone());
  CHECK(untie_if_different(*tied.family, tied.architecture, stored, "model").empty());

  stored["lm_head.weight"] = weight_of(at::zeros({11, 15}));
  CHECK(contains(refusal(gpt2("GPT2LMHeadModel"), stored), "'lm_head.weight', which is tied to it, is F32 [11, 15]"));

  stored.erase("transformer.wte.weight");
  stored["lm_head.weight"] = weight_of(table);
  CHECK(at::equal(open(gpt2("GPT2LMHeadModel"), stored).weights.at("embed.token.weight").load(), table));
}

TEST_CASE("missing, unexpected and wrongly shaped tensors are all listed") {
  Weights stored = random_weights(llama_tensors);
  stored.erase("model.norm.weight");
  stored.erase("lm_head.weight");
  stored["model.layers.0.mlp.up_proj.weight"] = weight_of(at::zeros({16, 20}));
  stored["model.layers.1.mlp.up_proj.qweight"] = weight_of(at::zeros({1}));
  const std::string message = refusal(llama("LlamaForCausalLM"), stored);
  CHECK(contains(message, "2 tensors are missing: 'model.norm.weight', 'lm_head.weight'"));
  CHECK(contains(message, "a tensor is unexpected: 'model.layers.1.mlp.up_proj.qweight'"));
  CHECK(contains(message, "tensor 'model.layers.0.mlp.up_proj.weight' has shape [16, 20], expected [20, 16]"));
}

TEST_CASE("what a family cannot express is listed") {
  const Family& family = find_family("llama", "config.json");
  Architecture a = read_architecture(family, llama("LlamaForCausalLM"), "config.json");
  a.blocks[0].attention.skip = false;
  a.blocks[0].mlp->norm.reset();
  const std::string message = message_of<InputError>([&] { family_config(family, a); });
  CHECK(contains(message, "blocks[0].attention.skip is false, but the family can only say true"));
  CHECK(contains(message, "blocks[0].mlp.norm"));
}
