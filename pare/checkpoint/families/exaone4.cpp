// EXAONE 4: a norm after each sublayer in place of one before it, norms of queries and keys, and windows; where some
// layers have a window, the others have no positions.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

// Every fourth layer is without a window where there is no list, and a pattern of another length may be given.
static void read_windows(Config& config, const Key& key, Draft& draft) {
  std::optional<int64_t>& window = draft.block.attention.window;
  config.neutral({key.name(), "sliding_window_pattern"});
  if (!window) {
    return;
  }
  if (config.has(key.name())) {
    field::layer_types(nullptr).read(config, key, draft);
  } else {
    const int64_t pattern = config.integer("sliding_window_pattern", 4, 1, most::layers);
    const std::optional<int64_t> width = std::exchange(window, std::nullopt);
    draft.by_layer.emplace_back([=](int64_t layer, Block& block) {
      block.attention.window = (layer + 1) % pattern != 0 ? width : std::nullopt;
    });
  }
  draft.by_layer.emplace_back([](int64_t, Block& block) {
    if (!block.attention.window) {
      block.attention.rope.reset();
    }
  });
}

// A window is named also where no layer has one: without it all layers would turn.
static void write_windows(nlohmann::ordered_json& config, const Key& key, Draft& draft) {
  field::layer_types(nullptr).write(config, key, draft);
  if (config["sliding_window"].is_null() && !draft.a.blocks.front().attention.rope) {
    config["sliding_window"] = draft.a.context;
  }
}

const Family& family_exaone4() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "exaone4",
      .classes = "Exaone4",
      .answers_prefix = "transformer.",
      .model = {.blocks = {{.attention = {.qk_norm = rms_norm(), .output_norm = rms_norm()},
                            .mlp = Mlp{.kind = DenseMlp{.gated = true}, .output_norm = rms_norm()}}},
                .final_norm = rms_norm()},
      .keys =
          {
              {"vocab_size", vocab, 102400},
              {"hidden_size", width, 4096},
              {"intermediate_size", mlp_width, 16384},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 32},
              {"num_key_value_heads", kv_heads, 32},
              {"head_dim", head_width},
              {"hidden_act", activation, "silu"},
              {"max_position_embeddings", context, 2048},
              {"rms_norm_eps", epsilon, 1e-5},
              {"rope_parameters", rope()},
              {"sliding_window", window, 4096},
              {"layer_types", Field{read_windows, write_windows}},
          },
      .tensors =
          {
              {"embed_tokens", "embed.token"},
              {"layers.{}.self_attn.q_proj", "attention.query"},
              {"layers.{}.self_attn.k_proj", "attention.key"},
              {"layers.{}.self_attn.v_proj", "attention.value"},
              {"layers.{}.self_attn.o_proj", "attention.output"},
              {"layers.{}.self_attn.q_norm", "attention.query_norm"},
              {"layers.{}.self_attn.k_norm", "attention.key_norm"},
              {"layers.{}.post_attention_layernorm", "attention.output_norm"},
              {"layers.{}.mlp.up_proj", "mlp.up"},
              {"layers.{}.mlp.gate_proj", "mlp.gate"},
              {"layers.{}.mlp.down_proj", "mlp.down"},
              {"layers.{}.post_feedforward_layernorm", "mlp.output_norm"},
              {"norm", "norm"},
          },
  }));
  return family;
}

}  // namespace pare
