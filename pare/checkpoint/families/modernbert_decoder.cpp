// The decoder of ModernBERT's kind (Ettin): it looks back only, its window is narrower by the token itself, and its
// queries, keys and values have a matrix each.

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/families/shared/modernbert_like.h"

namespace pare {

namespace {

Heads heads_of_decoder() {
  Heads heads = decoder_heads({.tied = true, .sequences = false, .tokens = "", .answers = ""});
  const HeadTransform transform = modernbert_transform();
  heads.classes = {
      {"ForCausalLM", Task::causal_lm, {.transform = transform}, modernbert_head("lm_head", "decoder")},
      {"ForSequenceClassification",
       Task::classifier,
       {.transform = transform, .pool = Pool::last},
       modernbert_head("head", "classifier")},
      {"Model"},
  };
  return heads;
}

const Field decoder_bias = {[](Config& config, const Key& key, Draft& draft) {
                              const bool value = config.flag(key.name(), key.fallback.get<bool>());
                              if (draft.a.task == Task::causal_lm) {
                                draft.a.head.bias = value;
                              }
                            },
                            [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                              if (draft.a.task == Task::causal_lm) {
                                config[key.name()] = draft.a.head.bias;
                              }
                            }};

// Of the layer before any head, and of a classifier itself.
const Field head_biases = {[](Config& config, const Key& key, Draft& draft) {
                             const bool value = config.flag(key.name(), key.fallback.get<bool>());
                             if (draft.a.head.transform) {
                               draft.a.head.transform->bias = value;
                             }
                             if (draft.a.task == Task::classifier) {
                               draft.a.head.bias = value;
                             }
                           },
                           [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                             if (draft.a.head.transform) {
                               config[key.name()] = draft.a.head.transform->bias;
                             }
                           }};

}  // namespace

const Family& family_modernbert_decoder() {
  using namespace field;
  static const Family family = make_family(modernbert_like(
      {
          .model_type = "modernbert-decoder",
          .classes = "ModernBertDecoder",
          .heads = heads_of_decoder(),
          .keys =
              {
                  {"decoder_bias", decoder_bias, true},
                  {"classifier_bias", head_biases, false},
                  {"is_causal", only(true, "the decoder looks back only")},
              },
          // Of the encoder.
          .neutral = {"classifier_pooling"},
          .tensors =
              {
                  {"layers.{}.attn.q_proj", "attention.query"},
                  {"layers.{}.attn.k_proj", "attention.key"},
                  {"layers.{}.attn.v_proj", "attention.value"},
              },
      },
      {.mask = Mask::causal, .itself = 0}));
  return family;
}

}  // namespace pare
