#include "pare/checkpoint/families/shared/dinov2_like.h"

#include <fmt/format.h>

namespace pare {

namespace {

// A gate is a SiLU, whatever the activation of other models is.
const Field gated = {
    [](Config& config, const Key& key, Draft& draft) {
      if (config.flag(key.name(), key.fallback.get<bool>())) {
        draft.mlp.gated = draft.mlp.bias.gate = true;
        draft.mlp.activation = Activation::silu;
      }
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) { config[key.name()] = draft.mlp.gated; }};

const Field ungated_activation = {
    [](Config& config, const Key& key, Draft& draft) { field::activation.read(config, key, draft); },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      if (!draft.mlp.gated) {
        field::activation.write(config, key, draft);
      }
    }};

// A gated MLP has two thirds of it, in whole eights.
int64_t mlp_width_of(const Draft& draft, int64_t ratio) {
  const int64_t plain = draft.a.width * ratio;
  return draft.mlp.gated ? (plain * 2 / 3 + 7) / 8 * 8 : plain;
}

const Field mlp_ratio = {[](Config& config, const Key& key, Draft& draft) {
                           draft.mlp.width = mlp_width_of(draft, key.whole(config, 1, 1 << 16));
                         },
                         [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                           int64_t ratio = 1;
                           while (mlp_width_of(draft, ratio) < draft.mlp.width) {
                             ++ratio;
                           }
                           config[key.name()] = ratio;
                         }};

bool is_gated(const Architecture& a) {
  return dense_mlp(a.blocks.front()).gated;
}

bool is_not_gated(const Architecture& a) {
  return !is_gated(a);
}

std::vector<TensorRow> tensors_of(bool registers) {
  std::vector<TensorRow> tensors = {
      {"embeddings.cls_token", "embed.class", Stored::two_in_front},
      {"embeddings.position_embeddings", "embed.position.weight", Stored::one_in_front},
      {"embeddings.patch_embeddings.projection", "embed.patch"},
      {"encoder.layer.{}.norm1", "attention.norm"},
      {"encoder.layer.{}.attention.attention.query", "attention.query"},
      {"encoder.layer.{}.attention.attention.key", "attention.key"},
      {"encoder.layer.{}.attention.attention.value", "attention.value"},
      {"encoder.layer.{}.attention.output.dense", "attention.output"},
      {"encoder.layer.{}.layer_scale1.lambda1", "attention.output_norm.weight"},
      {"encoder.layer.{}.norm2", "mlp.norm"},
      {"encoder.layer.{}.mlp.fc1", "mlp.up", Stored::plain, is_not_gated},
      {"encoder.layer.{}.mlp.fc2", "mlp.down", Stored::plain, is_not_gated},
      {"encoder.layer.{}.mlp.weights_in", {"mlp.gate", "mlp.up"}, Stored::plain, is_gated},
      {"encoder.layer.{}.mlp.weights_out", "mlp.down", Stored::plain, is_gated},
      {"encoder.layer.{}.layer_scale2.lambda1", "mlp.output_norm.weight"},
      {"layernorm", "norm"},
  };
  if (registers) {
    tensors.push_back({"embeddings.register_tokens", "embed.registers", Stored::one_in_front});
  }
  return tensors;
}

}  // namespace

FamilyTable dinov2_like(FamilyTable table, int64_t patch) {
  using namespace field;
  const bool registers = table.model.embedding.registers > 0;
  table.model = vit_model();
  Block& block = table.model.blocks.front();
  block.attention.output_norm = block.mlp->output_norm = Norm{.kind = NormKind::scale};
  // Nothing is done to the token that stands for the image.
  table.heads = {{{"Model", Task::encoder, {.pool_norm = Norm{.kind = NormKind::scale, .gain = false}}}}};
  const std::string classifier = fmt::format("{}ForImageClassification", table.classes);
  std::vector<Key> keys = {
      {"hidden_size", width, 768},
      {"num_hidden_layers", layers, 12},
      {"num_attention_heads", heads, 12},
      {"hidden_act", ungated_activation, "gelu"},
      {"use_swiglu_ffn", gated, false},
      {"mlp_ratio", mlp_ratio, 4},
      {"layer_norm_eps", epsilon, 1e-6},
      {"image_size", image_side, 224},
      {"patch_size", patch_side, patch},
      {"num_channels", channels, 3},
      {"qkv_bias", qkv_bias, true},
      {"head_dim", odd_head_width},
      {"is_causal", only(false, "transformers' own kernels do not agree about it")},
      {"architectures", refused_class(classifier, fmt::format("reads two vectors at once, the class token and the mean "
                                                              "of the patches: let architectures name {}Model to read "
                                                              "what lies below",
                                                              table.classes))},
  };
  table.keys.insert(table.keys.begin(), keys.begin(), keys.end());
  // Where training started, what a backbone hands on, and images of other sizes.
  table.neutral = {"apply_layernorm",  "drop_path_rate", "interpolate_antialias", "interpolate_offset",
                   "layerscale_value", "out_features",   "out_indices",           "reshape_hidden_states",
                   "stage_names",      "use_mask_token"};
  table.finish = count_positions;
  table.tensors = tensors_of(registers);
  table.ignored = {"classifier.*",
                   registers ? "dinov2_with_registers.embeddings.mask_token" : "dinov2.embeddings.mask_token"};
  if (registers) {
    table.model.embedding.registers = 1;
  }
  return table;
}

}  // namespace pare
