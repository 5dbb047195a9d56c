#include "pare/checkpoint/families/shared/image_like.h"

#include <fmt/format.h>

namespace pare {

// One side, or a list of two equal ones.
static int64_t read_side(Config& config, const Key& key) {
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

static Field side(int64_t Patch::*of) {
  return {[=](Config& config, const Key& key, Draft& draft) { *draft.a.embedding.patch.*of = read_side(config, key); },
          [=](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
            config[key.name()] = draft.a.embedding.patch.value_or(Patch{}).*of;
          }};
}

namespace field {

const Field image_side = side(&Patch::image), patch_side = side(&Patch::size);

const Field channels = whole([](const Draft& d) { return d.a.embedding.patch.value_or(Patch{}).channels; },
                             [](Draft& d, int64_t value) { d.a.embedding.patch->channels = value; }, 1, most::heads);

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

}  // namespace field

Architecture vit_model() {
  return {.embedding = {.position = Position::learned, .class_token = true, .patch = Patch{}},
          .blocks = {{.attention = {.bias = {.output = true}, .mask = Mask::full, .norm = layer_norm()},
                      .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = layer_norm()}}},
          .final_norm = layer_norm()};
}

std::vector<TensorRow> vit_tensors() {
  return {
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
  };
}

void count_positions(Config&, Draft& draft) {
  draft.a.context = patch_positions(draft.a);
}

Field refused_class(std::string name, std::string why) {
  return {[name = std::move(name), why = std::move(why)](Config& config, const Key& key, Draft&) {
    const nlohmann::json& classes = config.raw(key.name());
    if (classes.is_array() && !classes.empty() && classes[0] == name) {
      config.problem(fmt::format("{} {}", name, why));
    }
  }};
}

}  // namespace pare
