// Llama: rotary positions, RMSNorm before each sublayer, grouped key/value heads, gated MLP.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

namespace {

constexpr LlamaLike llama = {
    .model_type = "llama",
    .classes = "Llama",
    .width = 4096,
    .vocab = 32000,
    .context = 2048,
    .layers = 32,
    .heads = 32,
    .mlp_width = 11008,
    .biased_by_key = true,
    .answers_prefix = "transformer.",
    .stored_frequencies = true,
};

Architecture read_config(Config& config) {
  Architecture a = read_llama_like(config, llama);
  const bool biased = config.flag("mlp_bias", false);
  for (Block& block : a.blocks) {
    std::get<DenseMlp>(block.mlp->kind).bias = {biased, biased, biased};
  }
  // It only slices the same products.
  config.neutral({"pretraining_tp"});
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  nlohmann::ordered_json config = write_llama_like(a, llama);
  config["mlp_bias"] = dense_mlp(a.blocks.front()).bias.up;
  return config;
}

}  // namespace

const Family& family_llama() {
  static const Family family = llama_like_family<llama>(read_config, write_config);
  return family;
}

}  // namespace pare
