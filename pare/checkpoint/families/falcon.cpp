// Falcon: rotary positions or ALiBi, one key/value head for all queries or one for each group, attention and MLP side
// by side (behind one LayerNorm or two) or in turn. Three generations in one configuration:
//   falcon-rw   alibi, multi_query and parallel_attn false: heads of their own, serial
//   falcon-7b   multi_query: one key/value head, parallel, one norm
//   falcon-40b  new_decoder_architecture: num_kv_heads groups, parallel, two norms (num_ln_in_parallel_attn 2)
// All of them store queries, keys and values in one matrix, group by group.

#include <fmt/format.h>

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

namespace {

int64_t read_kv_heads(Config& config, int64_t heads, bool newer) {
  const bool multi_query = config.flag("multi_query", true);
  const int64_t kv_heads = config.integer("num_kv_heads", heads, 1, most::heads);
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
void read_wiring(Config& config, Block& block, bool newer) {
  const bool parallel = config.flag("parallel_attn", true);
  const int64_t norms = config.integer("num_ln_in_parallel_attn", newer ? 2 : 1, 1, 2);
  if (newer && !parallel) {
    config.problem("parallel_attn is false; with new_decoder_architecture only true is supported");
  }
  if (!newer && parallel && norms == 2) {
    config.problem("num_ln_in_parallel_attn is 2; without new_decoder_architecture only 1 is supported");
  }
  block.wiring = parallel ? Wiring::parallel : Wiring::serial;
  if (!parallel || norms == 2) {
    block.mlp->norm = layer_norm();
  }
}

bool has_two_norms(const Architecture& a) {
  const Block& block = a.blocks.front();
  return block.wiring == Wiring::parallel && block.mlp && block.mlp->norm;
}

bool has_other_norms(const Architecture& a) {
  return !has_two_norms(a);
}

const Field generation = {[](Config& config, const Key&, Draft& draft) {
                            const bool newer = config.flag("new_decoder_architecture", false);
                            draft.block.attention.kv_heads = read_kv_heads(config, draft.block.attention.heads, newer);
                            read_wiring(config, draft.block, newer);
                          },
                          [](nlohmann::ordered_json& config, const Key&, Draft& draft) {
                            const Attention& attention = draft.block.attention;
                            const bool parallel = draft.block.wiring == Wiring::parallel,
                                       two_norms = has_two_norms(draft.a);
                            const bool grouped = attention.kv_heads != 1 && attention.kv_heads != attention.heads;
                            config["num_kv_heads"] = attention.kv_heads;
                            config["multi_query"] = attention.kv_heads == 1;
                            config["new_decoder_architecture"] = two_norms || (parallel && grouped);
                            config["parallel_attn"] = parallel;
                            config["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
                          }};

// transformers rounds slopes and biases to bfloat16; ours are exact. See docs/formats.md.
const Field alibi = field::flag([](const Draft& d) { return d.block.attention.alibi.has_value(); },
                                [](Draft& d, bool value) {
                                  if (value) {
                                    d.block.attention.alibi = Alibi{.scaled = true};
                                  }
                                });

const Field rope_without_alibi = {[](Config& config, const Key& key, Draft& draft) {
                                    if (!draft.block.attention.alibi) {
                                      return field::rope().read(config, key, draft);
                                    }
                                    config.neutral({"rope_theta", "rope_scaling", "rope_parameters"});
                                    for (const char* kernel : {"attn_implementation", "_attn_implementation"}) {
                                      config.only(kernel, "sdpa",
                                                  "any other attention of transformers adds Falcon's ALiBi twice");
                                    }
                                  },
                                  [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                                    if (draft.block.attention.rope) {
                                      field::rope().write(config, key, draft);
                                    }
                                  }};

}  // namespace

const Family& family_falcon() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "falcon",
      .classes = "Falcon",
      .base_prefix = "transformer.",
      .model = {.blocks = {{.attention = {.norm = layer_norm()}, .mlp = Mlp{}}}, .final_norm = layer_norm()},
      .heads = decoder_heads({.tied = true, .tokens = "classifier"}),
      .keys =
          {
              {"vocab_size", vocab, 65024},
              {{"hidden_size", "n_embed"}, width, 4544},
              {"ffn_hidden_size", mlp_width},
              {"num_hidden_layers", layers, 32},
              {"num_attention_heads", heads, 71},
              {"num_kv_heads", generation},
              {"activation", activation, "gelu"},
              {"alibi", alibi, false},
              {"bias", biases, false},
              {"max_position_embeddings", context, 2048},
              {"layer_norm_epsilon", epsilon, 1e-5},
              {"rope_parameters", rope_without_alibi},
              {"head_dim", repeats(head_width, "the heads of Falcon divide its width")},
              {"is_causal", only(true, "Falcon looks back only")},
              {"output_attentions",
               only(false, "with it transformers' Falcon hides no later token, or adds ALiBi twice")},
              {"apply_residual_connection_post_layernorm", only(false, "Falcon's skips start before the norm")},
              {"auto_map", own_classes("Falcon")},
          },
      // The shapes say it, and ffn_hidden_size where it is not 4.
      .neutral = {"ff_factor"},
      .tensors =
          {
              {"word_embeddings", "embed.token"},
              {"h.{}.ln_attn", "attention.norm", Stored::plain, has_two_norms},
              {"h.{}.input_layernorm", "attention.norm", Stored::plain, has_other_norms},
              {"h.{}.self_attention.query_key_value",
               {"attention.query", "attention.key", "attention.value"},
               Stored::by_key_heads},
              {"h.{}.self_attention.dense", "attention.output"},
              {"h.{}.ln_mlp", "mlp.norm", Stored::plain, has_two_norms},
              {"h.{}.post_attention_layernorm", "mlp.norm", Stored::plain, has_other_norms},
              {"h.{}.mlp.dense_h_to_4h", "mlp.up"},
              {"h.{}.mlp.dense_4h_to_h", "mlp.down"},
              {"ln_f", "norm"},
          },
      .ignored = {"transformer.h.*.self_attention.rotary.inv_freq",
                  "transformer.h.*.self_attention.maybe_rotary.inv_freq",
                  "transformer.h.*.self_attention.rotary_emb.inv_freq"},
  });
  return family;
}

}  // namespace pare
