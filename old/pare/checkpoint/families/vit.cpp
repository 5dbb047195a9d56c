// ViT: patches of an image with a class token, LayerNorm before each sublayer, full attention.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/checkpoint/config.h"
#include "pare/checkpoint/family.h"

namespace pare {

namespace {

// One side, or a list of two equal ones.
int64_t read_side(Config& config, std::string_view key, int64_t fallback) {
  const nlohmann::json pair = config.raw(key);
  if (!pair.is_array()) {
    return config.integer({key}, fallback, 1, most::width);
  }
  const bool square = pair.size() == 2 && pair[0] == pair[1] && pair[0].is_number_integer();
  if (!square || pair[0] < 1 || pair[0] > most::width) {
    config.wrong(key, pair, "a whole number, or two equal ones: only squares are supported");
    return fallback;
  }
  return pair[0].get<int64_t>();
}

Architecture read_config(Config& config) {
  Architecture a;
  a.name = "vit";
  a.task =
      config.model_class({{"ViTForImageClassification", Task::classifier, {"classifier.weight"}}, {"ViTModel"}}).task;
  a.width = config.integer({"hidden_size"}, 768, 1, most::width);
  a.embedding.position = Position::learned;
  a.embedding.class_token = true;
  Patch& patch = a.embedding.patch.emplace();
  patch.size = read_side(config, "patch_size", 16);
  patch.image = read_side(config, "image_size", 224);
  patch.channels = config.integer({"num_channels"}, 3, 1, most::heads);
  a.context = patch_positions(a);
  const Norm norm = layer_norm(config.epsilon("layer_norm_eps", 1e-12));
  a.final_norm = norm;

  const int64_t layers = config.integer({"num_hidden_layers"}, 12, 1, most::layers);
  Block block;
  Attention& attention = block.attention;
  attention.heads = attention.kv_heads = config.integer({"num_attention_heads"}, 12, 1, most::heads);
  if (!config.has("head_dim") && a.width % attention.heads != 0) {
    config.problem(fmt::format("num_attention_heads {} does not divide hidden_size {}", attention.heads, a.width));
  }
  attention.head_width = config.integer({"head_dim"}, a.width / attention.heads, 1, most::width);
  const bool biased = config.flag("qkv_bias", true);
  attention.bias = {biased, biased, biased, true};
  attention.mask = Mask::full;
  attention.norm = norm;
  Mlp& mlp = block.mlp.emplace();
  DenseMlp& dense = mlp.kind.emplace<DenseMlp>();
  dense.width = config.integer({"intermediate_size"}, 3072, 1, 4 * most::width);
  dense.activation = config.activation("hidden_act", "gelu");
  dense.bias = {.up = true, .down = true};
  mlp.norm = norm;
  a.blocks.assign(static_cast<size_t>(layers), block);

  if (a.task == Task::classifier) {
    a.head.classes = config.label_count();
    a.head.bias = true;
    config.neutral({"pooler_act", "pooler_output_size"});
  } else if (config.stores("pooler.dense.weight", true)) {
    a.head.transform = HeadTransform{.activation = config.activation("pooler_act", "tanh")};
    config.only("pooler_output_size", a.width, "the pooler keeps the width");
  }
  config.neutral({"encoder_stride", "is_causal"});
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  const std::vector<Block>& blocks = a.blocks;
  const Attention& attention = blocks.front().attention;
  const DenseMlp mlp = dense_mlp(blocks.front());
  const Patch patch = a.embedding.patch.value_or(Patch{});
  nlohmann::ordered_json config = {
      {"architectures", {a.task == Task::encoder ? "ViTModel" : "ViTForImageClassification"}},
      {"model_type", "vit"},
      {"hidden_size", a.width},
      {"num_hidden_layers", blocks.size()},
      {"num_attention_heads", attention.heads},
      {"intermediate_size", mlp.width},
      {"hidden_act", hugging_face_activation(mlp.activation)},
      {"layer_norm_eps", a.final_norm.value_or(Norm{}).epsilon},
      {"image_size", patch.image},
      {"patch_size", patch.size},
      {"num_channels", patch.channels},
      {"qkv_bias", attention.bias.query}};
  if (attention.heads * attention.head_width != a.width) {
    config["head_dim"] = attention.head_width;
  }
  if (a.task == Task::classifier) {
    write_labels(config, a.head.classes.value_or(0));
  } else if (a.head.transform) {
    config["pooler_act"] = hugging_face_activation(a.head.transform->activation);
  }
  return config;
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  binder.tensor("vit.embeddings.cls_token", "embed.class", leading_ones(2));
  binder.tensor("vit.embeddings.position_embeddings", "embed.position.weight", leading_ones(1));
  binder.module("vit.embeddings.patch_embeddings.projection", {"embed.patch"});
  const size_t blocks = a.blocks.size();
  for (size_t n = 0; n < blocks; ++n) {
    const std::string theirs = fmt::format("vit.encoder.layer.{}.", n);
    const std::string attention = fmt::format("blocks.{}.attention.", n), mlp = fmt::format("blocks.{}.mlp.", n);
    binder.module(theirs + "layernorm_before", {attention + "norm"});
    binder.module(theirs + "attention.attention.query", {attention + "query"});
    binder.module(theirs + "attention.attention.key", {attention + "key"});
    binder.module(theirs + "attention.attention.value", {attention + "value"});
    binder.module(theirs + "attention.output.dense", {attention + "output"});
    binder.module(theirs + "layernorm_after", {mlp + "norm"});
    binder.module(theirs + "intermediate.dense", {mlp + "up"});
    binder.module(theirs + "output.dense", {mlp + "down"});
  }
  binder.module("vit.layernorm", {"norm"});
  binder.module("vit.pooler.dense", {"head.transform"});
  binder.module("classifier", {"head"});
  return binder.take();
}

}  // namespace

const Family& family_vit() {
  static const Family family = {
      .model_type = "vit",
      .base_prefix = "vit.",
      .bare_class = "ViTModel",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
      // Left over from pre-training in some classifiers.
      .ignored = {"vit.pooler.*", "vit.embeddings.mask_token"},
  };
  return family;
}

}  // namespace pare
