// GPT-J: interleaved rotary positions on the first dimensions of each head, attention and MLP side by side behind one
// LayerNorm, biases in the MLP and the head only.

#include <nlohmann/json.hpp>

#include "pare/checkpoint/config.h"
#include "pare/checkpoint/families/shared/decoder_family.h"

namespace pare {

namespace {

constexpr DecoderHeads heads_of_gptj = {
    .classes = "GPTJ", .base_prefix = "transformer.", .tokens = "", .language_bias = true};

Architecture read_config(Config& config) {
  Architecture a;
  a.name = "gptj";
  read_decoder_head(config, a, heads_of_gptj, false);
  a.width = config.integer({"n_embd", "hidden_size"}, 4096, 1, most::width);
  a.vocab = config.integer({"vocab_size"}, 50400, 1, most::rows);
  a.context = config.integer({"n_positions", "max_position_embeddings"}, 2048, 1, most::rows);
  const Norm norm = layer_norm(config.epsilon("layer_norm_epsilon", 1e-5));
  a.final_norm = norm;

  const int64_t layers = config.integer({"n_layer", "num_hidden_layers"}, 28, 1, most::layers);
  Block block;
  block.wiring = Wiring::parallel;
  Attention& attention = block.attention;
  attention.heads = attention.kv_heads = config.integer({"n_head", "num_attention_heads"}, 16, 1, most::heads);
  attention.head_width = equal_head_width(config, a.width, attention.heads);
  if (config.is_null("rotary_dim")) {
    config.problem("rotary_dim is null; expected how many dimensions of a head turn");
  }
  attention.rope =
      Rope{.width = config.integer({"rotary_dim"}, 64, 2, attention.head_width), .layout = RopeLayout::interleaved};
  attention.norm = norm;
  DenseMlp& dense = block.mlp.emplace().kind.emplace<DenseMlp>();
  dense.width = config.integer({"n_inner"}, 4 * a.width, 1, 4 * most::width);
  dense.activation = config.activation("activation_function", "gelu_new");
  dense.bias = {.up = true, .down = true};
  a.blocks.assign(static_cast<size_t>(layers), block);

  config.only("is_causal", true, "GPT-J looks back only");
  config.only("rotary", true, "GPT-J has no other positions");
  config.only("scale_attn_weights", true, "GPT-J divides its scores by the root of the head width");
  config.neutral({"n_ctx", "is_decoder", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
                  "summary_type", "summary_use_proj"});
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  const Attention& attention = a.blocks.front().attention;
  const DenseMlp mlp = dense_mlp(a.blocks.front());
  nlohmann::ordered_json config = write_decoder_head(a, heads_of_gptj);
  config.update(
      nlohmann::ordered_json{{"model_type", "gptj"},
                             {"vocab_size", a.vocab},
                             {"n_positions", a.context},
                             {"n_embd", a.width},
                             {"n_layer", a.blocks.size()},
                             {"n_head", attention.heads},
                             {"n_inner", mlp.width},
                             {"rotary_dim", attention.rope.value_or(Rope{.width = attention.head_width}).width},
                             {"activation_function", hugging_face_activation(mlp.activation)},
                             {"layer_norm_epsilon", a.final_norm.value_or(Norm{}).epsilon}});
  return config;
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  binder.module("transformer.wte", {"embed.token"});
  bind_blocks(binder, a, "transformer.h",
              {{"ln_1", {"attention.norm"}},
               {"attn.q_proj", {"attention.query"}},
               {"attn.k_proj", {"attention.key"}},
               {"attn.v_proj", {"attention.value"}},
               {"attn.out_proj", {"attention.output"}},
               {"mlp.fc_in", {"mlp.up"}},
               {"mlp.fc_out", {"mlp.down"}}});
  binder.module("transformer.ln_f", {"norm"});
  bind_decoder_head(binder, a, heads_of_gptj);
  return binder.take();
}

}  // namespace

const Family& family_gptj() {
  static const Family family = {
      .model_type = "gptj",
      .base_prefix = "transformer.",
      .bare_class = "GPTJModel",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
      .ignored = {"transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"},
  };
  return family;
}

}  // namespace pare
