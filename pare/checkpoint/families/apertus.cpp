// Apertus: an MLP without a gate whose activation has numbers of its own for each layer, and norms of queries and keys.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

namespace {

const Field curved_activation = {
    [](Config& config, const Key& key, Draft& draft) {
      if (config.text(key.name(), "xielu") == "xielu") {
        draft.mlp.activation = Activation::xielu;
      } else {
        field::activation.read(config, key, draft);
      }
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) { field::activation.write(config, key, draft); }};

constexpr double theta = 12e6;

// Where nothing is said of it, it is scaled.
const Field scaled_rope = {
    [](Config& config, const Key& key, Draft& draft) {
      const nlohmann::json& older = config.raw("rope_scaling");
      field::rope({.theta = theta}).read(config, key, draft);
      if (!config.has("rope_parameters") && (older.is_null() || older.empty())) {
        config.only("rope_theta", theta, "transformers then reads none of the settings");
        draft.block.attention.rope =
            Rope{.theta = theta,
                 .width = draft.block.attention.head_width,
                 .scaling = RopeScaling{.kind = RopeScalingKind::llama3, .factor = 8, .original_context = 8192}};
      }
    },
    field::rope().write};

}  // namespace

const Family& family_apertus() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "apertus",
      .classes = "Apertus",
      .model = {.blocks = {{.attention = {.qk_norm = rms_norm(), .norm = rms_norm()},
                            .mlp = Mlp{.kind = DenseMlp{}, .norm = rms_norm()}}},
                .final_norm = rms_norm()},
      .heads = decoder_heads({.sequences = false, .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 131072},
              {"hidden_size", width, 4096},
              {"intermediate_size", mlp_width, 14336},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads},
              {"head_dim", head_width},
              {"hidden_act", curved_activation, "xielu"},
              {"max_position_embeddings", context, 65536},
              {"rms_norm_eps", epsilon, 1e-5},
              {"attention_bias", attention_bias, false},
              {"rope_parameters", scaled_rope},
              // Of the trainer's own code.
              {"mlp_bias", only(false, "transformers has no biases there")},
              {"post_norm", only(false, "transformers has norms before the sublayers only")},
              {"qk_norm", only(true, "transformers always has these norms")},
          },
      .tensors =
          {
              {"embed_tokens", "embed.token"},
              {"layers.{}.attention_layernorm", "attention.norm"},
              {"layers.{}.self_attn.q_proj", "attention.query"},
              {"layers.{}.self_attn.k_proj", "attention.key"},
              {"layers.{}.self_attn.v_proj", "attention.value"},
              {"layers.{}.self_attn.o_proj", "attention.output"},
              {"layers.{}.self_attn.q_norm", "attention.query_norm"},
              {"layers.{}.self_attn.k_norm", "attention.key_norm"},
              {"layers.{}.feedforward_layernorm", "mlp.norm"},
              {"layers.{}.mlp.up_proj", "mlp.up"},
              {"layers.{}.mlp.act_fn.alpha_p", "mlp.curve.positive"},
              {"layers.{}.mlp.act_fn.alpha_n", "mlp.curve.negative"},
              {"layers.{}.mlp.act_fn.beta", "mlp.curve.slope", Stored::number},
              {"layers.{}.mlp.act_fn.eps", "mlp.curve.least", Stored::number},
              {"layers.{}.mlp.down_proj", "mlp.down"},
              {"norm", "norm"},
          },
  }));
  return family;
}

}  // namespace pare
