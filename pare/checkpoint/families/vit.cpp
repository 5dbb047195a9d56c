// ViT: patches of an image with a class token, LayerNorm before each sublayer, full attention.

#include "pare/checkpoint/families/shared/image_like.h"

namespace pare {

const Family& family_vit() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "vit",
      .classes = "ViT",
      .base_prefix = "vit.",
      .model = vit_model(),
      .heads = {{{"ForImageClassification", Task::classifier, {.bias = true}, {{"classifier", "head"}}},
                 {"Model",
                  Task::encoder,
                  {.transform = HeadTransform{.activation = Activation::tanh}},
                  {{"vit.pooler.dense", "head.transform"}}}}},
      .keys =
          {
              {"hidden_size", width, 768},
              {"num_hidden_layers", layers, 12},
              {"num_attention_heads", heads, 12},
              {"intermediate_size", mlp_width, 3072},
              {"hidden_act", activation, "gelu"},
              {"layer_norm_eps", epsilon, 1e-12},
              {"image_size", image_side, 224},
              {"patch_size", patch_side, 16},
              {"num_channels", channels, 3},
              {"qkv_bias", qkv_bias, true},
              {"head_dim", odd_head_width},
              {"id2label", labels},
              {"pooler_act", pooler_activation, "tanh"},
              {"is_causal", only(false, "transformers' own kernels do not agree about it")},
          },
      .neutral = {"encoder_stride", "pooler_output_size"},
      .finish = count_positions,
      .tensors = vit_tensors(),
      // Left over from pre-training in some classifiers.
      .ignored = {"vit.pooler.*", "vit.embeddings.mask_token"},
  });
  return family;
}

}  // namespace pare
