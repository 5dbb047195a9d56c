// RoBERTa and ALBERT, which share their code with BERT, and OPT, which is wired in as many ways.

#include <fmt/format.h>

#include "pare/arch/presets.h"
#include "tests/checkpoint/family_samples.h"

using namespace pare;
using nlohmann::json;

namespace {

const char* roberta_tensors = R"(
roberta.embeddings.LayerNorm.bias 16
roberta.embeddings.LayerNorm.weight 16
roberta.embeddings.position_embeddings.weight 8,16
roberta.embeddings.token_type_embeddings.weight 2,16
roberta.embeddings.word_embeddings.weight 11,16
roberta.encoder.layer.0.attention.output.LayerNorm.bias 16
roberta.encoder.layer.0.attention.output.LayerNorm.weight 16
roberta.encoder.layer.0.attention.output.dense.bias 16
roberta.encoder.layer.0.attention.output.dense.weight 16,16
roberta.encoder.layer.0.attention.self.key.bias 16
roberta.encoder.layer.0.attention.self.key.weight 16,16
roberta.encoder.layer.0.attention.self.query.bias 16
roberta.encoder.layer.0.attention.self.query.weight 16,16
roberta.encoder.layer.0.attention.self.value.bias 16
roberta.encoder.layer.0.attention.self.value.weight 16,16
roberta.encoder.layer.0.intermediate.dense.bias 20
roberta.encoder.layer.0.intermediate.dense.weight 20,16
roberta.encoder.layer.0.output.LayerNorm.bias 16
roberta.encoder.layer.0.output.LayerNorm.weight 16
roberta.encoder.layer.0.output.dense.bias 16
roberta.encoder.layer.0.output.dense.weight 16,20
)";

const char* roberta_predictions = R"(
lm_head.dense.bias 16
lm_head.dense.weight 16,16
lm_head.layer_norm.bias 16
lm_head.layer_norm.weight 16
)";

const char* albert_embeddings = R"(
albert.embeddings.LayerNorm.bias 6
albert.embeddings.LayerNorm.weight 6
albert.embeddings.position_embeddings.weight 8,6
albert.embeddings.token_type_embeddings.weight 2,6
albert.embeddings.word_embeddings.weight 11,6
albert.encoder.embedding_hidden_mapping_in.bias 16
albert.encoder.embedding_hidden_mapping_in.weight 16,6
)";

const char* albert_block = R"(
attention.LayerNorm.bias 16
attention.LayerNorm.weight 16
attention.dense.bias 16
attention.dense.weight 16,16
attention.key.bias 16
attention.key.weight 16,16
attention.query.bias 16
attention.query.weight 16,16
attention.value.bias 16
attention.value.weight 16,16
ffn.bias 20
ffn.weight 20,16
ffn_output.bias 16
ffn_output.weight 16,20
full_layer_layer_norm.bias 16
full_layer_layer_norm.weight 16
)";

const char* albert_predictions = R"(
predictions.LayerNorm.bias 6
predictions.LayerNorm.weight 6
predictions.dense.bias 6
predictions.dense.weight 6,16
)";

const char* opt_tensors = R"(
model.decoder.embed_positions.weight 10,16
model.decoder.final_layer_norm.bias 16
model.decoder.final_layer_norm.weight 16
model.decoder.layers.0.fc1.bias 20
model.decoder.layers.0.fc1.weight 20,16
model.decoder.layers.0.fc2.bias 16
model.decoder.layers.0.fc2.weight 16,20
model.decoder.layers.0.final_layer_norm.bias 16
model.decoder.layers.0.final_layer_norm.weight 16
model.decoder.layers.0.self_attn.k_proj.bias 16
model.decoder.layers.0.self_attn.k_proj.weight 16,16
model.decoder.layers.0.self_attn.out_proj.bias 16
model.decoder.layers.0.self_attn.out_proj.weight 16,16
model.decoder.layers.0.self_attn.q_proj.bias 16
model.decoder.layers.0.self_attn.q_proj.weight 16,16
model.decoder.layers.0.self_attn.v_proj.bias 16
model.decoder.layers.0.self_attn.v_proj.weight 16,16
model.decoder.layers.0.self_attn_layer_norm.bias 16
model.decoder.layers.0.self_attn_layer_norm.weight 16
)";

