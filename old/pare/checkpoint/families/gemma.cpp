// Gemma: Llama with gains stored as their distance from one, a scaled embedding and a width of heads of their own.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

namespace {

constexpr LlamaLike gemma = {
    .model_type = "gemma",
    .classes = "Gemma",
    .width = 3072,
    .vocab = 256000,
    .context = 8192,
    .layers = 28,
    .heads = 16,
    .mlp_width = 24576,
    .kv_heads = 16,
    .head_width = 256,
    .activation = "gelu_pytorch_tanh",
    .tied = true,
    .biased_by_key = true,
    .gain_offset = 1,
    .scaled_embedding = true,
    .answers = "",
    .stored_frequencies = true,
};

Architecture read_config(Config& config) {
  Architecture a = read_llama_like(config, gemma);
  // The first files said gelu and meant the other one; Hugging Face corrects them so.
  if (config.text("hidden_act", gemma.activation) == "gelu") {
    for (Block& block : a.blocks) {
      std::get<DenseMlp>(block.mlp->kind).activation = Activation::gelu_tanh;
    }
  }
  check_activation(config, "hidden_activation", dense_mlp(a.blocks.front()).activation);
  config.only("use_bidirectional_attention", false, "Hugging Face's own kernels do not agree about it");
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  nlohmann::ordered_json config = write_llama_like(a, gemma);
  if (config[gemma.activation_key] == "gelu") {
    config[gemma.activation_key] = "gelu_python";  // the one spelling that means what it says
  }
  return config;
}

}  // namespace

const Family& family_gemma() {
  static const Family family = llama_like_family<gemma>(read_config, write_config);
  return family;
}

}  // namespace pare
