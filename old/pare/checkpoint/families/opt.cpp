// OPT: learned positions that begin two rows into their table, LayerNorm before or after each sublayer, and in some
// sizes a narrower token table with a projection on either side.

#include <nlohmann/json.hpp>

#include "pare/checkpoint/config.h"
#include "pare/checkpoint/families/shared/decoder_family.h"
#include "pare/checkpoint/family.h"

namespace pare {

namespace {

constexpr DecoderHeads heads_of_opt = {.classes = "OPT", .base_prefix = "model.", .tokens = ""};

Architecture read_config(Config& config) {
  Architecture a;
  a.name = "opt";
  read_decoder_head(config, a, heads_of_opt, true);
  a.width = config.integer({"hidden_size"}, 768, 1, most::width);
  a.vocab = config.integer({"vocab_size"}, 50272, 1, most::rows);
  a.context = config.integer({"max_position_embeddings"}, 2048, 1, most::rows);
  a.embedding.position = Position::learned;
  a.embedding.position_offset = 2;

  const bool before = config.flag("do_layer_norm_before", true);
  Norm norm = layer_norm(1e-5, before ? NormPlace::pre : NormPlace::post);
  norm.gain = norm.bias = config.flag("layer_norm_elementwise_affine", true);
  if (!config.flag("_remove_final_layer_norm", false) && before) {
    a.final_norm = norm;
  }

  const int64_t token_width = config.integer({"word_embed_proj_dim"}, a.width, 1, most::width);
  if (token_width != a.width) {
    a.embedding.factor = token_width;
    a.head.transform = HeadTransform{.activation = Activation::identity, .bias = false};
    if (a.task != Task::causal_lm) {
      a.head.transform->width = token_width;
    }
    if (a.task == Task::encoder) {  // the bare model ends in the projection, too
      a.head.pool = Pool::none;
    }
  }

  const int64_t layers = config.integer({"num_hidden_layers"}, 12, 1, most::layers);
  Block block;
  const bool biased = config.flag("enable_bias", true);
  Attention& attention = block.attention;
  attention.heads = attention.kv_heads = config.integer({"num_attention_heads"}, 12, 1, most::heads);
  attention.head_width = equal_head_width(config, a.width, attention.heads);
  attention.bias = {biased, biased, biased, biased};
  attention.norm = norm;
  Mlp& mlp = block.mlp.emplace();
  DenseMlp& dense = mlp.kind.emplace<DenseMlp>();
  dense.width = config.integer({"ffn_dim"}, 3072, 1, 4 * most::width);
  dense.activation = config.activation("activation_function", "relu");
  dense.bias = {.up = biased, .down = biased};
  mlp.norm = norm;
  a.blocks.assign(static_cast<size_t>(layers), block);

  config.only("is_causal", true, "OPT looks back only");
  config.neutral({"init_std", "is_decoder", "layerdrop"});
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  const Block block = a.blocks.front();
  const Norm norm = block.attention.norm.value_or(Norm{});
  const DenseMlp mlp = dense_mlp(block);
  nlohmann::ordered_json config = write_decoder_head(a, heads_of_opt);
  config.update(nlohmann::ordered_json{{"model_type", "opt"},
                                       {"vocab_size", a.vocab},
                                       {"hidden_size", a.width},
                                       {"word_embed_proj_dim", token_width(a)},
                                       {"num_hidden_layers", a.blocks.size()},
                                       {"num_attention_heads", block.attention.heads},
                                       {"ffn_dim", mlp.width},
                                       {"activation_function", hugging_face_activation(mlp.activation)},
                                       {"max_position_embeddings", a.context},
                                       {"do_layer_norm_before", norm.place == NormPlace::pre},
                                       {"_remove_final_layer_norm", norm.place == NormPlace::pre && !a.final_norm},
                                       {"layer_norm_elementwise_affine", norm.gain},
                                       {"enable_bias", block.attention.bias.query}});
  return config;
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  binder.module("model.decoder.embed_tokens", {"embed.token"});
  binder.module("model.decoder.embed_positions", {"embed.position"});
  binder.module("model.decoder.project_in", {"embed.projection"});
  bind_blocks(binder, a, "model.decoder.layers",
              {{"self_attn.q_proj", {"attention.query"}},
               {"self_attn.k_proj", {"attention.key"}},
               {"self_attn.v_proj", {"attention.value"}},
               {"self_attn.out_proj", {"attention.output"}},
               {"self_attn_layer_norm", {"attention.norm"}},
               {"fc1", {"mlp.up"}},
               {"fc2", {"mlp.down"}},
               {"final_layer_norm", {"mlp.norm"}}});
  binder.module("model.decoder.final_layer_norm", {"norm"});
  binder.module("model.decoder.project_out", {"head.transform"});
  bind_decoder_head(binder, a, heads_of_opt);
  return binder.take();
}

}  // namespace

const Family& family_opt() {
  static const Family family = {
      .model_type = "opt",
      .base_prefix = "model.",
      .bare_class = "OPTModel",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
  };
  return family;
}

}  // namespace pare
