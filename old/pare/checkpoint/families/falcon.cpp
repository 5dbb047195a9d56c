// Falcon: rotary positions or ALiBi, one key/value head for all queries or one for each group, attention and MLP side
// by side (behind one LayerNorm or two) or in turn. Three generations in one configuration:
//   falcon-rw   alibi, multi_query and parallel_attn false: heads of their own, serial
//   falcon-7b   multi_query: one key/value head, parallel, one norm
//   falcon-40b  new_decoder_architecture: num_kv_heads groups, parallel, two norms (num_ln_in_parallel_attn 2)
// All of them store queries, keys and values in one matrix, group by group.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/checkpoint/config.h"
#include "pare/checkpoint/families/shared/decoder_family.h"

namespace pare {

namespace {

constexpr DecoderHeads heads_of_falcon = {.classes = "Falcon", .base_prefix = "transformer.", .tokens = "classifier"};

int64_t read_kv_heads(Config& config, int64_t heads, bool newer) {
  const bool multi_query = config.flag("multi_query", !config.is_null("multi_query"));
  const int64_t kv_heads = config.integer({"num_kv_heads"}, heads, 1, most::heads);
  if (newer) {
    return kv_heads;
  }
  // Beside multi_query, files carry any number of them, and it says nothing.
  if (!multi_query && kv_heads != heads) {
    config.problem(
        fmt::format("num_kv_heads is {}; without multi_query and new_decoder_architecture it has to be "
                    "num_attention_heads, {}",
                    kv_heads, heads));
  }
  return multi_query ? 1 : heads;
}

// Which norms there are. What transformers cannot run either is refused.
void read_wiring(Config& config, Block& block, const Norm& norm, bool newer) {
  const bool parallel = config.flag("parallel_attn", !config.is_null("parallel_attn"));
  const int64_t norms = config.integer({"num_ln_in_parallel_attn"}, newer ? 2 : 1, 1, 2);
  if (newer && !parallel) {
    config.problem("parallel_attn is false; with new_decoder_architecture only true is supported");
  }
  if (!newer && parallel && norms == 2) {
    config.problem("num_ln_in_parallel_attn is 2; without new_decoder_architecture only 1 is supported");
  }
  block.wiring = parallel ? Wiring::parallel : Wiring::serial;
  block.attention.norm = norm;
  if (!parallel || norms == 2) {
    block.mlp->norm = norm;
  }
}

Architecture read_config(Config& config) {
  Architecture a;
  a.name = "falcon";
  read_decoder_head(config, a, heads_of_falcon, true);
  a.width = config.integer({"hidden_size", "n_embed"}, 4544, 1, most::width);
  a.vocab = config.integer({"vocab_size"}, 65024, 1, most::rows);
  a.context = config.integer({"max_position_embeddings"}, 2048, 1, most::rows);
  const Norm norm = layer_norm(config.epsilon("layer_norm_epsilon", 1e-5));
  a.final_norm = norm;

  const int64_t layers = config.integer({"num_hidden_layers"}, 32, 1, most::layers);
  Block block;
  const bool newer = config.flag("new_decoder_architecture", false);
  Attention& attention = block.attention;
  attention.heads = config.integer({"num_attention_heads"}, 71, 1, most::heads);
  attention.kv_heads = read_kv_heads(config, attention.heads, newer);
  attention.head_width = equal_head_width(config, a.width, attention.heads);
  const bool biased = config.flag("bias", false);
  attention.bias = {biased, biased, biased, biased};
  if (config.flag("alibi", false)) {
    // transformers rounds slopes and biases to bfloat16; ours are exact. Its explicit path also adds the bias twice;
    // ours is what its fused path computes, which is its default. See docs/formats.md.
    attention.alibi = Alibi{.scaled = true};
    config.neutral({"rope_theta", "rope_scaling", "rope_parameters"});
  } else {
    attention.rope = read_rope(config, {.head_width = attention.head_width, .context = a.context});
  }
  DenseMlp& dense = block.mlp.emplace().kind.emplace<DenseMlp>();
  dense.width = config.integer({"ffn_hidden_size"}, 4 * a.width, 1, 4 * most::width);
  dense.activation = config.activation("activation", "gelu");
  dense.bias = {.up = biased, .down = biased};
  read_wiring(config, block, norm, newer);
  a.blocks.assign(static_cast<size_t>(layers), block);

  config.only("head_dim", attention.head_width, "the heads of Falcon divide its width");
  config.only("is_causal", true, "Falcon looks back only");
  config.only("apply_residual_connection_post_layernorm", false, "Falcon's skips start before the norm");
  // ff_factor: the shapes say it, and ffn_hidden_size where it is not 4.
  config.neutral({"is_decoder", "ff_factor"});
  accept_own_classes(config, "Falcon");
  return a;
}

nlohmann::ordered_json write_config(const Architecture& a) {
  const Block& block = a.blocks.front();
  const Attention& attention = block.attention;
  const DenseMlp mlp = dense_mlp(block);
  const bool parallel = block.wiring == Wiring::parallel;
  const bool grouped = attention.kv_heads != 1 && attention.kv_heads != attention.heads;
  const bool two_norms = parallel && block.mlp && block.mlp->norm;
  const bool newer = two_norms || (parallel && grouped);
  nlohmann::ordered_json config = write_decoder_head(a, heads_of_falcon);
  config.update(nlohmann::ordered_json{{"model_type", "falcon"},
                                       {"vocab_size", a.vocab},
                                       {"hidden_size", a.width},
                                       {"ffn_hidden_size", mlp.width},
                                       {"num_hidden_layers", a.blocks.size()},
                                       {"num_attention_heads", attention.heads},
                                       {"num_kv_heads", attention.kv_heads},
                                       {"multi_query", attention.kv_heads == 1},
                                       {"new_decoder_architecture", newer},
                                       {"parallel_attn", parallel},
                                       {"num_ln_in_parallel_attn", two_norms ? 2 : 1},
                                       {"activation", hugging_face_activation(mlp.activation)},
                                       {"alibi", attention.alibi.has_value()},
                                       {"bias", attention.bias.query},
                                       {"max_position_embeddings", a.context},
                                       {"layer_norm_epsilon", a.final_norm.value_or(Norm{}).epsilon}});
  if (attention.rope) {
    write_rope(config, *attention.rope, attention.head_width);
  }
  return config;
}

std::vector<Binding> bindings(const Architecture& a) {
  const Block& block = a.blocks.front();
  const bool two_norms = block.wiring == Wiring::parallel && block.mlp && block.mlp->norm;
  Binder binder(a);
  binder.module("transformer.word_embeddings", {"embed.token"});
  bind_blocks(binder, a, "transformer.h",
              {{two_norms ? "ln_attn" : "input_layernorm", {"attention.norm"}},
               {"self_attention.query_key_value", {"attention.query", "attention.key", "attention.value"}},
               {"self_attention.dense", {"attention.output"}},
               {two_norms ? "ln_mlp" : "post_attention_layernorm", {"mlp.norm"}},
               {"mlp.dense_h_to_4h", {"mlp.up"}},
               {"mlp.dense_4h_to_h", {"mlp.down"}}});
  binder.module("transformer.ln_f", {"norm"});
  bind_decoder_head(binder, a, heads_of_falcon);
  return binder.take();
}

}  // namespace

const Family& family_falcon() {
  static const Family family = {
      .model_type = "falcon",
      .base_prefix = "transformer.",
      .bare_class = "FalconModel",
      .read_config = read_config,
      .write_config = write_config,
      .bindings = bindings,
      .ignored = {"transformer.h.*.self_attention.rotary.inv_freq",
                  "transformer.h.*.self_attention.maybe_rotary.inv_freq",
                  "transformer.h.*.self_attention.rotary_emb.inv_freq"},
  };
  return family;
}

}  // namespace pare
