// ViT: patches of an image with a class token, LayerNorm before each sublayer, full attention.

#include "pare/checkpoint/family_table.h"
#include "pare/checkpoint/fields.h"

namespace pare {

namespace {

// One side, or a list of two equal ones.
int64_t read_side(Config& config, const Key& key) {
  const nlohmann::json pair = config.raw(key.name());
  const int64_t fallback = key.fallback.get<int64_t>();
  if (!pair.is_array()) {
    return config.integer(key.names, fallback, 1, most::width);
  }
  const bool square = pair.size() == 2 && pair[0] == pair[1] && pair[0].is_number_integer();
  if (!square || pair[0] < 1 || pair[0] > most::width) {
    config.wrong(key.name(), pair, "a whole number, or two equal ones: only squares are supported");
    return fallback;
  }
  return pair[0].get<int64_t>();
}

Field patch_side(int64_t Patch::*of) {
  return {[=](Config& config, const Key& key, Draft& draft) { *draft.a.embedding.patch.*of = read_side(config, key); },
          [=](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
            config[key.name()] = draft.a.embedding.patch.value_or(Patch{}).*of;
          }};
}

const Field channels =
    field::whole([](const Draft& d) { return d.a.embedding.patch.value_or(Patch{}).channels; },
                 [](Draft& d, int64_t value) { d.a.embedding.patch->channels = value; }, 1, most::heads);

// Of the bare model; a classifier has none.
const Field pooler_activation = {[](Config& config, const Key& key, Draft& draft) {
                                   if (draft.a.head.transform) {
                                     draft.a.head.transform->activation =
                                         config.activation(key.name(), key.fallback.get<std::string>());
                                     config.only("pooler_output_size", draft.a.width, "the pooler keeps the width");
                                   }
                                 },
                                 [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                                   if (draft.a.task == Task::encoder && draft.a.head.transform) {
                                     config[key.name()] = hugging_face_activation(draft.a.head.transform->activation);
                                   }
                                 }};

void count_positions(Config&, Draft& draft) {
  draft.a.context = patch_positions(draft.a);
}

}  // namespace

const Family& family_vit() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "vit",
      .classes = "ViT",
      .base_prefix = "vit.",
      .model = {.embedding = {.position = Position::learned, .class_token = true, .patch = Patch{}},
                .blocks = {{.attention = {.bias = {.output = true}, .mask = Mask::full, .norm = layer_norm()},
                            .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = layer_norm()}}},
                .final_norm = layer_norm()},
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
              {"image_size", patch_side(&Patch::image), 224},
              {"patch_size", patch_side(&Patch::size), 16},
              {"num_channels", channels, 3},
              {"qkv_bias", qkv_bias, true},
              {"head_dim", odd_head_width},
              {"id2label", labels},
              {"pooler_act", pooler_activation, "tanh"},
              {"is_causal", only(false, "transformers' own kernels do not agree about it")},
          },
      .neutral = {"encoder_stride", "pooler_output_size"},
      .finish = count_positions,
      .tensors =
          {
              {"embeddings.cls_token", "embed.class", Stored::two_in_front},
              {"embeddings.position_embeddings", "embed.position.weight", Stored::one_in_front},
              {"embeddings.patch_embeddings.projection", "embed.patch"},
              {"encoder.layer.{}.layernorm_before", "attention.norm"},
              {"encoder.layer.{}.attention.attention.query", "attention.query"},
              {"encoder.layer.{}.attention.attention.key", "attention.key"},
              {"encoder.layer.{}.attention.attention.value", "attention.value"},
              {"encoder.layer.{}.attention.output.dense", "attention.output"},
              {"encoder.layer.{}.layernorm_after", "mlp.norm"},
              {"encoder.layer.{}.intermediate.dense", "mlp.up"},
              {"encoder.layer.{}.output.dense", "mlp.down"},
              {"layernorm", "norm"},
          },
      // Left over from pre-training in some classifiers.
      .ignored = {"vit.pooler.*", "vit.embeddings.mask_token"},
  });
  return family;
}

}  // namespace pare
