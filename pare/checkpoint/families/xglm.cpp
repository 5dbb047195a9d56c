// XGLM: computed positions, all sines before all cosines and the first of them in row 2, embeddings times the root of
// the width, LayerNorm before each sublayer.

#include <fmt/format.h>

#include <cmath>

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

namespace {

const Field scaled = {[](Config& config, const Key& key, Draft& draft) {
                        const bool value = config.flag(key.name(), key.fallback.get<bool>());
                        draft.a.embedding.scale = value ? std::sqrt(static_cast<double>(draft.a.width)) : 1;
                      },
                      [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                        // Of a model of width one both are the same.
                        config[key.name()] = draft.a.embedding.scale != 1;
                      }};

// transformers sets the row of that number to zero: one that no token has.
const Field padding = {[](Config& config, const Key& key, Draft& draft) {
  const nlohmann::json& found = config.raw(key.name());
  const int64_t offset = draft.a.embedding.position_offset;
  if (found.is_null()) {
    return;
  }
  if (!found.is_number_integer() || found < 0 || found >= offset) {
    config.wrong(key.name(), found,
                 fmt::format("a number below {}: transformers takes the position of row pad_token_id away", offset));
  }
}};

// The waves of a model narrower than four would have no frequencies.
void finish(Config& config, Draft& draft) {
  if (draft.a.width < 4) {
    config.problem(fmt::format("{} is {}; expected 4 or more, as transformers needs for its positions", draft.width_key,
                               draft.a.width));
  }
}

}  // namespace

const Family& family_xglm() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "xglm",
      .classes = "XGLM",
      .base_prefix = "model.",
      .model = {.embedding = {.position = Position::sinusoidal_halves, .position_offset = 2},
                .blocks = {{.attention = {.bias = {true, true, true, true}, .norm = layer_norm()},
                            .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = layer_norm()}}},
                .final_norm = layer_norm()},
      .heads = decoder_heads({.tied = true, .sequences = false, .tokens = "", .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 256008},
              {"max_position_embeddings", context, 2048},
              {{"d_model", "hidden_size"}, width, 1024},
              {"ffn_dim", mlp_width, 4096},
              {{"num_layers", "num_hidden_layers"}, layers, 24},
              {{"attention_heads", "num_attention_heads"}, heads, 16},
              {"activation_function", activation, "gelu"},
              {"scale_embedding", scaled, true},
              {"pad_token_id", padding, 1},
              {"is_causal", only(true, "XGLM looks back only")},
          },
      .neutral = {"init_std", "layerdrop"},
      .finish = finish,
      .tensors =
          {
              {"embed_tokens", "embed.token"},
              {"layers.{}.self_attn_layer_norm", "attention.norm"},
              {"layers.{}.self_attn.q_proj", "attention.query"},
              {"layers.{}.self_attn.k_proj", "attention.key"},
              {"layers.{}.self_attn.v_proj", "attention.value"},
              {"layers.{}.self_attn.out_proj", "attention.output"},
              {"layers.{}.final_layer_norm", "mlp.norm"},
              {"layers.{}.fc1", "mlp.up"},
              {"layers.{}.fc2", "mlp.down"},
              {"layer_norm", "norm"},
          },
      // The computed positions, which older files hold.
      .ignored = {"model.embed_positions.weights"},
  });
  return family;
}

}  // namespace pare
