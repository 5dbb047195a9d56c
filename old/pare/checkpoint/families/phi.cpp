// Phi-1, Phi-1.5 and Phi-2: partly rotary, grouped heads, biases everywhere, attention and MLP side by side behind one
// LayerNorm, and where asked for a LayerNorm over each query and key.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/checkpoint/config.h"
#include "pare/checkpoint/families/shared/decoder_family.h"

namespace pare {

namespace {

constexpr DecoderHeads heads_of_phi = {.classes = "Phi", .base_prefix = "model.", .answers = "", .language_bias = true};

Architecture read_config(Config& config) {
  Architecture a;
  a.name = "phi";
  read_decoder_head(config, a, heads_of_phi, false);
  a.width = config.integer({"hidden_size"}, 2048, 1, most::width);
  a.vocab = config.integer({"vocab_size"}, 51200, 1, most::rows);
  a.context = config.integer({"max_position_embeddings"}, 2048, 1, most::rows);
  const Norm norm = layer_norm(config.epsilon("layer_norm_eps", 1e-5));
  a.final_norm = norm;

  const int64_t layers = config.integer({"num_hidden_layers"}, 24, 1, most::layers);
  Block block;
  block.wiring = Wiring::parallel;
  Attention& attention = block.attention;
  attention.heads = config.integer({"num_attention_heads"}, 32, 1, most::heads);
  attention.kv_heads = config.integer({"num_key_value_heads"}, attention.heads, 1, most::heads);
  attention.head_width = config.has("head_dim") ? config.integer({"head_dim"}, 1, 1, most::width)
                                                : equal_head_width(config, a.width, attention.heads);
  attention.bias = {true, true, true, true};
  attention.rope = read_rope(config, {.head_width = attention.head_width, .context = a.context, .partial = 0.5});
  if (config.flag("qk_layernorm", false)) {
    attention.qk_norm = norm;
    if (attention.head_width != a.width / attention.heads) {
      config.problem(
          fmt::format("head_dim is {}; with qk_layernorm it has to be hidden_size {} / num_attention_heads {}",
                      attention.head_width, a.width, attention.heads));
    }
  }
  attention.norm = norm;
  DenseMlp& dense = block.mlp.emplace().kind.emplace<DenseMlp>();
  dense.width = config.integer({"intermediate_size"}, 8192, 1, 4 * most::width);
  dense.activation = config.activation("hidden_act", "gelu_new");
  dense.bias = {.up = true, .down = true};
  a.blocks.assign(static_cast<size_t>(layers), block);

  config.only("is_causal", true, "Phi looks back only");
  config.neutral({"is_decoder"});
  accept_own_classes(config, "Phi");
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  const Attention& attention = a.blocks.front().attention;
  const DenseMlp mlp = dense_mlp(a.blocks.front());
  nlohmann::ordered_json config = write_decoder_head(a, heads_of_phi);
  config.update(nlohmann::ordered_json{{"model_type", "phi"},
                                       {"vocab_size", a.vocab},
                                       {"hidden_size", a.width},
                                       {"intermediate_size", mlp.width},
                                       {"num_hidden_layers", a.blocks.size()},
                                       {"num_attention_heads", attention.heads},
                                       {"num_key_value_heads", attention.kv_heads},
                                       {"hidden_act", hugging_face_activation(mlp.activation)},
                                       {"max_position_embeddings", a.context},
                                       {"layer_norm_eps", a.final_norm.value_or(Norm{}).epsilon},
                                       {"qk_layernorm", attention.qk_norm.has_value()}});
  if (attention.heads * attention.head_width != a.width) {
    config["head_dim"] = attention.head_width;
  }
  write_rope(config, attention.rope.value_or(Rope{.width = attention.head_width}), attention.head_width,
             PartialRope::always);
  return config;
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  binder.module("model.embed_tokens", {"embed.token"});
  bind_blocks(binder, a, "model.layers",
              {{"input_layernorm", {"attention.norm"}},
               {"self_attn.q_proj", {"attention.query"}},
               {"self_attn.k_proj", {"attention.key"}},
               {"self_attn.v_proj", {"attention.value"}},
               {"self_attn.dense", {"attention.output"}},
               {"self_attn.q_layernorm", {"attention.query_norm"}},
               {"self_attn.k_layernorm", {"attention.key_norm"}},
               {"mlp.fc1", {"mlp.up"}},
               {"mlp.fc2", {"mlp.down"}}});
  binder.module("model.final_layernorm", {"norm"});
  bind_decoder_head(binder, a, heads_of_phi);
  return binder.take();
}

}  // namespace

const Family& family_phi() {
  static const Family family = {
      .model_type = "phi",
      .base_prefix = "model.",
      .bare_class = "PhiModel",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
      .ignored = {"model.layers.*.self_attn.rotary_emb.inv_freq"},
  };
  return family;
}

}  // namespace pare
