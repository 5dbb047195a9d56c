// The image tower of SigLIP, as it is saved alone: ViT without a class token, and a probe that attends to its states.

#include "pare/checkpoint/families/shared/clip_like.h"

namespace pare {

namespace {

// A probe attends to the last states. It has the heads, the MLP and the epsilon of all layers.
const Field pooling_head = field::flag([](const Draft& d) { return d.a.head.attention_pool.has_value(); },
                                       [](Draft& d, bool value) {
                                         if (value) {
                                           d.a.head.pool = Pool::attention;
                                           d.a.head.attention_pool = AttentionPool{.heads = d.block.attention.heads,
                                                                                   .mlp_width = d.mlp.width,
                                                                                   .activation = d.mlp.activation,
                                                                                   .norm = d.a.final_norm};
                                         }
                                       });

bool pools(const Architecture& a) {
  return a.head.attention_pool.has_value();
}

std::vector<TensorRow> pool_tensors() {
  return {
      {"head.probe", "head.pool.probe", Stored::two_in_front, pools},
      {"head.attention.in_proj_weight",
       {"head.pool.query.weight", "head.pool.key.weight", "head.pool.value.weight"},
       Stored::plain,
       pools},
      {"head.attention.in_proj_bias",
       {"head.pool.query.bias", "head.pool.key.bias", "head.pool.value.bias"},
       Stored::plain,
       pools},
      {"head.attention.out_proj", "head.pool.output", Stored::plain, pools},
      {"head.layernorm", "head.pool.mlp_norm", Stored::plain, pools},
      {"head.mlp.fc1", "head.pool.up", Stored::plain, pools},
      {"head.mlp.fc2", "head.pool.down", Stored::plain, pools},
  };
}

FamilyTable make_table() {
  using namespace field;
  FamilyTable table = {
      .model_type = "siglip_vision_model",
      .classes = "SiglipVision",
      .base_prefix = "vision_model.",
      .model = {.embedding = {.position = Position::learned, .patch = Patch{}},
                .blocks = {clip_block(Mask::full)},
                .final_norm = layer_norm()},
      .heads = {{{"Model", Task::encoder}}},
      .keys =
          {
              {"hidden_size", width, 768},
              {"num_hidden_layers", layers, 12},
              {"num_attention_heads", heads, 12},
              {"intermediate_size", mlp_width, 3072},
              {"hidden_act", activation, "gelu_pytorch_tanh"},
              {"layer_norm_eps", epsilon, 1e-6},
              {"image_size", image_side, 224},
              {"patch_size", patch_side, 16},
              {"num_channels", channels, 3},
              {"vision_use_head", pooling_head, true},
              {"is_causal", only(false, "transformers' own kernels do not agree about it")},
          },
      .finish = count_positions,
      .tensors = clip_layers(),
      .ignored = {"vision_model.embeddings.position_ids"},
  };
  table.tensors.insert(table.tensors.begin(), {{"embeddings.patch_embedding", "embed.patch"},
                                               {"embeddings.position_embedding", "embed.position"}});
  table.tensors.push_back({"post_layernorm", "norm"});
  for (TensorRow& row : pool_tensors()) {
    table.tensors.push_back(std::move(row));
  }
  return table;
}

}  // namespace

const Family& family_siglip_vision_model() {
  static const Family family = make_family(make_table());
  return family;
}

}  // namespace pare
