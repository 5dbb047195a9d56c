// EuroBERT: Llama that looks both ways, trained on masked tokens.

#include "pare/checkpoint/families/shared/llama_like.h"

namespace pare {

namespace {

Heads heads_of_eurobert() {
  return {.classes = {
              {"Model", Task::encoder},
              {"ForMaskedLM", Task::masked_lm, {}, {{"lm_head", "head"}}},
              {"ForTokenClassification", Task::token_classifier, {.bias = true}, {{"classifier", "head"}}},
          }};
}

// The head of a masked LM has a bias where the MLPs have one.
const Field biases_of_mlp_and_head = {
    [](Config& config, const Key& key, Draft& draft) {
      field::mlp_bias.read(config, key, draft);
      if (draft.a.task == Task::masked_lm) {
        draft.a.head.bias = draft.mlp.bias.up;
      }
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) { field::mlp_bias.write(config, key, draft); }};

FamilyTable make_table() {
  using namespace field;
  FamilyTable table = llama_like({
      .model_type = "eurobert",
      .classes = "EuroBert",
      .model = llama_model({.mask = Mask::full, .norm = rms_norm()}),
      .heads = heads_of_eurobert(),
  });
  table.keys = {
      {"vocab_size", vocab, 128256},
      {"hidden_size", width, 768},
      {"intermediate_size", mlp_width, 3072},
      {"num_hidden_layers", layers, 12},
      {"num_attention_heads", heads, 12},
      {"num_key_value_heads", kv_heads},
      {"head_dim", head_width},
      {"hidden_act", activation, "silu"},
      {"max_position_embeddings", context, 8192},
      {"rms_norm_eps", epsilon, 1e-5},
      {"attention_bias", attention_bias, false},
      {"mlp_bias", biases_of_mlp_and_head, false},
      {"rope_parameters", rope()},
      {"tie_word_embeddings", tied, false},
      {"id2label", labels},
      {"auto_map", own_classes("EuroBert")},
      {"is_causal", only(false, "transformers then looks back only in batches without padding")},
      {"is_decoder", only(false, "an encoder used as a decoder is not supported")},
  };
  // How classifiers of sequences average their tokens, which no supported class does; slices of the same products; and
  // what the first implementation wrote of the tokenizer.
  table.neutral = {"classifier_pooling", "clf_pooling", "pretraining_tp", "bos_token",
                   "eos_token",          "mask_token",  "pad_token"};
  return table;
}

}  // namespace

const Family& family_eurobert() {
  static const Family family = make_family(make_table());
  return family;
}

}  // namespace pare
