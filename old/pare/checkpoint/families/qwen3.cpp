// Qwen 3: Llama with a norm on every query and key head, and a window for some of its layers.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

namespace {

constexpr LlamaLike qwen3 = {
    .model_type = "qwen3",
    .classes = "Qwen3",
    .width = 4096,
    .vocab = 151936,
    .context = 32768,
    .layers = 32,
    .heads = 32,
    .mlp_width = 22016,
    .kv_heads = 32,
    .head_width = 128,
    .biased_by_key = true,
    .answers_prefix = "transformer.",
};

Architecture read_config(Config& config) {
  Architecture a = read_llama_like(config, qwen3);
  for (Block& block : a.blocks) {
    block.attention.qk_norm = a.final_norm;
  }
  read_late_windows(config, a);
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  nlohmann::ordered_json config = write_llama_like(a, qwen3);
  write_late_windows(config, a);
  return config;
}

}  // namespace

const Family& family_qwen3() {
  static const Family family = llama_like_family<qwen3>(read_config, write_config);
  return family;
}

}  // namespace pare
