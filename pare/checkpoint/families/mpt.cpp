// MPT: ALiBi beside scores that are already scaled, LayerNorms without biases, no biases at all, one fused matrix of
// queries, keys and values.

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"
#include "pare/checkpoint/known_keys.h"

namespace pare {

namespace {

// No key says how wide the MLPs are: transformers leaves expansion_ratio unread.
const Field width_and_mlp = {
    [](Config& config, const Key& key, Draft& draft) {
      field::width.read(config, key, draft);
      draft.mlp.width = 4 * draft.a.width;
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) { field::width.write(config, key, draft); }};

// An object of its own. Most of what it can say is of MosaicML's code alone, and transformers computes the same
// whatever stands there: another model than the one that was trained.
const Field attention_object = {
    [](Config& config, const Key& key, Draft& draft) {
      Attention& attention = draft.block.attention;
      Config within = config.inner(key.name());
      const double usual = scale_of(attention);
      const double scale = within.number("softmax_scale", usual, above_zero, most::number);
      attention.scale = scale == usual ? std::nullopt : std::optional(scale);
      within.only("clip_qkv", nullptr, "queries, keys and values that are clipped are not supported");
      within.only("alibi", true, "transformers adds ALiBi all the same");
      within.only("alibi_bias_max", 8, "transformers leaves it unread, and has the slopes of 8");
      within.only("prefix_lm", false, "transformers looks back only all the same");
      within.only("qk_ln", false, "transformers leaves these norms out");
      within.only("attn_type", "multihead_attention", "transformers has no other");
      within.only("attn_uses_sequence_id", false, "transformers does not tell sequences apart");
      within.neutral({"attn_impl", "attn_pdrop"});
      const nlohmann::json object = config.raw(key.name());
      for (const auto& [name, value] : object.items()) {  // what transformers writes into any configuration
        if (known_key(name, value).is_neutral) {
          within.neutral({name});
        }
      }
      within.finish();
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      const Attention& attention = draft.block.attention;
      nlohmann::ordered_json& within = config[key.name()];
      within["alibi_bias_max"] = 8;
      if (attention.scale) {
        within["softmax_scale"] = *attention.scale;
      } else {
        within["softmax_scale"] = nullptr;
      }
    }};

// All of these are LayerNorm to transformers; RMSNorm is one of MosaicML's code.
const Field kind_of_norm = {[](Config& config, const Key& key, Draft&) {
  const std::string found = config.text(key.name(), "layernorm");
  if (found != "layernorm" && found != "low_precision_layernorm") {
    config.wrong(key.name(), found, "layernorm or low_precision_layernorm: transformers has no other");
  }
}};

Norm norm_without_bias() {
  return {.kind = NormKind::layer};
}

Architecture model_of_mpt() {
  return {.blocks = {{.attention = {.alibi = Alibi{.scaled = false}, .norm = norm_without_bias()},
                      .mlp = Mlp{.kind = DenseMlp{.activation = Activation::gelu}, .norm = norm_without_bias()}}},
          .final_norm = norm_without_bias()};
}

}  // namespace

const Family& family_mpt() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "mpt",
      .classes = "Mpt",
      .base_prefix = "transformer.",
      .model = model_of_mpt(),
      .heads = decoder_heads({.tied = true, .tokens = "classifier"}),
      .keys =
          {
              {"vocab_size", vocab, 50368},
              {{"d_model", "hidden_size"}, width_and_mlp, 2048},
              {{"n_layers", "num_hidden_layers"}, layers, 24},
              {{"n_heads", "num_attention_heads"}, heads, 16},
              {"max_seq_len", context, 2048},
              {"layer_norm_epsilon", epsilon, 1e-5},
              {"attn_config", attention_object},
              {"expansion_ratio", only(4, "transformers has no other width of MLPs")},
              {"no_bias", only(true, "transformers leaves the biases out")},
              {"norm_type", kind_of_norm},
              {"logit_scale", only(nullptr, "transformers does not scale logits")},
              {"is_causal", only(true, "MPT looks back only")},
              {"auto_map", own_classes("MPT")},
          },
      // Positions of its own are learned only where there is no ALiBi; the fraction is one of gradients.
      .neutral = {"embedding_fraction", "emb_pdrop", "init_config", "init_device", "learned_pos_emb", "tokenizer_name",
                  "verbose"},
      .tensors =
          {
              {"wte", "embed.token"},
              {"blocks.{}.norm_1", "attention.norm"},
              {"blocks.{}.attn.Wqkv", {"attention.query", "attention.key", "attention.value"}},
              {"blocks.{}.attn.out_proj", "attention.output"},
              {"blocks.{}.norm_2", "mlp.norm"},
              {"blocks.{}.ffn.up_proj", "mlp.up"},
              {"blocks.{}.ffn.down_proj", "mlp.down"},
              {"norm_f", "norm"},
          },
  });
  return family;
}

}  // namespace pare
