// GTE: BERT with rotary positions and gated MLPs, as its newer models for many languages have it.

#include "pare/checkpoint/families/shared/bert_like.h"

namespace pare {

namespace {

Heads heads_of_gte(const std::string& prefix) {
  const HeadTransform pool = {.activation = Activation::tanh};
  const std::string pooler = prefix + "pooler.dense";
  return {.classes =
              {
                  {"Model", Task::encoder, {.transform = pool}, {{pooler, "head.transform"}}},
                  // Always GELU, whatever the activation of the MLPs is.
                  {"ForMaskedLM",
                   Task::masked_lm,
                   {.bias = true, .transform = HeadTransform{.norm = layer_norm()}},
                   {{"lm_head.dense", "head.transform"},
                    {"lm_head.norm", "head.transform.norm"},
                    {"lm_head.decoder", "head"}}},
                  {"ForTokenClassification", Task::token_classifier, {.bias = true}, {{"classifier", "head"}}},
                  {"ForSequenceClassification",
                   Task::classifier,
                   {.bias = true, .transform = pool},
                   {{pooler, "head.transform"}, {"classifier", "head"}}},
              },
          .tied = true};
}

// None at all in some.
const Field types_or_none = field::whole([](const Draft& d) { return d.a.embedding.types; },
                                         [](Draft& d, int64_t value) { d.a.embedding.types = value; }, 0, most::rows);

FamilyTable make_table(const std::string& prefix) {
  using namespace field;
  const Norm after = layer_norm(NormPlace::post);
  return {
      .model_type = "gte",
      .classes = "Gte",
      .base_prefix = prefix == "new." ? "new." : "gte.",
      .model = {.embedding = {.norm = layer_norm()},
                .blocks = {{.attention = {.bias = {true, true, true, true}, .mask = Mask::full, .norm = after},
                            .mlp = Mlp{.kind = DenseMlp{.gated = true, .bias = {.down = true}}, .norm = after}}}},
      .heads = heads_of_gte(prefix),
      .keys =
          {
              {"vocab_size", vocab, 250048},
              {"hidden_size", width, 768},
              {"num_hidden_layers", layers, 12},
              {"num_attention_heads", heads, 12},
              {"head_dim", odd_head_width},
              {"intermediate_size", mlp_width, 3072},
              {"hidden_act", activation, "gelu"},
              {"max_position_embeddings", context, 8192},
              {"type_vocab_size", types_or_none, 1},
              {"layer_norm_eps", epsilon, 1e-12},
              {"rope_parameters", rope({.theta = 160000})},
              {"tie_word_embeddings", tied, true},
              {"id2label", labels},
              {"is_decoder", only(false, "an encoder used as a decoder is not supported")},
              {"is_causal", only(false, "transformers then looks back only in batches without padding")},
          },
      .tensors =
          {
              {"embeddings.word_embeddings", "embed.token"},
              {"embeddings.token_type_embeddings", "embed.type"},
              {"embeddings.LayerNorm", "embed.norm"},
              {"encoder.layer.{}.attention.qkv_proj", {"attention.query", "attention.key", "attention.value"}},
              {"encoder.layer.{}.attention.o_proj", "attention.output"},
              {"encoder.layer.{}.attn_ln", "attention.norm"},
              {"encoder.layer.{}.mlp.up_gate_proj", {"mlp.up", "mlp.gate"}},
              {"encoder.layer.{}.mlp.down_proj", "mlp.down"},
              {"encoder.layer.{}.mlp_ln", "mlp.norm"},
          },
      .ignored = {"gte.pooler.*", "new.pooler.*", "*.inv_freq", "embeddings.position_ids"},
  };
}

// Published files still have the prefix of the code that came with them.
Family make_gte() {
  const FamilyTable first = make_table("new.");
  Family family = make_family(make_table("gte."));
  const auto usual = family.bindings;
  family.possible_bindings = [=](const Architecture& a) { return std::vector{usual(a), bind_table(first, a)}; };
  return family;
}

}  // namespace

const Family& family_gte() {
  static const Family family = make_gte();
  return family;
}

}  // namespace pare
