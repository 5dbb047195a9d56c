// Gemma 2: Gemma with norms after the sublayers too, softcaps, a scale of its own and a window in every other layer.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

namespace {

// Scores are divided by the root of it.
const Field score_divisor = field::whole(
    [](const Draft& d) {
      const double scale = scale_of(d.block.attention);
      return int64_t{std::llround(std::clamp(1 / (scale * scale), 1.0, static_cast<double>(most::rows)))};
    },
    [](Draft& d, int64_t divisor) {
      if (divisor != d.block.attention.head_width) {
        d.block.attention.scale = 1 / std::sqrt(static_cast<double>(divisor));
      }
    },
    1, most::rows);

const Field required_window = {[](Config& config, const Key& key, Draft& draft) {
                                 field::window.read(config, key, draft);
                                 if (config.is_null(key.name())) {
                                   config.wrong(key.name(), nullptr,
                                                "a whole number: Gemma 2 has a window even where no layer uses it");
                                 }
                               },
                               [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                                 field::window.write(config, key, draft);
                                 if (config[key.name()].is_null()) {
                                   config[key.name()] = draft.a.context;
                                 }
                               }};

// An older name of it.
const Field same_window = {[](Config& config, const Key& key, Draft& draft) {
  if (const std::optional<int64_t> window = draft.block.attention.window) {
    config.only(key.name(), *window, "transformers reads sliding_window");
  }
}};

void finish(Config& config, Draft& draft) {
  if (draft.a.width % draft.block.attention.heads != 0) {
    config.problem(fmt::format("num_attention_heads {} does not divide hidden_size {}, as Hugging Face asks of Gemma 2",
                               draft.block.attention.heads, draft.a.width));
  }
}

}  // namespace

const Family& family_gemma2() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "gemma2",
      .classes = "Gemma2",
      .model = llama_model({.norm = rms_norm(1), .output_norm = rms_norm(1)}),
      .heads = decoder_heads({.tied = true, .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 256000},
              {"hidden_size", scaled_width, 2304},
              {"intermediate_size", mlp_width, 9216},
              {"num_hidden_layers", layers, 26},
              {"num_attention_heads", heads, 8},
              {"num_key_value_heads", kv_heads, 4},
              {"head_dim", head_width, 256},
              {"hidden_activation", activation, "gelu_pytorch_tanh"},
              {"hidden_act", same_activation},
              {"max_position_embeddings", context, 8192},
              {"rms_norm_eps", epsilon, 1e-6},
              {"attention_bias", attention_bias, false},
              {"rope_parameters", rope()},
              {"query_pre_attn_scalar", score_divisor, 256},
              {"attn_logit_softcapping", softcap, 50},
              {"final_logit_softcapping", head_softcap, 30},
              {"sliding_window", required_window, 4096},
              {"sliding_window_size", same_window},
              {"layer_types", layer_types([](int64_t layer) { return layer % 2 == 0; })},
              {"use_bidirectional_attention", only(false, "Hugging Face's own kernels do not agree about it")},
          },
      .finish = finish,
      .tensors =
          {
              {"embed_tokens", "embed.token"},
              {"layers.{}.input_layernorm", "attention.norm"},
              {"layers.{}.self_attn.q_proj", "attention.query"},
              {"layers.{}.self_attn.k_proj", "attention.key"},
              {"layers.{}.self_attn.v_proj", "attention.value"},
              {"layers.{}.self_attn.o_proj", "attention.output"},
              {"layers.{}.post_attention_layernorm", "attention.output_norm"},
              {"layers.{}.pre_feedforward_layernorm", "mlp.norm"},
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
