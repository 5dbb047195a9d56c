// Gemma 2: Gemma with norms after the sublayers too, softcaps, a scale of its own and a window in every other layer.

#include "pare/checkpoint/families/shared/gemma_like.h"

namespace pare {

namespace {

// An older name of it.
const Field same_window = {[](Config& config, const Key& key, Draft& draft) {
  if (const std::optional<int64_t> window = draft.block.attention.window) {
    config.only(key.name(), *window, "transformers reads sliding_window");
  }
}};

}  // namespace

const Family& family_gemma2() {
  using namespace field;
  static const Family family = make_family(gemma_like({
      .model_type = "gemma2",
      .classes = "Gemma2",
      .model = gemma_model(),
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
      .finish = divides_width,
  }));
  return family;
}

}  // namespace pare
