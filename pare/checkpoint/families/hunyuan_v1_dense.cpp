// HunYuan: Llama with norms of queries and keys behind their rotation.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

static Norm turned_norm() {
  Norm norm = rms_norm();
  norm.place = NormPlace::post;
  return norm;
}

const Family& family_hunyuan_v1_dense() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "hunyuan_v1_dense",
      .classes = "HunYuanDenseV1",
      .model = llama_model({.qk_norm = turned_norm(), .norm = rms_norm()}),
      .heads = decoder_heads({.tokens = "", .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 290943},
              {"hidden_size", width, 4096},
              {"intermediate_size", mlp_width, 11008},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads},
              {"head_dim", head_width},
              {"attention_head_dim", repeats(head_width, "transformers reads head_dim")},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 2048},
              {"rms_norm_eps", epsilon, 1e-5},
              {"attention_bias", attention_bias, false},
              {"rope_parameters", rope({.alpha = true})},
              // Of Tencent's own code, which transformers does not have.
              {"add_classification_head", only(false, "transformers has no such head")},
              {"mlp_bias", only(false, "transformers has no biases there")},
              {"norm_type", only("rms", "transformers has no other norm")},
              {"position_embedding_xdrope", only(false, "transformers has no such positions")},
              {"qk_norm", only(true, "transformers always has these norms")},
              {"use_cla", only(false, "keys and values that layers share are not supported")},
              {"use_qk_norm", only(true, "transformers always has these norms")},
              {"use_rotary_pos_emb", only(true, "transformers has no other positions")},
          },
      .neutral = {"cla_share_factor",
                  "class_num",
                  "dense_list",
                  "eod_token_id",
                  "group_limited_greedy",
                  "im_end_id",
                  "im_newline_id",
                  "im_start_id",
                  "kv_lora_rank",
                  "mask_init_id",
                  "org_vocab_size",
                  "pad_id",
                  "pool_type",
                  "pretraining_tp",
                  "q_lora_rank",
                  "qk_nope_head_dim",
                  "qk_rope_head_dim",
                  "routed_scaling_factor",
                  "text_end_id",
                  "text_start_id",
                  "topk_group",
                  "v_head_dim"},
      .tensors =
          {
              {"embed_tokens", "embed.token"},
              {"layers.{}.input_layernorm", "attention.norm"},
              {"layers.{}.self_attn.q_proj", "attention.query"},
              {"layers.{}.self_attn.k_proj", "attention.key"},
              {"layers.{}.self_attn.v_proj", "attention.value"},
              {"layers.{}.self_attn.o_proj", "attention.output"},
              {"layers.{}.self_attn.query_layernorm", "attention.query_norm"},
              {"layers.{}.self_attn.key_layernorm", "attention.key_norm"},
              {"layers.{}.post_attention_layernorm", "mlp.norm"},
              {"layers.{}.mlp.up_proj", "mlp.up"},
              {"layers.{}.mlp.gate_proj", "mlp.gate"},
              {"layers.{}.mlp.down_proj", "mlp.down"},
              {"norm", "norm"},
          },
  }));
  return family;
}

}  // namespace pare
