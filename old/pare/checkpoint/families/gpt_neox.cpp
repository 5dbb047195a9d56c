// GPT-NeoX and Pythia: partly rotary heads, LayerNorm before each sublayer, both sublayers side by side or in turn, one
// fused matrix in which each head has its query, key and value rows together.

#include <nlohmann/json.hpp>

#include "pare/checkpoint/config.h"
#include "pare/checkpoint/families/shared/decoder_family.h"

namespace pare {

namespace {

constexpr DecoderHeads heads_of_neox = {
    .classes = "GPTNeoX", .base_prefix = "gpt_neox.", .language_model = "embed_out", .tokens = "classifier"};

Architecture read_config(Config& config) {
  Architecture a;
  a.name = "gpt_neox";
  read_decoder_head(config, a, heads_of_neox, false);
  a.width = config.integer({"hidden_size"}, 6144, 1, most::width);
  a.vocab = config.integer({"vocab_size"}, 50432, 1, most::rows);
  a.context = config.integer({"max_position_embeddings"}, 2048, 1, most::rows);
  const Norm norm = layer_norm(config.epsilon("layer_norm_eps", 1e-5));
  a.final_norm = norm;

  const int64_t layers = config.integer({"num_hidden_layers"}, 44, 1, most::layers);
  Block block;
  block.wiring = config.flag("use_parallel_residual", true) ? Wiring::parallel : Wiring::serial;
  Attention& attention = block.attention;
  attention.heads = attention.kv_heads = config.integer({"num_attention_heads"}, 64, 1, most::heads);
  attention.head_width = equal_head_width(config, a.width, attention.heads);
  const bool biased = config.flag("attention_bias", true);
  attention.bias = {biased, biased, biased, biased};
  attention.rope = read_rope(config, {.head_width = attention.head_width,
                                      .context = a.context,
                                      .partial = 0.25,
                                      .theta_key = "rotary_emb_base",
                                      .partial_key = "rotary_pct"});
  attention.norm = norm;
  Mlp& mlp = block.mlp.emplace();
  DenseMlp& dense = mlp.kind.emplace<DenseMlp>();
  dense.width = config.integer({"intermediate_size"}, 24576, 1, 4 * most::width);
  dense.activation = config.activation("hidden_act", "gelu");
  dense.bias = {.up = true, .down = true};
  mlp.norm = norm;
  a.blocks.assign(static_cast<size_t>(layers), block);

  config.only("head_dim", attention.head_width, "the heads of GPT-NeoX divide its width");
  config.only("is_causal", true, "GPT-NeoX looks back only");
  config.neutral({"is_decoder"});
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  const Block block = a.blocks.front();
  const Attention& attention = block.attention;
  const DenseMlp mlp = dense_mlp(block);
  nlohmann::ordered_json config = write_decoder_head(a, heads_of_neox);
  config.update(nlohmann::ordered_json{{"model_type", "gpt_neox"},
                                       {"vocab_size", a.vocab},
                                       {"hidden_size", a.width},
                                       {"intermediate_size", mlp.width},
                                       {"num_hidden_layers", a.blocks.size()},
                                       {"num_attention_heads", attention.heads},
                                       {"hidden_act", hugging_face_activation(mlp.activation)},
                                       {"max_position_embeddings", a.context},
                                       {"layer_norm_eps", a.final_norm.value_or(Norm{}).epsilon},
                                       {"attention_bias", attention.bias.query},
                                       {"use_parallel_residual", block.wiring == Wiring::parallel}});
  write_rope(config, attention.rope.value_or(Rope{.width = attention.head_width}), attention.head_width,
             PartialRope::always);
  config["rotary_emb_base"] = config["rope_theta"];
  config["rotary_pct"] = config["partial_rotary_factor"];
  return config;
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  binder.module("gpt_neox.embed_in", {"embed.token"});
  bind_blocks(binder, a, "gpt_neox.layers",
              {{"input_layernorm", {"attention.norm"}},
               {"attention.query_key_value", {"attention.query", "attention.key", "attention.value"}},
               {"attention.dense", {"attention.output"}},
               {"post_attention_layernorm", {"mlp.norm"}},
               {"mlp.dense_h_to_4h", {"mlp.up"}},
               {"mlp.dense_4h_to_h", {"mlp.down"}}});
  binder.module("gpt_neox.final_layer_norm", {"norm"});
  bind_decoder_head(binder, a, heads_of_neox);
  return binder.take();
}

}  // namespace

const Family& family_gpt_neox() {
  static const Family family = {
      .model_type = "gpt_neox",
      .base_prefix = "gpt_neox.",
      .bare_class = "GPTNeoXModel",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
      .ignored = {"gpt_neox.layers.*.attention.bias", "gpt_neox.layers.*.attention.masked_bias",
                  "gpt_neox.layers.*.attention.rotary_emb.inv_freq"},
      // transformers 5 has the second name in memory and writes the first.
      .renamed = {{"lm_head.weight", "embed_out.weight"}},
  };
  return family;
}

}  // namespace pare
