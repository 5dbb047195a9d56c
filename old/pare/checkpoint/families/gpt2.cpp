// GPT-2: learned positions, LayerNorm before each sublayer, one fused [in, out] matrix for queries, keys and values.

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/config.h"
#include "pare/checkpoint/families/shared/decoder_family.h"

namespace pare {

namespace {

constexpr DecoderHeads heads_of_gpt2 = {
    .classes = "GPT2", .base_prefix = "transformer.", .language_class = "LMHeadModel", .tokens = "classifier"};

Architecture read_config(Config& config) {
  Architecture a;
  a.name = "gpt2";
  read_decoder_head(config, a, heads_of_gpt2, true);
  a.width = config.integer({"n_embd", "hidden_size"}, 768, 1, most::width);
  a.vocab = config.integer({"vocab_size"}, 50257, 1, most::rows);
  a.context = config.integer({"n_positions", "max_position_embeddings"}, 1024, 1, most::rows);
  a.embedding.position = Position::learned;
  const Norm norm = layer_norm(config.epsilon("layer_norm_epsilon", 1e-5));
  a.final_norm = norm;

  const int64_t layers = config.integer({"n_layer", "num_hidden_layers"}, 12, 1, most::layers);
  const int64_t heads = config.integer({"n_head", "num_attention_heads"}, 12, 1, most::heads);
  if (a.width % heads != 0) {
    config.problem(fmt::format("n_head {} does not divide n_embd {}", heads, a.width));
  }
  Block block;
  block.attention.heads = block.attention.kv_heads = heads;
  block.attention.head_width = a.width / heads;
  block.attention.bias = {true, true, true, true};
  block.attention.norm = norm;
  Mlp& mlp = block.mlp.emplace();
  DenseMlp& dense = mlp.kind.emplace<DenseMlp>();
  dense.width = config.integer({"n_inner"}, 4 * a.width, 1, 4 * most::width);
  dense.activation = config.activation("activation_function", "gelu_new");
  dense.bias = {.up = true, .down = true};
  mlp.norm = norm;

  const bool scaled = config.flag("scale_attn_weights", true);
  const bool by_layer = config.flag("scale_attn_by_inverse_layer_idx", false);
  const double scale = scaled ? 1 / std::sqrt(static_cast<double>(block.attention.head_width)) : 1;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (by_layer || !scaled) {
      block.attention.scale = by_layer ? scale / static_cast<double>(layer + 1) : scale;
    }
    a.blocks.push_back(block);
  }

  config.only("is_causal", true, "GPT-2 looks back only");
  // reorder_and_upcast_attn only chooses the precision of the scores.
  config.neutral({"n_ctx", "is_decoder", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
                  "summary_proj_to_labels", "summary_type", "summary_use_proj"});
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  const std::vector<Block>& blocks = a.blocks;
  const Attention& first = blocks.front().attention;
  const DenseMlp mlp = dense_mlp(blocks.front());
  const bool scaled = first.scale != 1.0;
  const bool by_layer = scaled ? first.scale.has_value() : blocks.back().attention.scale != first.scale;
  nlohmann::ordered_json config = write_decoder_head(a, heads_of_gpt2);
  config.update(nlohmann::ordered_json{{"model_type", "gpt2"},
                                       {"vocab_size", a.vocab},
                                       {"n_positions", a.context},
                                       {"n_embd", a.width},
                                       {"n_layer", blocks.size()},
                                       {"n_head", first.heads},
                                       {"n_inner", mlp.width},
                                       {"activation_function", hugging_face_activation(mlp.activation)},
                                       {"layer_norm_epsilon", a.final_norm.value_or(Norm{}).epsilon},
                                       {"scale_attn_weights", scaled},
                                       {"scale_attn_by_inverse_layer_idx", by_layer}});
  return config;
}

std::vector<Binding> bindings(const Architecture& a) {
  Binder binder(a);
  binder.module("transformer.wte", {"embed.token"});
  binder.module("transformer.wpe", {"embed.position"});
  const std::vector<Block>& blocks = a.blocks;
  for (size_t n = 0; n < blocks.size(); ++n) {
    const std::string theirs = fmt::format("transformer.h.{}.", n);
    const std::string attention = fmt::format("blocks.{}.attention.", n), mlp = fmt::format("blocks.{}.mlp.", n);
    const int64_t rows = blocks[n].attention.heads * blocks[n].attention.head_width;
    binder.module(theirs + "ln_1", {attention + "norm"});
    binder.module(theirs + "attn.c_attn", {attention + "query", attention + "key", attention + "value"},
                  transposed(stacked({rows, rows, rows})));
    binder.module(theirs + "attn.c_proj", {attention + "output"}, transposed());
    binder.module(theirs + "ln_2", {mlp + "norm"});
    binder.module(theirs + "mlp.c_fc", {mlp + "up"}, transposed());
    binder.module(theirs + "mlp.c_proj", {mlp + "down"}, transposed());
  }
  binder.module("transformer.ln_f", {"norm"});
  bind_decoder_head(binder, a, heads_of_gpt2);
  return binder.take();
}

}  // namespace

const Family& family_gpt2() {
  static const Family family = {
      .model_type = "gpt2",
      .base_prefix = "transformer.",
      .bare_class = "GPT2Model",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
      .ignored = {"transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"},
  };
  return family;
}

}  // namespace pare
