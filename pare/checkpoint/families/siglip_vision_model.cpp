// The image tower of SigLIP, as it is saved alone: ViT without a class token.

#include "pare/checkpoint/families/shared/clip_like.h"

namespace pare {

namespace {

// Without the key there is one.
const Field pooling_head = {
    [](Config& config, const Key& key, Draft&) {
      if (config.flag(key.name(), true)) {
        config.problem(
            "vision_use_head is not false: a query of its own attends to the last states, which "
            "is not supported; with false, what lies below that head is read");
      }
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft&) { config[key.name()] = false; }};

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
              {"vision_use_head", pooling_head},
              {"is_causal", only(false, "transformers' own kernels do not agree about it")},
          },
      .finish = count_positions,
      .tensors = clip_layers(),
      .ignored = {"vision_model.embeddings.position_ids", "vision_model.head.*"},
  };
  table.tensors.insert(table.tensors.begin(), {{"embeddings.patch_embedding", "embed.patch"},
                                               {"embeddings.position_embedding", "embed.position"}});
  table.tensors.push_back({"post_layernorm", "norm"});
  return table;
}

}  // namespace

const Family& family_siglip_vision_model() {
  static const Family family = make_family(make_table());
  return family;
}

}  // namespace pare
