// OPT: learned positions that begin two rows into their table, LayerNorm before or after each sublayer, and in some
// sizes a narrower token table with a projection on either side.

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

namespace {

const Field narrow_tokens = {
    [](Config& config, const Key& key, Draft& draft) {
      Architecture& a = draft.a;
      const int64_t width = config.integer(key.names, a.width, 1, most::width);
      if (width == a.width) {
        return;
      }
      a.embedding.factor = width;
      a.head.transform = HeadTransform{.activation = Activation::identity, .bias = false};
      if (a.task != Task::causal_lm) {
        a.head.transform->width = width;
      }
      if (a.task == Task::encoder) {  // the bare model ends in the projection, too
        a.head.pool = Pool::none;
      }
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = token_width(draft.a); }};

Norm norm_of(const Draft& draft) {
  return draft.block.attention.norm.value_or(Norm{});
}

const Field norms_before = field::flag([](const Draft& d) { return norm_of(d).place == NormPlace::pre; },
                                       [](Draft& d, bool before) {
                                         if (!before) {
                                           d.a.final_norm.reset();
                                           d.block.attention.norm = d.block.mlp->norm = layer_norm(NormPlace::post);
                                         }
                                       });
const Field no_final_norm =
    field::flag([](const Draft& d) { return norm_of(d).place == NormPlace::pre && !d.a.final_norm; },
                [](Draft& d, bool removed) {
                  if (removed) {
                    d.a.final_norm.reset();
                  }
                });
const Field norms_have_gains =
    field::flag([](const Draft& d) { return norm_of(d).gain; },
                [](Draft& d, bool has) { field::each_norm(d, [&](Norm& norm) { norm.gain = norm.bias = has; }); });

}  // namespace

const Family& family_opt() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "opt",
      .classes = "OPT",
      .base_prefix = "model.",
      .model = {.embedding = {.position = Position::learned, .position_offset = 2},
                .blocks = {{.attention = {.norm = layer_norm()}, .mlp = Mlp{.norm = layer_norm()}}},
                .final_norm = layer_norm()},
      .heads = decoder_heads({.tied = true, .tokens = ""}),
      .keys =
          {
              {"vocab_size", vocab, 50272},
              {"hidden_size", width, 768},
              {"word_embed_proj_dim", narrow_tokens},
              {"num_hidden_layers", layers, 12},
              {"num_attention_heads", heads, 12},
              {"ffn_dim", mlp_width, 3072},
              {"activation_function", activation, "relu"},
              {"max_position_embeddings", context, 2048},
              {"do_layer_norm_before", norms_before, true},
              {"_remove_final_layer_norm", no_final_norm, false},
              {"layer_norm_elementwise_affine", norms_have_gains, true},
              {"enable_bias", biases, true},
              {"is_causal", only(true, "OPT looks back only")},
              // Galactica says them; transformers has nothing else.
              {"learned_embeddings", only(true, "OPT learns its positions")},
              {"scale_embeddings", only(false, "OPT takes its embeddings as they are")},
          },
      .neutral = {"init_std", "layerdrop"},
      .tensors =
          {
              {"decoder.embed_tokens", "embed.token"},
              {"decoder.embed_positions", "embed.position"},
              {"decoder.project_in", "embed.projection"},
              {"decoder.layers.{}.self_attn.q_proj", "attention.query"},
              {"decoder.layers.{}.self_attn.k_proj", "attention.key"},
              {"decoder.layers.{}.self_attn.v_proj", "attention.value"},
              {"decoder.layers.{}.self_attn.out_proj", "attention.output"},
              {"decoder.layers.{}.self_attn_layer_norm", "attention.norm"},
              {"decoder.layers.{}.fc1", "mlp.up"},
              {"decoder.layers.{}.fc2", "mlp.down"},
              {"decoder.layers.{}.final_layer_norm", "mlp.norm"},
              {"decoder.final_layer_norm", "norm"},
              {"decoder.project_out", "head.transform"},
          },
  });
  return family;
}

}  // namespace pare
