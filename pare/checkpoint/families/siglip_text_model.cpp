// The text tower of SigLIP, as it is saved alone: tokens look both ways, and a projection of the last stands for all.

#include "pare/checkpoint/families/shared/clip_like.h"

namespace pare {

namespace {

FamilyTable make_table() {
  using namespace field;
  FamilyTable table = {
      .model_type = "siglip_text_model",
      .classes = "SiglipText",
      .base_prefix = "text_model.",
      .model = {.embedding = {.position = Position::learned},
                .blocks = {clip_block(Mask::full)},
                .final_norm = layer_norm()},
      .heads = {{{"Model",
                  Task::encoder,
                  {.transform = projection(/*bias=*/true), .pool = Pool::last},
                  {{"text_model.head", "head.transform"}}}}},
      .keys =
          {
              {"vocab_size", vocab, 32000},
              {"hidden_size", width, 768},
              {"num_hidden_layers", layers, 12},
              {"num_attention_heads", heads, 12},
              {"intermediate_size", mlp_width, 3072},
              {"hidden_act", activation, "gelu_pytorch_tanh"},
              {"layer_norm_eps", epsilon, 1e-6},
              {"max_position_embeddings", context, 64},
              {"projection_size", projection_width},
              {"is_causal", only(false, "transformers' own kernels do not agree about it")},
          },
      .tensors = clip_layers(),
      .ignored = {"text_model.embeddings.position_ids"},
  };
  table.tensors.insert(table.tensors.begin(), {{"embeddings.token_embedding", "embed.token"},
                                               {"embeddings.position_embedding", "embed.position"}});
  table.tensors.push_back({"final_layer_norm", "norm"});
  return table;
}

}  // namespace

const Family& family_siglip_text_model() {
  static const Family family = make_family(make_table());
  return family;
}

}  // namespace pare
