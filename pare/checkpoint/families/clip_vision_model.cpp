// The image tower of CLIP, as it is saved alone: ViT with a norm behind its embeddings, and one of the class token
// alone in place of the last.

#include "pare/checkpoint/families/shared/clip_like.h"

namespace pare {

namespace {

FamilyTable make_table() {
  using namespace field;
  FamilyTable table = {
      .model_type = "clip_vision_model",
      .classes = "CLIPVision",
      .base_prefix = "vision_model.",
      .model = {.embedding = {.position = Position::learned,
                              .norm = layer_norm(),
                              .class_token = true,
                              .patch = Patch{.bias = false}},
                .blocks = {clip_block(Mask::full)}},
      .heads = {{{"ModelWithProjection",
                  Task::encoder,
                  {.transform = projection(/*bias=*/false), .pool_norm = layer_norm()},
                  {{"visual_projection", "head.transform"}}},
                 {"Model", Task::encoder, {.pool_norm = layer_norm()}}}},
      .keys =
          {
              {"hidden_size", width, 768},
              {"num_hidden_layers", layers, 12},
              {"num_attention_heads", heads, 12},
              {"intermediate_size", mlp_width, 3072},
              {"hidden_act", activation, "quick_gelu"},
              {"layer_norm_eps",
               {[](Config& config, const Key& key, Draft& draft) {
                  epsilon.read(config, key, draft);
                  draft.a.head.pool_norm->epsilon = draft.a.embedding.norm->epsilon;
                },
                [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                  epsilon.write(config, key, draft);
                }},
               1e-5},
              {"image_size", image_side, 224},
              {"patch_size", patch_side, 32},
              {"num_channels", channels, 3},
              {"projection_dim", projection_width, 512},
              {"is_causal", only(false, "transformers' own kernels do not agree about it")},
          },
      .finish = count_positions,
      .tensors = clip_layers(),
      .ignored = {"vision_model.embeddings.position_ids"},
  };
  table.tensors.insert(table.tensors.begin(), {{"embeddings.class_embedding", "embed.class"},
                                               {"embeddings.patch_embedding", "embed.patch"},
                                               {"embeddings.position_embedding", "embed.position"},
                                               {"pre_layrnorm", "embed.norm"}});
  table.tensors.push_back({"post_layernorm", "head.pool.norm"});
  return table;
}

}  // namespace

const Family& family_clip_vision_model() {
  static const Family family = make_family(make_table());
  return family;
}

}  // namespace pare
