// GPT BigCode (SantaCoder, StarCoder): GPT-2 with one key and value for all queries, and matrices stored [out, in].

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

static const Field multi_query = field::flag([](const Draft& d) { return d.block.attention.kv_heads == 1; },
                                             [](Draft& d, bool value) {
                                               Attention& attention = d.block.attention;
                                               attention.kv_heads = value ? 1 : attention.heads;
                                             });

const Family& family_gpt_bigcode() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "gpt_bigcode",
      .classes = "GPTBigCode",
      .base_prefix = "transformer.",
      .model = {.embedding = {.position = Position::learned},
                .blocks = {{.attention = {.bias = {true, true, true, true}, .norm = layer_norm()},
                            .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = layer_norm()}}},
                .final_norm = layer_norm()},
      .heads = decoder_heads({.tied = true, .tokens = "classifier", .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 50257},
              {{"n_positions", "max_position_embeddings"}, context, 1024},
              {{"n_embd", "hidden_size"}, width, 768},
              {{"n_layer", "num_hidden_layers"}, layers, 12},
              {{"n_head", "num_attention_heads"}, heads, 12},
              {"n_inner", mlp_width},
              {"multi_query", multi_query, true},
              {"activation_function", activation, "gelu_pytorch_tanh"},
              {"layer_norm_epsilon", epsilon, 1e-5},
              {"scale_attn_weights", only(true, "scores that are not scaled are not supported")},
              {"num_key_value_heads", repeats(kv_heads, "multi_query says it")},
              {"is_causal", only(true, "GPT BigCode looks back only")},
          },
      // Of the precision of the scores, and of the code that trained it.
      .neutral = {"attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "attention_type", "inference_runner",
                  "max_batch_size", "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache",
                  "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
                  "summary_use_proj", "validate_runner_input"},
      .tensors =
          {
              {"wte", "embed.token"},
              {"wpe", "embed.position"},
              {"h.{}.ln_1", "attention.norm"},
              {"h.{}.attn.c_attn", {"attention.query", "attention.key", "attention.value"}, Stored::by_key_heads},
              {"h.{}.attn.c_proj", "attention.output"},
              {"h.{}.ln_2", "mlp.norm"},
              {"h.{}.mlp.c_fc", "mlp.up"},
              {"h.{}.mlp.c_proj", "mlp.down"},
              {"ln_f", "norm"},
          },
      .ignored = {"transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"},
  });
  return family;
}

}  // namespace pare
