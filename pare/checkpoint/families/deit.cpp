// DeiT: ViT with a second token, which was trained on what a teacher said.

#include "pare/checkpoint/families/shared/image_like.h"

namespace pare {

namespace {

FamilyTable make_table() {
  using namespace field;
  FamilyTable table = {
      .model_type = "deit",
      .classes = "DeiT",
      .base_prefix = "deit.",
      .model = vit_model(),
      .heads = {{{"ForImageClassification", Task::classifier, {.bias = true}, {{"classifier", "head"}}},
                 {"Model",
                  Task::encoder,
                  {.transform = HeadTransform{.activation = Activation::tanh}},
                  {{"deit.pooler.dense", "head.transform"}}}}},
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
              {"architectures",
               refused_class("DeiTForImageClassificationWithTeacher",
                             "averages what two heads say, of the class token and of the teacher's: let architectures "
                             "name DeiTModel to read what lies below")},
          },
      .neutral = {"encoder_stride", "pooler_output_size"},
      .finish = count_positions,
      .tensors = vit_tensors(),
      // Left over from pre-training, or the heads of a class that is not read.
      .ignored = {"deit.pooler.*", "deit.embeddings.mask_token", "cls_classifier.*", "distillation_classifier.*"},
  };
  table.model.embedding.registers = 1;
  table.model.embedding.registers_placed = true;
  table.tensors.push_back({"embeddings.distillation_token", "embed.registers", Stored::one_in_front});
  return table;
}

}  // namespace

const Family& family_deit() {
  static const Family family = make_family(make_table());
  return family;
}

}  // namespace pare
