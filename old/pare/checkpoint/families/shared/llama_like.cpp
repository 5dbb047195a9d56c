#include "pare/checkpoint/families/shared/llama_like.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "pare/checkpoint/families/shared/decoder_family.h"
#include "pare/support/text.h"

namespace pare {

namespace {

Attention read_attention(Config& config, const LlamaLike& like, int64_t width, int64_t context) {
  Attention attention;
  attention.heads = config.integer({"num_attention_heads"}, like.heads, 1, most::heads);
  const bool own_keys = !like.kv_heads || config.is_null("num_key_value_heads");
  attention.kv_heads =
      config.integer({"num_key_value_heads"}, own_keys ? attention.heads : *like.kv_heads, 1, most::heads);
  if (!config.has("head_dim") && !like.head_width && width % attention.heads != 0) {
    config.problem(fmt::format("num_attention_heads {} does not divide hidden_size {}, and there is no head_dim",
                               attention.heads, width));
  }
  attention.head_width =
      config.integer({"head_dim"}, like.head_width.value_or(width / attention.heads), 1, most::width);
  if (like.biased_by_key) {
    const bool biased = config.flag("attention_bias", false);
    attention.bias = {biased, biased, biased, biased};
  }
  const nlohmann::json& rope = config.raw("rope_parameters");
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    if (rope.is_object() && rope.contains(kind)) {
      config.problem(
          fmt::format("rope_parameters has settings for {} alone: all layers of this family turn alike", quote(kind)));
    }
  }
  attention.rope = read_rope(config, {.head_width = attention.head_width, .context = context});
  return attention;
}

DecoderHeads heads_of(const LlamaLike& like) {
  return {.classes = like.classes, .base_prefix = "model.", .answers = like.answers};
}

}  // namespace

Architecture read_llama_like(Config& config, const LlamaLike& like) {
  Architecture a;
  a.name = like.model_type;
  read_decoder_head(config, a, heads_of(like), like.tied);
  a.width = config.integer({"hidden_size"}, like.width, 1, most::width);
  a.vocab = config.integer({"vocab_size"}, like.vocab, 1, most::rows);
  a.context = config.integer({"max_position_embeddings"}, like.context, 1, most::rows);
  // In float64 this is what Hugging Face has; in a narrower type it rounds the root before multiplying, we do after.
  a.embedding.scale = like.scaled_embedding ? std::sqrt(static_cast<double>(a.width)) : 1;
  Norm norm = rms_norm(config.epsilon("rms_norm_eps", 1e-6));
  norm.offset = like.gain_offset;
  a.final_norm = norm;

  const int64_t layers = config.integer({"num_hidden_layers"}, like.layers, 1, most::layers);
  Block block;
  block.attention = read_attention(config, like, a.width, a.context);
  block.attention.norm = norm;
  Mlp& mlp = block.mlp.emplace();
  DenseMlp& dense = mlp.kind.emplace<DenseMlp>();
  dense.width = config.integer({"intermediate_size"}, like.mlp_width, 1, 4 * most::width);
  dense.activation = config.activation(like.activation_key, like.activation);
  dense.gated = true;
  mlp.norm = norm;
  a.blocks.assign(static_cast<size_t>(layers), block);

  config.only("is_causal", true, "the family looks back only");
  config.neutral({"cache_implementation", "is_decoder"});
  return a;
}

nlohmann::ordered_json write_llama_like(const Architecture& a, const LlamaLike& like) {
  const std::vector<Block>& blocks = a.blocks;
  const Attention& attention = blocks.front().attention;
  const DenseMlp mlp = dense_mlp(blocks.front());
  nlohmann::ordered_json config = write_decoder_head(a, heads_of(like));
  config.update(nlohmann::ordered_json{{"model_type", like.model_type},
                                       {"vocab_size", a.vocab},
                                       {"hidden_size", a.width},
                                       {"intermediate_size", mlp.width},
                                       {"num_hidden_layers", blocks.size()},
                                       {"num_attention_heads", attention.heads},
                                       {"num_key_value_heads", attention.kv_heads},
                                       {"head_dim", attention.head_width},
                                       {like.activation_key, hugging_face_activation(mlp.activation)},
                                       {"max_position_embeddings", a.context},
                                       {"rms_norm_eps", a.final_norm.value_or(Norm{}).epsilon}});
  if (like.biased_by_key) {
    config["attention_bias"] = attention.bias.query;
  }
  write_rope(config, attention.rope.value_or(Rope{.width = attention.head_width}), attention.head_width);
  return config;
}