const char* opt_projections = R"(
model.decoder.embed_tokens.weight 11,6
model.decoder.project_in.weight 16,6
model.decoder.project_out.weight 6,16
)";

// The lines whose names contain none of these.
std::string lacking(const std::string& lines, const std::vector<std::string>& parts) {
  std::string kept = "\n";
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    const bool lacks_all =
        std::all_of(parts.begin(), parts.end(), [&](const std::string& part) { return !contains(line, part); });
    kept += lacks_all ? line + "\n" : "";
  }
  return kept;
}

std::string albert_tensors(int groups, int inner) {
  std::string lines = albert_embeddings;
  for (int n = 0; n < groups * inner; ++n) {
    std::istringstream block(albert_block);
    for (std::string name, sizes; block >> name >> sizes;) {
      lines += fmt::format("albert.encoder.albert_layer_groups.{}.albert_layers.{}.{} {}\n", n / inner, n % inner, name,
                           sizes);
    }
  }
  return lines;
}

json small(const char* type, const char* kind, const json& more) {
  json config = {{"model_type", type}, {"architectures", {kind}},  {"hidden_size", 16},
                 {"vocab_size", 11},   {"num_hidden_layers", 1},   {"max_position_embeddings", 8},
                 {"num_labels", 3},    {"num_attention_heads", 2}, {"tie_word_embeddings", true}};
  config.update(more);
  return config;
}

json roberta(const char* kind, json more = json::object()) {
  more["intermediate_size"] = 20;
  return small("roberta", kind, more);
}

json albert(const char* kind, json more = json::object()) {
  more["intermediate_size"] = 20;
  more["embedding_size"] = 6;
  return small("albert", kind, more);
}

json shared(int layers, int groups, int inner) {
  return albert("AlbertModel",
                {{"num_hidden_layers", layers}, {"num_hidden_groups", groups}, {"inner_group_num", inner}});
}

json opt(const char* kind, json more = json::object()) {
  more["ffn_dim"] = 20;
  return small("opt", kind, more);
}

