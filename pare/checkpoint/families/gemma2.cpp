// Gemma 2: Gemma with norms after the sublayers too, softcaps, a scale of its own and a window in every other layer.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

namespace {

constexpr LlamaLike gemma2 = {
    .model_type = "gemma2",
    .classes = "Gemma2",
    .width = 2304,
    .vocab = 256000,
    .context = 8192,
    .layers = 26,
    .heads = 8,
    .mlp_width = 9216,
    .kv_heads = 4,
    .head_width = 256,
    .activation_key = "hidden_activation",
    .activation = "gelu_pytorch_tanh",
    .tied = true,
    .biased_by_key = true,
    .gain_offset = 1,
    .scaled_embedding = true,
    .answers = "",
};

std::optional<double> read_softcap(Config& config, std::string_view key, double fallback) {
  const double cap = config.number({key}, fallback, above_zero, most::number);
  return config.is_null(key) ? std::nullopt : std::optional(cap);
}

nlohmann::ordered_json softcap_or_null(const std::optional<double>& cap) {
  return cap ? nlohmann::ordered_json(*cap) : nullptr;
}

// Scores are divided by the root of query_pre_attn_scalar.
int64_t score_divisor(const Attention& attention) {
  const double scale = scale_of(attention);
  return std::llround(std::clamp(1 / (scale * scale), 1.0, static_cast<double>(most::rows)));
}

Architecture read_config(Config& config) {
  Architecture a = read_llama_like(config, gemma2);
  Block block = a.blocks.front();
  if (a.width % block.attention.heads != 0) {
    config.problem(fmt::format("num_attention_heads {} does not divide hidden_size {}, as Hugging Face asks of Gemma 2",
                               block.attention.heads, a.width));
  }
  block.attention.output_norm = block.mlp->output_norm = a.final_norm;
  block.attention.softcap = read_softcap(config, "attn_logit_softcapping", 50);
  const int64_t divisor = config.integer({"query_pre_attn_scalar"}, 256, 1, most::rows);
  if (divisor != block.attention.head_width) {
    block.attention.scale = 1 / std::sqrt(static_cast<double>(divisor));
  }
  a.blocks.assign(a.blocks.size(), block);
  check_activation(config, "hidden_act", dense_mlp(block).activation);
  const std::optional<double> final_softcap = read_softcap(config, "final_logit_softcapping", 30);
  a.head.softcap = a.task == Task::causal_lm ? final_softcap : std::nullopt;
  config.only("use_bidirectional_attention", false, "Hugging Face's own kernels do not agree about it");

  const std::optional<int64_t> window = read_window(config);
  if (!window) {
    config.wrong("sliding_window", nullptr, "a whole number: Gemma 2 has a window even where no layer uses it");
  }
  if (window) {
    config.only("sliding_window_size", *window, "transformers reads sliding_window");
  }
  read_layer_types(config, a, window, [](int64_t layer) { return layer % 2 == 0; });
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  nlohmann::ordered_json config = write_llama_like(a, gemma2);
  const Attention& attention = a.blocks.front().attention;
  config["query_pre_attn_scalar"] = score_divisor(attention);
  config["attn_logit_softcapping"] = softcap_or_null(attention.softcap);
  config["final_logit_softcapping"] = softcap_or_null(a.head.softcap);
  write_layer_types(config, a);
  if (config["sliding_window"].is_null()) {
    config["sliding_window"] = a.context;
  }
  return config;
}

}  // namespace

const Family& family_gemma2() {
  static const Family family = llama_like_family<gemma2>(read_config, write_config);
  return family;
}

}  // namespace pare