std::vector<Binding> bind_llama_like(const Architecture& a, const LlamaLike& like) {
  const std::string prefix(a.task == Task::question_answering ? like.answers_prefix : "model.");
  // The norm between the sublayers is the second one's own, unless the first one's output has a norm too.
  const bool outer_norms = a.blocks.front().attention.output_norm.has_value();
  Binder binder(a);
  binder.module(prefix + "embed_tokens", {"embed.token"});
  bind_blocks(binder, a, prefix + "layers",
              {{"input_layernorm", {"attention.norm"}},
               {"self_attn.q_proj", {"attention.query"}},
               {"self_attn.k_proj", {"attention.key"}},
               {"self_attn.v_proj", {"attention.value"}},
               {"self_attn.o_proj", {"attention.output"}},
               {"self_attn.q_norm", {"attention.query_norm"}},
               {"self_attn.k_norm", {"attention.key_norm"}},
               {"post_attention_layernorm", {"attention.output_norm"}},
               {outer_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", {"mlp.norm"}},
               {"mlp.up_proj", {"mlp.up"}},
               {"mlp.gate_proj", {"mlp.gate"}},
               {"mlp.down_proj", {"mlp.down"}},
               {"post_feedforward_layernorm", {"mlp.output_norm"}}});
  binder.module(prefix + "norm", {"norm"});
  bind_decoder_head(binder, a, heads_of(like));
  return binder.take();
}

Family llama_like_family(const LlamaLike& like, decltype(Family::read_config) read,
                         decltype(Family::write_config) write, decltype(Family::bindings) bindings) {
  Family family = {.model_type = like.model_type,
                   .base_prefix = "model.",
                   .bare_class = fmt::format("{}Model", like.classes),
                   .read_config = read,
                   .write_config = write,
                   .bindings = bindings};
  if (like.stored_frequencies) {
    family.ignored = {"model.layers.*.rotary_emb.inv_freq"};
  }
  return family;
}

std::optional<int64_t> read_window(Config& config) {
  if (config.is_null("sliding_window")) {
    return std::nullopt;
  }
  return config.integer({"sliding_window"}, 4096, 1, most::rows);
}

void read_layer_types(Config& config, Architecture& a, std::optional<int64_t> window,
                      const std::function<bool(int64_t layer)>& slides) {
  const nlohmann::json types = config.raw("layer_types");
  const int64_t layers = std::ssize(a.blocks);
  if (!types.is_null() && (!types.is_array() || static_cast<int64_t>(types.size()) != layers)) {
    config.wrong("layer_types", types, fmt::format("a list of {} names, one for each layer", layers));
    return;
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    bool sliding = types.is_null() && slides(layer);
    if (!types.is_null()) {
      const nlohmann::json& type = types[static_cast<size_t>(layer)];
      sliding = type == "sliding_attention";
      if (!sliding && type != "full_attention" && type != "attention") {
        config.wrong(fmt::format("layer_types[{}]", layer), type, "full_attention or sliding_attention");
      }
    }
    if (sliding && !window) {
      config.problem(fmt::format("layer {} is of the type sliding_attention, but there is no sliding_window", layer));
    }
    a.blocks[static_cast<size_t>(layer)].attention.window = sliding ? window : std::nullopt;
  }
}

void write_layer_types(nlohmann::ordered_json& config, const Architecture& a) {
  config["sliding_window"] = nullptr;
  config["layer_types"] = nlohmann::ordered_json::array();
  for (const Block& block : a.blocks) {
    const std::optional<int64_t>& window = block.attention.window;
    config["layer_types"].push_back(window ? "sliding_attention" : "full_attention");
    if (window) {
      config["sliding_window"] = *window;
    }
  }
}

void read_late_windows(Config& config, Architecture& a) {
  const std::optional<int64_t> named = read_window(config);
  const std::optional<int64_t> window = config.flag("use_sliding_window", false) ? named : std::nullopt;
  const int64_t first = config.integer({"max_window_layers"}, 28, 0, most::layers);
  read_layer_types(config, a, window, [&](int64_t layer) { return window && layer >= first; });
}

void write_late_windows(nlohmann::ordered_json& config, const Architecture& a) {
  write_layer_types(config, a);
  const std::vector<Block>& blocks = a.blocks;
  const auto first =
      std::find_if(blocks.begin(), blocks.end(), [](const Block& b) { return b.attention.window.has_value(); });
  config["use_sliding_window"] = first != blocks.end();
  config["max_window_layers"] = first - blocks.begin();
}

void check_activation(Config& config, std::string_view key, Activation activation) {
  if (config.has(key) && config.activation(key, "") != activation) {
    config.wrong(key, config.raw(key), fmt::format("{}, which the model has", hugging_face_activation(activation)));
  }
}

}  // namespace pare
