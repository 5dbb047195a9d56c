// Which keys and tensors ggml's converter writes for the families that pare has.

#include <fmt/format.h>

#include <algorithm>

#include "pare/checkpoint/gguf_model.h"

namespace pare {

namespace {

using Keys = std::vector<GgufKey>;

Keys with(Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

const Keys sizes = {
    {"block_count", "num_hidden_layers"},
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"attention.head_count", "num_attention_heads"},
};
const Keys grouped = with(sizes, {{"attention.head_count_kv", "num_key_value_heads"}});
const Keys llama_keys = with(grouped, {{"attention.layer_norm_rms_epsilon", "rms_norm_eps", GgufKind::f32},
                                       {"attention.key_length", "head_dim"}});

std::vector<GgufRow> llama_rows(GgufChange queries, GgufChange keys, GgufChange norms) {
  return {
      {"token_embd", "model.embed_tokens"},
      {"output_norm", "model.norm", norms},
      {"output", "lm_head"},
      {"blk.{}.attn_norm", "model.layers.{}.input_layernorm", norms},
      {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj", queries},
      {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj", keys},
      {"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
      {"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
      {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"},
      {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"},
      {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm", norms},
      {"blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
      {"blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
      {"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"},
  };
}

const std::vector<GgufRow> plain_llama_rows = llama_rows(GgufChange::none, GgufChange::none, GgufChange::none);
const std::vector<GgufRow> gemma_rows = llama_rows(GgufChange::none, GgufChange::none, GgufChange::plus_one);

std::vector<GgufRow> gemma2_rows() {
  std::vector<GgufRow> rows = gemma_rows;
  for (GgufRow& row : rows) {
    if (row.theirs == "blk.{}.ffn_norm") {
      row.family = "model.layers.{}.pre_feedforward_layernorm";
    }
  }
  rows.push_back({"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm", GgufChange::plus_one});
  rows.push_back({"blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm", GgufChange::plus_one});
  return rows;
}

// The file has biases or has none, and says so nowhere else.
void llama_biases(GgufReading& reading) {
  reading.config["attention_bias"] = reading.has("blk.0.attn_q.bias");
  if (reading.config["model_type"] == "llama") {
    reading.config["mlp_bias"] = reading.has("blk.0.ffn_up.bias");
  }
}

// ggml's program divides scores by the root of the width of a head, but in the one size of 46 layers by that of the
// stream's share: the metadata do not say it.
void gemma2_scale(GgufReading& reading) {
  const std::optional<int64_t> width = reading.whole("embedding_length"), heads = reading.whole("attention.head_count"),
                               head_width = reading.whole("attention.key_length");
  if (width && heads && *heads > 0) {
    reading.config["query_pre_attn_scalar"] =
        reading.whole("block_count") == 46 ? *width / *heads : head_width.value_or(*width / *heads);
  }
}

void falcon_generation(GgufReading& reading) {
  nlohmann::json& config = reading.config;
  const bool two_norms = reading.has("blk.0.attn_norm_2.weight");
  const std::optional<int64_t> heads = reading.whole("attention.head_count"),
                               kv_heads = reading.whole("attention.head_count_kv");
  const bool newer = two_norms || (kv_heads && *kv_heads != 1 && kv_heads != heads);
  config["new_decoder_architecture"] = newer;
  config["multi_query"] = !newer && kv_heads == 1;
  config["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
  config["parallel_attn"] = true;
  config["bias"] = reading.has("blk.0.attn_qkv.bias");
}

void starcoder2_biases(GgufReading& reading) {
  reading.config["use_bias"] = reading.has("blk.0.attn_q.bias");
}

void neox_biases(GgufReading& reading) {
  reading.config["attention_bias"] = reading.has("blk.0.attn_qkv.bias");
}

// How many kinds of sentences there are, only the table says.
void bert_types(GgufReading& reading) {
  const auto found = reading.tensors.find("token_types.weight");
  if (found != reading.tensors.end() && found->second.size() == 2) {
    reading.config["type_vocab_size"] = found->second.front();
  }
}

std::vector<GgufRow> falcon_rows() {
  return {
      {"token_embd", "transformer.word_embeddings"},
      {"output_norm", "transformer.ln_f"},
      {"output", "lm_head"},
      {"blk.{}.attn_norm", "transformer.h.{}.ln_mlp", GgufChange::none, "blk.0.attn_norm_2.weight"},
      {"blk.{}.attn_norm_2", "transformer.h.{}.ln_attn"},
      {"blk.{}.attn_norm", "transformer.h.{}.input_layernorm"},
      {"blk.{}.attn_qkv", "transformer.h.{}.self_attention.query_key_value", GgufChange::stacked},
      {"blk.{}.attn_output", "transformer.h.{}.self_attention.dense"},
      {"blk.{}.ffn_up", "transformer.h.{}.mlp.dense_h_to_4h"},
      {"blk.{}.ffn_down", "transformer.h.{}.mlp.dense_4h_to_h"},
  };
}

std::vector<GgufRow> phi_rows() {
  return {
      {"token_embd", "model.embed_tokens"},
      {"output_norm", "model.final_layernorm"},
      {"output", "lm_head"},
      {"blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
      {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"},
      {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"},
      {"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
      {"blk.{}.attn_output", "model.layers.{}.self_attn.dense"},
      {"blk.{}.ffn_up", "model.layers.{}.mlp.fc1"},
      {"blk.{}.ffn_down", "model.layers.{}.mlp.fc2"},
  };
}

std::vector<GgufRow> neox_rows() {
  return {
      {"token_embd", "gpt_neox.embed_in"},
      {"output_norm", "gpt_neox.final_layer_norm"},
      {"output", "embed_out"},
      {"blk.{}.attn_norm", "gpt_neox.layers.{}.input_layernorm"},
      {"blk.{}.attn_qkv", "gpt_neox.layers.{}.attention.query_key_value", GgufChange::stacked},
      {"blk.{}.attn_output", "gpt_neox.layers.{}.attention.dense"},
      {"blk.{}.ffn_norm", "gpt_neox.layers.{}.post_attention_layernorm"},
      {"blk.{}.ffn_up", "gpt_neox.layers.{}.mlp.dense_h_to_4h"},
      {"blk.{}.ffn_down", "gpt_neox.layers.{}.mlp.dense_4h_to_h"},
  };
}

std::vector<GgufRow> gpt2_rows() {
  return {
      {"token_embd", "transformer.wte"},
      {"position_embd", "transformer.wpe"},
      {"output_norm", "transformer.ln_f"},
      {"output", "lm_head"},
      {"blk.{}.attn_norm", "transformer.h.{}.ln_1"},
      {"blk.{}.attn_qkv", "transformer.h.{}.attn.c_attn", GgufChange::transposed},
      {"blk.{}.attn_output", "transformer.h.{}.attn.c_proj", GgufChange::transposed},
      {"blk.{}.ffn_norm", "transformer.h.{}.ln_2"},
      {"blk.{}.ffn_up", "transformer.h.{}.mlp.c_fc", GgufChange::transposed},
      {"blk.{}.ffn_down", "transformer.h.{}.mlp.c_proj", GgufChange::transposed},
  };
}

std::vector<GgufRow> starcoder2_rows() {
  std::vector<GgufRow> rows = plain_llama_rows;
  std::erase_if(rows, [](const GgufRow& row) {
    return row.theirs == "blk.{}.ffn_gate" || row.theirs.ends_with("_q_norm") || row.theirs.ends_with("_k_norm");
  });
  for (GgufRow& row : rows) {
    row.family = row.theirs == "blk.{}.ffn_up"     ? "model.layers.{}.mlp.c_fc"
                 : row.theirs == "blk.{}.ffn_down" ? "model.layers.{}.mlp.c_proj"
                                                   : row.family;
  }
  return rows;
}

// Without its pooler and without the heads of its pre-training, which the converter leaves out.
std::vector<GgufRow> bert_rows() {
  return {
      {"token_embd", "embeddings.word_embeddings"},
      {"position_embd", "embeddings.position_embeddings"},
      {"token_types", "embeddings.token_type_embeddings"},
      {"token_embd_norm", "embeddings.LayerNorm"},
      {"blk.{}.attn_q", "encoder.layer.{}.attention.self.query"},
      {"blk.{}.attn_k", "encoder.layer.{}.attention.self.key"},
      {"blk.{}.attn_v", "encoder.layer.{}.attention.self.value"},
      {"blk.{}.attn_output", "encoder.layer.{}.attention.output.dense"},
      {"blk.{}.attn_output_norm", "encoder.layer.{}.attention.output.LayerNorm"},
      {"blk.{}.ffn_up", "encoder.layer.{}.intermediate.dense"},
      {"blk.{}.ffn_down", "encoder.layer.{}.output.dense"},
      {"blk.{}.layer_output_norm", "encoder.layer.{}.output.LayerNorm"},
  };
}

}  // namespace

const std::vector<GgufFamily>& gguf_families() {
  static const std::vector<GgufFamily> families = {
      {.architecture = "llama",
       .model_type = "llama",
       .model_class = "LlamaForCausalLM",
       .keys = llama_keys,
       .tensors = llama_rows(GgufChange::query_rows, GgufChange::key_rows, GgufChange::none),
       .finish = llama_biases,
       .program = {.rope_factors = true}},
      {.architecture = "qwen2",
       .model_type = "qwen2",
       .model_class = "Qwen2ForCausalLM",
       .keys = llama_keys,
       .tensors = plain_llama_rows,
       .program = {.own_head_width = false}},
      {.architecture = "qwen3",
       .model_type = "qwen3",
       .model_class = "Qwen3ForCausalLM",
       .keys = llama_keys,
       .tensors = plain_llama_rows,
       .finish = llama_biases,
       .program = {.lacks = {"blk.{}.attn_output.bias"}}},
      {.architecture = "gemma",
       .model_type = "gemma",
       .model_class = "GemmaForCausalLM",
       .keys = llama_keys,
       .tensors = gemma_rows,
       .program = {.lacks = {"output.weight", "blk.{}.attn_output.bias"}}},
      {.architecture = "gemma2",
       .model_type = "gemma2",
       .model_class = "Gemma2ForCausalLM",
       .keys = with(llama_keys, {{"attention.sliding_window", "sliding_window"},
                                 {"attn_logit_softcapping", "attn_logit_softcapping", GgufKind::f32},
                                 {"final_logit_softcapping", "final_logit_softcapping", GgufKind::f32}}),
       .tensors = gemma2_rows(),
       .finish = gemma2_scale,
       .program = {.lacks = {"output.weight", "blk.{}.attn_output.bias"}}},
      {.architecture = "gpt2",
       .model_type = "gpt2",
       .model_class = "GPT2LMHeadModel",
       .keys = {{"block_count", "n_layer"},
                {"context_length", "n_positions"},
                {"embedding_length", "n_embd"},
                {"feed_forward_length", "n_inner"},
                {"attention.head_count", "n_head"},
                {"attention.layer_norm_epsilon", "layer_norm_epsilon", GgufKind::f32}},
       .tensors = gpt2_rows()},
      {.architecture = "gptneox",
       .model_type = "gpt_neox",
       .model_class = "GPTNeoXForCausalLM",
       .keys = with(sizes, {{"attention.layer_norm_epsilon", "layer_norm_eps", GgufKind::f32},
                            {"attention.key_length", "head_dim"},
                            {"use_parallel_residual", "use_parallel_residual", GgufKind::boolean}}),
       .tensors = neox_rows(),
       .finish = neox_biases,
       .program = {.asks_for = {"output.weight", "blk.{}.attn_qkv.bias", "blk.{}.attn_output.bias"}}},
      {.architecture = "falcon",
       .model_type = "falcon",
       .model_class = "FalconForCausalLM",
       .keys = {{"block_count", "num_hidden_layers"},
                {"context_length", "max_position_embeddings"},
                {"embedding_length", "hidden_size"},
                {"feed_forward_length", "ffn_hidden_size"},
                {"attention.head_count", "num_attention_heads"},
                {"attention.head_count_kv", "num_kv_heads"},
                {"attention.key_length", "head_dim"},
                {"attention.layer_norm_epsilon", "layer_norm_epsilon", GgufKind::f32}},
       .tensors = falcon_rows(),
       .finish = falcon_generation,
       .constants = {{"tensor_data_layout", GgufKind::string, "jploski"}},
       .program = {.lacks = {"blk.{}.attn_qkv.bias", "blk.{}.attn_output.bias", "blk.{}.ffn_up.bias",
                             "blk.{}.ffn_down.bias"}}},
      {.architecture = "phi2",
       .model_type = "phi",
       .model_class = "PhiForCausalLM",
       .keys = with(grouped, {{"attention.layer_norm_epsilon", "layer_norm_eps", GgufKind::f32},
                              {"attention.key_length", "head_dim"}}),
       .tensors = phi_rows(),
       .program = {.asks_for = {"output.weight"}, .own_head_width = false}},
      {.architecture = "starcoder2",
       .model_type = "starcoder2",
       .model_class = "Starcoder2ForCausalLM",
       .keys = with(grouped, {{"attention.layer_norm_epsilon", "norm_epsilon", GgufKind::f32},
                              {"attention.key_length", "head_dim"}}),
       .tensors = starcoder2_rows(),
       .finish = starcoder2_biases,
       .program = {.asks_for = {"blk.{}.attn_output.bias", "blk.{}.ffn_up.bias", "blk.{}.ffn_down.bias"},
                   .own_head_width = false}},
      {.architecture = "bert",
       .model_type = "bert",
       .model_class = "BertModel",
       .keys = with(sizes, {{"attention.layer_norm_epsilon", "layer_norm_eps", GgufKind::f32}}),
       .tensors = bert_rows(),
       .finish = bert_types,
       .constants = {{"attention.causal", GgufKind::boolean, false}}},
  };
  return families;
}

}  // namespace pare
