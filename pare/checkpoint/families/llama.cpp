// Llama: rotary positions, RMSNorm before each sublayer, grouped key/value heads, gated MLP.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/checkpoint/config.h"
#include "pare/checkpoint/family.h"

namespace pare {

namespace {

Architecture read_config(Config& config) {
  Architecture a;
  a.name = "llama";
  a.task = config.task({{"LlamaForCausalLM", Task::causal_lm}, {"LlamaModel", Task::encoder}});
  a.width = config.integer({"hidden_size"}, 4096, 1, most::width);
  a.vocab = config.integer({"vocab_size"}, 32000, 1, most::rows);
  a.context = config.integer({"max_position_embeddings"}, 2048, 1, most::rows);
  const Norm norm = rms_norm(config.epsilon("rms_norm_eps", 1e-6));
  a.final_norm = norm;
  a.head.tied = config.flag("tie_word_embeddings", false) && a.task == Task::causal_lm;

  Block& block = a.blocks.emplace_back();
  block.repeat = config.integer({"num_hidden_layers"}, 32, 1, most::layers);
  Attention& attention = block.attention;
  attention.heads = config.integer({"num_attention_heads"}, 32, 1, most::heads);
  attention.kv_heads = config.integer({"num_key_value_heads"}, attention.heads, 1, most::heads);
  if (!config.has("head_dim") && a.width % attention.heads != 0) {
    config.problem(fmt::format("num_attention_heads {} does not divide hidden_size {}, and there is no head_dim",
                               attention.heads, a.width));
  }
  attention.head_width = config.integer({"head_dim"}, a.width / attention.heads, 1, most::width);
  const bool biased = config.flag("attention_bias", false);
  attention.bias = {biased, biased, biased, biased};
  attention.rope = read_rope(config, {.head_width = attention.head_width, .context = a.context});
  attention.norm = norm;
  Mlp& mlp = block.mlp.emplace();
  mlp.width = config.integer({"intermediate_size"}, 11008, 1, 4 * most::width);
  mlp.activation = config.activation("hidden_act", "silu");
  mlp.gated = true;
  const bool mlp_biased = config.flag("mlp_bias", false);
  mlp.bias = {mlp_biased, mlp_biased, mlp_biased};
  mlp.norm = norm;

  config.only("is_causal", true, "Llama looks back only");
  // pretraining_tp only slices the same products.
  config.neutral({"is_decoder", "pretraining_tp"});
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  const std::vector<Block> blocks = expanded_blocks(a);
  const Attention& attention = blocks.front().attention;
  const Mlp mlp = blocks.front().mlp.value_or(Mlp{});
  nlohmann::ordered_json config = {{"architectures", {a.task == Task::encoder ? "LlamaModel" : "LlamaForCausalLM"}},
                                   {"model_type", "llama"},
                                   {"vocab_size", a.vocab},
                                   {"hidden_size", a.width},
                                   {"intermediate_size", mlp.width},
                                   {"num_hidden_layers", blocks.size()},
                                   {"num_attention_heads", attention.heads},
                                   {"num_key_value_heads", attention.kv_heads},
                                   {"head_dim", attention.head_width},
                                   {"hidden_act", hugging_face_activation(mlp.activation)},
                                   {"max_position_embeddings", a.context},
                                   {"rms_norm_eps", a.final_norm.value_or(Norm{}).epsilon},
                                   {"attention_bias", attention.bias.query},
                                   {"mlp_bias", mlp.bias.up},
                                   {"tie_word_embeddings", a.head.tied}};
  write_rope(config, attention.rope.value_or(Rope{.width = attention.head_width}), attention.head_width);
  return config;
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  binder.module("model.embed_tokens", {"embed.token"});
  const size_t blocks = expanded_blocks(a).size();
  for (size_t n = 0; n < blocks; ++n) {
    const std::string theirs = fmt::format("model.layers.{}.", n);
    const std::string attention = fmt::format("blocks.{}.attention.", n), mlp = fmt::format("blocks.{}.mlp.", n);
    binder.module(theirs + "input_layernorm", {attention + "norm"});
    binder.module(theirs + "self_attn.q_proj", {attention + "query"});
    binder.module(theirs + "self_attn.k_proj", {attention + "key"});
    binder.module(theirs + "self_attn.v_proj", {attention + "value"});
    binder.module(theirs + "self_attn.o_proj", {attention + "output"});
    binder.module(theirs + "post_attention_layernorm", {mlp + "norm"});
    binder.module(theirs + "mlp.up_proj", {mlp + "up"});
    binder.module(theirs + "mlp.gate_proj", {mlp + "gate"});
    binder.module(theirs + "mlp.down_proj", {mlp + "down"});
  }
  binder.module("model.norm", {"norm"});
  binder.module("lm_head", {"head"});
  if (a.head.tied) {
    binder.copy("lm_head.weight", "embed.token.weight");
  }
  return binder.take();
}

}  // namespace

const Family& family_llama() {
  static const Family family = {
      .model_type = "llama",
      .base_prefix = "model.",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
      .ignored = {"model.layers.*.rotary_emb.inv_freq"},
  };
  return family;
}

}  // namespace pare
