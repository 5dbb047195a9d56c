#include "pare/checkpoint/families/shared/gemma_like.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pare {

namespace {

// Looking both ways, a window reaches half as far to each side.
const Field both_ways = {[](Config& config, const Key& key, Draft& draft) {
                           Attention& attention = draft.block.attention;
                           if (config.flag(key.name(), false)) {
                             attention.mask = Mask::full;
                             attention.window = attention.window.value_or(0) / 2 + 1;
                           }
                         },
                         [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                           const std::vector<Block>& blocks = draft.a.blocks;
                           const bool full = blocks.front().attention.mask == Mask::full;
                           const auto slides = [](const Block& b) { return b.attention.window.has_value(); };
                           if (const auto one = std::ranges::find_if(blocks, slides); full && one != blocks.end()) {
                             config["sliding_window"] = std::max<int64_t>(1, 2 * (*one->attention.window - 1));
                           }
                           config[key.name()] = full;
                         }};

// Where there is no list, every so many layers one is without a window.
const Field patterned_types = {
    [](Config& config, const Key& key, Draft& draft) {
      const int64_t pattern = config.integer("sliding_window_pattern", 6, 1, most::layers);
      field::layer_types([pattern](int64_t layer) { return (layer + 1) % pattern != 0; }).read(config, key, draft);
    },
    field::layer_types(nullptr).write};

}  // namespace

FamilyTable gemma_like(FamilyTable table) {
  table.tensors = {
      {"embed_tokens", "embed.token"},
      {"layers.{}.input_layernorm", "attention.norm"},
      {"layers.{}.self_attn.q_proj", "attention.query"},
      {"layers.{}.self_attn.k_proj", "attention.key"},
      {"layers.{}.self_attn.v_proj", "attention.value"},
      {"layers.{}.self_attn.o_proj", "attention.output"},
      {"layers.{}.self_attn.q_norm", "attention.query_norm"},
      {"layers.{}.self_attn.k_norm", "attention.key_norm"},
      {"layers.{}.post_attention_layernorm", "attention.output_norm"},
      {"layers.{}.pre_feedforward_layernorm", "mlp.norm"},
      {"layers.{}.mlp.up_proj", "mlp.up"},
      {"layers.{}.mlp.gate_proj", "mlp.gate"},
      {"layers.{}.mlp.down_proj", "mlp.down"},
      {"layers.{}.post_feedforward_layernorm", "mlp.output_norm"},
      {"norm", "norm"},
  };
  return llama_like(std::move(table));
}

Architecture gemma_model(const std::optional<Norm>& qk_norm) {
  return llama_model({.qk_norm = qk_norm, .norm = rms_norm(1), .output_norm = rms_norm(1)});
}

FamilyTable gemma3_like(FamilyTable table) {
  using namespace field;
  const std::vector<Key> keys = {
      {"vocab_size", vocab, 262208},
      {"hidden_size", scaled_width, 2304},
      {"intermediate_size", mlp_width, 9216},
      {"num_hidden_layers", layers, 26},
      {"num_attention_heads", heads, 8},
      {"num_key_value_heads", kv_heads, 4},
      {"head_dim", head_width, 256},
      {"hidden_activation", activation, "gelu_pytorch_tanh"},
      {"hidden_act", same_activation},
      {"max_position_embeddings", context, 131072},
      {"rms_norm_eps", epsilon, 1e-6},
      {"attention_bias", attention_bias, false},
      {"query_pre_attn_scalar", score_divisor, 256},
      {"attn_logit_softcapping", only(nullptr, "Hugging Face has the key, and no code for it")},
      {"sliding_window", required_window, 4096},
      {"use_bidirectional_attention", both_ways, false},
      {"layer_types", patterned_types},
      {"rope_parameters", rope_by_type({.full = {.theta = 1e6}, .sliding = {.theta_key = "rope_local_base_freq"}})},
  };
  table.keys.insert(table.keys.begin(), keys.begin(), keys.end());
  table.neutral.push_back("_sliding_window_pattern");  // beside it files have the list that it stands for
  table.model = gemma_model(rms_norm(1));
  table.finish = divides_width;
  return gemma_like(std::move(table));
}

namespace field {

const Field score_divisor = whole(
    [](const Draft& d) {
      const double scale = scale_of(d.block.attention);
      return int64_t{std::llround(std::clamp(1 / (scale * scale), 1.0, static_cast<double>(most::rows)))};
    },
    [](Draft& d, int64_t divisor) {
      if (divisor != d.block.attention.head_width) {
        d.block.attention.scale = 1 / std::sqrt(static_cast<double>(divisor));
      }
    },
    1, most::rows);

const Field required_window = {[](Config& config, const Key& key, Draft& draft) {
                                 window.read(config, key, draft);
                                 if (config.is_null(key.name())) {
                                   config.wrong(key.name(), nullptr,
                                                "a whole number: Gemma has a window even where no layer uses it");
                                 }
                               },
                               [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                                 window.write(config, key, draft);
                                 if (config[key.name()].is_null()) {
                                   config[key.name()] = draft.a.context;
                                 }
                               }};

}  // namespace field

void divides_width(Config& config, Draft& draft) {
  if (draft.a.width % draft.block.attention.heads != 0) {
    config.problem(fmt::format("num_attention_heads {} does not divide hidden_size {}, as Hugging Face asks of Gemma",
                               draft.block.attention.heads, draft.a.width));
  }
}

}  // namespace pare
