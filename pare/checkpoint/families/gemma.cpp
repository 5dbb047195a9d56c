// Gemma: Llama with gains stored as their distance from one, a scaled embedding and a width of heads of their own.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

// The first files said gelu and meant the other one; Hugging Face corrects them so. One spelling means what it says.
const Field corrected_activation = {[](Config& config, const Key& key, Draft& draft) {
                                      field::activation.read(config, key, draft);
                                      if (config.raw(key.name()) == "gelu") {
                                        draft.mlp.activation = Activation::gelu_tanh;
                                      }
                                    },
                                    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                                      field::activation.write(config, key, draft);
                                      if (config[key.name()] == "gelu") {
                                        config[key.name()] = "gelu_python";
                                      }
                                    }};

const Family& family_gemma() {
  using namespace field;
  static const Family family = make_family(llama_like({
      .model_type = "gemma",
      .classes = "Gemma",
      .model = llama_model({.norm = rms_norm(1)}),
      .heads = decoder_heads({.tied = true, .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 256000},
              {"hidden_size", scaled_width, 3072},
              {"intermediate_size", mlp_width, 24576},
              {"num_hidden_layers", layers, 28},
              {"num_attention_heads", heads, 16},
              {"num_key_value_heads", kv_heads, 16},
              {"head_dim", head_width, 256},
              {"hidden_act", corrected_activation, "gelu_pytorch_tanh"},
              {"hidden_activation", same_activation},
              {"max_position_embeddings", context, 8192},
              {"rms_norm_eps", epsilon, 1e-6},
              {"attention_bias", attention_bias, false},
              {"rope_parameters", rope()},
              {"use_bidirectional_attention", only(false, "Hugging Face's own kernels do not agree about it")},
          },
      .ignored = {"model.layers.*.rotary_emb.inv_freq"},
  }));
  return family;
}

}  // namespace pare
