// BERT: learned positions and token types, LayerNorm after each sublayer, full attention, pre-trained on masked tokens
// and on whether one sentence follows another.

#include "pare/checkpoint/families/shared/bert_like.h"

namespace pare {

const Family& family_bert() {
  using namespace field;
  static const Family family = make_family(bert_like(
      {
          .model_type = "bert",
          .classes = "Bert",
          .base_prefix = "bert.",
          .keys =
              {
                  {"vocab_size", vocab, 30522},
                  {"hidden_size", width, 768},
                  {"num_hidden_layers", layers, 12},
                  {"num_attention_heads", heads, 12},
                  {"intermediate_size", mlp_width, 3072},
                  {"hidden_act", activation, "gelu"},
                  {"max_position_embeddings", context, 512},
                  {"type_vocab_size", types, 2},
                  {"layer_norm_eps", epsilon, 1e-12},
                  {"tie_word_embeddings", tied, true},
                  {"id2label", labels},
              },
          // Of the first implementation; transformers reads none of them.
          .neutral = {"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
                      "pooler_size_per_head", "pooler_type"},
          .finish = share_activation,
          // Pre-training left a pooler and a next-sentence head in many masked-LM files. An untied decoder brings its
          // own bias, and nothing reads the other one.
          .ignored = {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids", "bert.pooler.*",
                      "cls.seq_relationship.*", "cls.predictions.bias"},
          .renamed = {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}},
      },
      {
          .pooler = "pooler.dense",
          .predictions = "cls.predictions",
          .predictions_dense = "transform.dense",
          .predictions_norm = "transform.LayerNorm",
          .tied_bias = "cls.predictions.bias",
          .sequence_head = "cls.seq_relationship",
          .next_sentence = true,
      }));
  return family;
}

}  // namespace pare