std::vector<FamilySample> samples() {
  const json untied = {{"tie_word_embeddings", false}};
  const std::string one_albert = albert_tensors(1, 1), opt_tokens = "model.decoder.embed_tokens.weight 11,16\n";
  return {
      {"roberta, tied", roberta("RobertaForMaskedLM"), with(roberta_tensors, roberta_predictions) + "lm_head.bias 11"},
      {"roberta, untied", roberta("RobertaForMaskedLM", untied),
       with(roberta_tensors, roberta_predictions) + "lm_head.decoder.bias 11\nlm_head.decoder.weight 11,16"},
      {"roberta, classifier", roberta("RobertaForSequenceClassification"),
       with(roberta_tensors,
            "classifier.dense.bias 16\nclassifier.dense.weight 16,16\nclassifier.out_proj.bias 3\n"
            "classifier.out_proj.weight 3,16")},
      {"roberta, bare with pooler", roberta("RobertaModel", {{"pad_token_id", 3}}),
       without(with(roberta_tensors, "roberta.pooler.dense.bias 16\nroberta.pooler.dense.weight 16,16"), "roberta.")},
      {"roberta, bare without pooler", roberta("RobertaModel"), without(roberta_tensors, "roberta.")},
      {"albert, tied", albert("AlbertForMaskedLM"), one_albert + albert_predictions + "predictions.bias 11"},
      {"albert, untied", albert("AlbertForMaskedLM", untied),
       one_albert + albert_predictions + "predictions.decoder.bias 11\npredictions.decoder.weight 11,6"},
      {"albert, classifier", albert("AlbertForSequenceClassification"),
       one_albert + "albert.pooler.bias 16\nalbert.pooler.weight 16,16\nclassifier.bias 3\nclassifier.weight 3,16"},
      {"albert, bare with pooler", albert("AlbertModel"),
       without(one_albert + "albert.pooler.bias 16\nalbert.pooler.weight 16,16", "albert.")},
      {"albert, two groups", shared(5, 2, 1), without(albert_tensors(2, 1), "albert.")},
      {"albert, two groups of three", shared(5, 2, 3), without(albert_tensors(2, 3), "albert.")},
      {"albert, two groups of three, nothing shared", shared(2, 2, 3), without(albert_tensors(2, 3), "albert.")},
      {"albert, three groups of two, nothing shared", shared(3, 3, 2), without(albert_tensors(3, 2), "albert.")},
      {"albert, one group of six, once", shared(1, 1, 6), without(albert_tensors(1, 6), "albert.")},
      {"opt, projections", opt("OPTForCausalLM", {{"word_embed_proj_dim", 6}}), with(opt_tensors, opt_projections)},
      {"opt, projections, untied", opt("OPTForCausalLM", {{"word_embed_proj_dim", 6}, {"tie_word_embeddings", false}}),
       with(opt_tensors, opt_projections) + "lm_head.weight 11,6"},
      {"opt, untied", opt("OPTForCausalLM", untied), opt_tensors + opt_tokens + "lm_head.weight 11,16"},
      {"opt, norms after", opt("OPTForCausalLM", {{"do_layer_norm_before", false}}),
       lacking(opt_tensors, {"decoder.final_layer_norm"}) + opt_tokens},
      {"opt, no final norm", opt("OPTForCausalLM", {{"_remove_final_layer_norm", true}}),
       lacking(opt_tensors, {"decoder.final_layer_norm"}) + opt_tokens},
      {"opt, norms without weights", opt("OPTForCausalLM", {{"layer_norm_elementwise_affine", false}}),
       lacking(opt_tensors, {"layer_norm"}) + opt_tokens},
      {"opt, no biases", opt("OPTForCausalLM", {{"enable_bias", false}}),
       lacking(opt_tensors, {"proj.bias", "fc1.bias", "fc2.bias"}) + opt_tokens},
      {"opt, bare", opt("OPTModel"), without(opt_tensors + opt_tokens, "model.")},
      {"opt, bare, projections", opt("OPTModel", {{"word_embed_proj_dim", 6}}),
       without(with(opt_tensors, opt_projections), "model.")},
  };
}

std::string refused(const json& config) {
  return message_of<InputError>([&] { architecture_of(config); });
}

}  // namespace

TEST_CASE("roberta, albert and opt: what is read and written back is what was there") {
  for (const FamilySample& sample : samples()) {
    check_round_trip(sample);
  }
}

TEST_CASE("albert: a layer runs the blocks of one group in turn, neighbours run the same group") {
  using Layers = std::vector<int64_t>;
  CHECK(architecture_of(shared(4, 1, 1)).layers == Layers{0, 0, 0, 0});
  CHECK(architecture_of(shared(5, 2, 1)).layers == Layers{0, 0, 0, 1, 1});
  CHECK(architecture_of(shared(3, 2, 2)).layers == Layers{0, 1, 0, 1, 2, 3});
  CHECK(architecture_of(shared(3, 3, 2)).layers == std::nullopt);
}

TEST_CASE("albert: the order of the blocks tells the groups, and one without groups is refused") {
  const Family& family = find_family("albert", "config.json");
  Architecture a = architecture_of(shared(3, 2, 2));
  const json written = json::parse(family_config(family, a).dump());
  CHECK(written["num_hidden_layers"] == 3);
  CHECK(written["num_hidden_groups"] == 2);
  CHECK(written["inner_group_num"] == 2);
  a.layers = {0, 3, 2, 1};
  CHECK(contains(message_of<InputError>([&] { family_config(family, a); }), "layers"));
}

TEST_CASE("albert: a configuration of other groups than the file has is refused, also where nothing is shared") {
  const Weights six = random_weights(without(albert_tensors(6, 1), "albert."));
  CHECK(open(shared(6, 6, 1), six).architecture.blocks.size() == 6);
  CHECK(contains(refusal(shared(3, 3, 2), six),
                 "ask for a tensor 'albert_layer_groups.2.albert_layers.1.ffn.weight', and there is none"));
}

