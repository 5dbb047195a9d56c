// ESM: BERT of proteins with norms before its sublayers, with rotary positions in its second version, and with
// embeddings that are scaled by how many tokens are masked.

#include <fmt/format.h>

#include <cmath>

#include "pare/checkpoint/family_table.h"
#include "pare/checkpoint/fields.h"
#include "pare/checkpoint/stored_frequencies.h"

namespace pare {

namespace {

Heads heads_of_esm() {
  const HeadTransform pool = {.activation = Activation::tanh};
  return {.classes =
              {
                  {"Model", Task::encoder, {.transform = pool}, {{"esm.pooler.dense", "head.transform"}}},
                  {"ForMaskedLM",
                   Task::masked_lm,
                   {.bias = true, .transform = HeadTransform{.norm = layer_norm()}},
                   {{"lm_head.dense", "head.transform"},
                    {"lm_head.layer_norm", "head.transform.norm"},
                    {"lm_head.decoder.weight", "head.weight"},
                    {"lm_head.bias", "head.bias"}}},
                  {"ForTokenClassification", Task::token_classifier, {.bias = true}, {{"classifier", "head"}}},
                  {"ForSequenceClassification",
                   Task::classifier,
                   {.bias = true, .transform = pool},
                   {{"classifier.dense", "head.transform"}, {"classifier.out_proj", "head"}}},
              },
          .tied = true};
}

const Field norm_before =
    field::flag([](const Draft& d) { return d.a.embedding.norm.has_value(); },
                [](Draft& d, bool value) { d.a.embedding.norm = value ? std::optional(layer_norm()) : std::nullopt; });

const Field token_dropout = {[](Config& config, const Key& key, Draft& draft) {
                               if (!config.flag(key.name(), key.fallback.get<bool>())) {
                                 return;
                               }
                               draft.a.embedding.masked =
                                   MaskedTokens{config.integer({"mask_token_id"}, 0, 0, draft.a.vocab - 1)};
                               if (!config.has("mask_token_id")) {
                                 config.problem("token_dropout is true, but there is no mask_token_id");
                               }
                             },
                             [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                               const std::optional<MaskedTokens>& masked = draft.a.embedding.masked;
                               config[key.name()] = masked.has_value();
                               if (masked) {
                                 config["mask_token_id"] = masked->id;
                               }
                             }};

// As a plane turns without a file that says otherwise.
double plain_frequency(const Rope& rope, size_t plane) {
  return std::pow(rope.theta, -2 * static_cast<double>(plane) / static_cast<double>(rope.width));
}

// How much slower each plane turns: of what the file holds, or, where this library wrote it, as it is.
void read_frequencies(Config& config, const Draft& draft, Rope& rope) {
  const nlohmann::json& stored = config.raw(stored_frequencies_key);
  const size_t planes = static_cast<size_t>(rope.width / 2);
  if (stored.is_null()) {
    return;
  }
  const bool factors = stored.is_object() && stored.contains("slower_by");
  const nlohmann::json& numbers = factors ? stored["slower_by"] : stored;
  RopeScaling scaling = {.kind = RopeScalingKind::longrope, .original_context = static_cast<double>(draft.a.context)};
  bool differs = false;
  for (size_t i = 0; numbers.is_array() && numbers.size() == planes && i < planes; ++i) {
    const double number = numbers[i].is_number() ? numbers[i].get<double>() : 0;
    if (!(number > 0) || !std::isfinite(number)) {
      break;
    }
    scaling.short_factor.push_back(factors ? number : plain_frequency(rope, i) / number);
    differs = differs || std::abs(scaling.short_factor.back() - 1) > 1e-13;  // not only the last rounding
  }
  if (scaling.short_factor.size() != planes) {
    config.wrong("rotary_embeddings.inv_freq", numbers,
                 "as many frequencies above 0 as two neighbours of a head turn in planes");
  } else if (differs) {
    scaling.long_factor = scaling.short_factor;
    rope.scaling = scaling;
  }
}

// Rows of a table, of which padding has one, and the first token the next; or rotary.
const Field positions = {
    [](Config& config, const Key& key, Draft& draft) {
      Architecture& a = draft.a;
      const std::string type = config.text(key.name(), key.fallback.get<std::string>());
      const double theta = config.number({"rope_theta"}, 10000, above_zero, most::number);
      const int64_t pad = config.integer({"pad_token_id"}, 0, 0, a.vocab - 1);
      if (type == "rotary") {
        Rope rope = {.theta = theta, .width = draft.block.attention.head_width};
        read_frequencies(config, draft, rope);
        draft.block.attention.rope = rope;
        return;
      }
      config.neutral({stored_frequencies_key});
      if (type != "absolute") {
        config.wrong(key.name(), type, "absolute or rotary: relative positions are not supported");
      } else if (!config.has("pad_token_id")) {
        config.problem("pad_token_id is not there: positions are counted over all other tokens");
      } else if (a.context <= pad + 1) {
        config.problem(fmt::format("max_position_embeddings {} leaves no position after the row of pad_token_id {}",
                                   a.context, pad));
      }
      a.embedding.position = Position::learned;
      a.embedding.position_pad = pad;
      a.embedding.position_offset = pad + 1;
      a.context -= pad + 1;
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      const std::optional<Rope>& rope = draft.block.attention.rope;
      const Embedding& e = draft.a.embedding;
      config[key.name()] = rope ? "rotary" : "absolute";
      config["max_position_embeddings"] = draft.a.context + (rope ? 0 : e.position_offset);
      if (rope) {
        config["rope_theta"] = rope->theta;
        if (rope->scaling) {  // which is in the tensors
          config[stored_frequencies_key]["slower_by"] = rope->scaling->short_factor;
        }
      } else {
        config["pad_token_id"] = e.position_pad.value_or(0);
      }
    }};

}  // namespace

const Family& family_esm() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "esm",
      .classes = "Esm",
      .base_prefix = "esm.",
      .model = {.blocks = {{.attention = {.bias = {true, true, true, true}, .mask = Mask::full, .norm = layer_norm()},
                            .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = layer_norm()}}},
                .final_norm = layer_norm()},
      .heads = heads_of_esm(),
      .keys =
          {
              {"vocab_size", vocab, 33},
              {"hidden_size", width, 768},
              {"num_hidden_layers", layers, 12},
              {"num_attention_heads", heads, 12},
              {"intermediate_size", mlp_width, 3072},
              {"emb_layer_norm_before", norm_before, false},
              {"layer_norm_eps", epsilon, 1e-12},
              {"token_dropout", token_dropout, false},
              {"max_position_embeddings", context, 1026},
              {"position_embedding_type", positions, "absolute"},
              {"tie_word_embeddings", tied, true},
              {"id2label", labels},
              {"is_decoder", only(false, "an encoder used as a decoder is not supported")},
              {"is_causal", only(false, "transformers then looks back only in batches without padding")},
              {"is_folding_model", only(false, "what predicts the folded protein is not supported")},
          },
      // Its activation is always GELU.
      .neutral = {"hidden_act", "vocab_list", "esmfold_config", "mask_token_id", "rope_theta"},
      .tensors =
          {
              {"embeddings.word_embeddings", "embed.token"},
              {"embeddings.position_embeddings", "embed.position"},
              {"embeddings.layer_norm", "embed.norm"},
              {"encoder.layer.{}.attention.LayerNorm", "attention.norm"},
              {"encoder.layer.{}.attention.self.query", "attention.query"},
              {"encoder.layer.{}.attention.self.key", "attention.key"},
              {"encoder.layer.{}.attention.self.value", "attention.value"},
              {"encoder.layer.{}.attention.output.dense", "attention.output"},
              {"encoder.layer.{}.LayerNorm", "mlp.norm"},
              {"encoder.layer.{}.intermediate.dense", "mlp.up"},
              {"encoder.layer.{}.output.dense", "mlp.down"},
              {"encoder.emb_layer_norm_after", "norm"},
          },
      // What predicts contacts reads the attention of all layers, which is no answer of ours. Frequencies have been
      // read already. A table of positions may be left over in models that turn.
      .ignored = {"esm.contact_head.*", "esm.pooler.*", "esm.embeddings.position_ids",
                  "esm.embeddings.position_embeddings.weight", "*rotary_embeddings.inv_freq"},
      .renamed = {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}},
  });
  return family;
}

}  // namespace pare