TEST_CASE("the preset albert-base is what its configuration says") {
  Architecture a = architecture_of({{"model_type", "albert"},
                                    {"architectures", {"AlbertForMaskedLM"}},
                                    {"embedding_size", 128},
                                    {"hidden_act", "gelu_new"},
                                    {"hidden_size", 768},
                                    {"inner_group_num", 1},
                                    {"intermediate_size", 3072},
                                    {"layer_norm_eps", 1e-12},
                                    {"down_scale_factor", 1},
                                    {"max_position_embeddings", 512},
                                    {"net_structure_type", 0},
                                    {"num_attention_heads", 12},
                                    {"num_hidden_groups", 1},
                                    {"num_hidden_layers", 12},
                                    {"type_vocab_size", 2},
                                    {"vocab_size", 30000},
                                    {"classifier_dropout_prob", 0.1},
                                    {"pad_token_id", 0}});
  a.name = "albert-base";
  CHECK(a == find_preset("albert-base"));
}

TEST_CASE("the published configurations of roberta and opt are the presets") {
  const auto is_preset = [](const char* name, const char* text) {
    CAPTURE(std::string(name));
    Architecture read = architecture_of(json::parse(text));
    read.name = name;
    CHECK(read == find_preset(name).value());
  };
  is_preset("roberta-base", R"({"architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1,
      "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
      "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
      "model_type": "roberta", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
      "type_vocab_size": 1, "vocab_size": 50265})");
  is_preset("opt-125m", R"({"activation_dropout": 0.0, "activation_function": "relu",
      "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": true,
      "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0,
      "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 12,
      "pad_token_id": 1, "torch_dtype": "float16", "use_cache": true, "vocab_size": 50272,
      "word_embed_proj_dim": 768})");
  is_preset("opt-350m", R"({"_remove_final_layer_norm": false, "activation_dropout": 0.0, "activation_function": "relu",
      "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": false,
      "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 4096, "hidden_size": 1024, "init_std": 0.02, "layerdrop": 0.0,
      "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 16, "num_hidden_layers": 24,
      "pad_token_id": 1, "torch_dtype": "float16", "use_cache": true, "vocab_size": 50272,
      "word_embed_proj_dim": 512})");
}

TEST_CASE("roberta: positions begin in the row after that of the padding token") {
  const Architecture a = architecture_of(roberta("RobertaModel", {{"pad_token_id", 3}}));
  CHECK(a.embedding.position_pad == 3);
  CHECK(a.embedding.position_offset == 4);
  CHECK(a.context == 4);
  CHECK(contains(refused(roberta("RobertaModel", {{"pad_token_id", 7}})), "leaves no position after"));
  CHECK(contains(refused(roberta("RobertaModel", {{"pad_token_id", 11}})), "pad_token_id is 11; expected"));
  CHECK(contains(refused(roberta("RobertaModel", {{"pad_token_id", nullptr}})), "pad_token_id is null; expected"));
}

TEST_CASE("roberta, albert and opt: what changes the computation is refused by name") {
  CHECK(contains(refused(roberta("RobertaForCausalLM")), "RobertaForCausalLM"));
  CHECK(contains(refused(roberta("RobertaModel", {{"is_decoder", true}})), "is_decoder is true"));
  CHECK(contains(refused(roberta("RobertaModel", {{"add_cross_attention", true}})), "cross attention"));
  const json relative = {{"position_embedding_type", "relative_key"}};
  CHECK(contains(refused(roberta("RobertaModel", relative)), "position_embedding_type is \"relative_key\""));
  CHECK(contains(refused(albert("AlbertModel", relative)), "position_embedding_type is \"relative_key\""));
  CHECK(contains(refused(albert("AlbertForMultipleChoice")), "AlbertForMultipleChoice"));
  CHECK(contains(refused(shared(2, 3, 1)), "num_hidden_groups is 3; expected a whole number from 1 to 2"));
  CHECK(contains(refused(shared(2, 1, 1 << 14)), "inner_group_num is 16384; expected"));
  CHECK(contains(refused(opt("OPTForCausalLM", {{"is_causal", false}})), "is_causal is false"));
  CHECK(contains(refused(opt("OPTForCausalLM", {{"num_attention_heads", 3}})), "heads"));
}
