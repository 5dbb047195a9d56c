// The first GPT: learned positions, LayerNorm after each sublayer and none at the end, one fused [in, out] matrix for
// queries, keys and values.

#include <algorithm>

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"

namespace pare {

namespace {

// Its own names; what it calls gelu is the approximation. The first of an activation is written.
struct Named {
  std::string_view word;
  Activation activation;
};
constexpr Named activations[] = {{"gelu", Activation::gelu_tanh},
                                 {"relu", Activation::relu},
                                 {"silu", Activation::silu},
                                 {"swish", Activation::silu}};

const Field own_activation = {
    [](Config& config, const Key& key, Draft& draft) {
      const std::string word = config.text(key.name(), key.fallback.get<std::string>());
      const auto* found = std::ranges::find(activations, word, &Named::word);
      if (found == std::end(activations)) {
        config.wrong(key.name(), word, "gelu, relu, silu or swish: transformers has no other here");
        return;
      }
      draft.mlp.activation = found->activation;
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      const auto* found = std::ranges::find(activations, draft.mlp.activation, &Named::activation);
      config[key.name()] = found == std::end(activations) ? hugging_face_activation(draft.mlp.activation) : found->word;
    }};

// No key says how wide the MLPs are.
const Field width_and_mlp = {
    [](Config& config, const Key& key, Draft& draft) {
      field::width.read(config, key, draft);
      draft.mlp.width = 4 * draft.a.width;
    },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) { field::width.write(config, key, draft); }};

const Field epsilon_of_blocks = {
    [](Config& config, const Key& key, Draft& draft) { field::epsilon.read(config, key, draft); },
    [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
      config[key.name()] = draft.block.attention.norm.value_or(Norm{}).epsilon;
    }};

Architecture model_of_gpt() {
  const Norm after = layer_norm(NormPlace::post);
  return {.embedding = {.position = Position::learned},
          .blocks = {{.attention = {.bias = {true, true, true, true}, .norm = after},
                      .mlp = Mlp{.kind = DenseMlp{.bias = {.up = true, .down = true}}, .norm = after}}}};
}

}  // namespace

const Family& family_openai_gpt() {
  using namespace field;
  static const Family family = make_family({
      .model_type = "openai-gpt",
      .classes = "OpenAIGPT",
      .base_prefix = "transformer.",
      .model = model_of_gpt(),
      .heads = decoder_heads({.tied = true, .language_class = "LMHeadModel", .tokens = "", .answers = ""}),
      .keys =
          {
              {"vocab_size", vocab, 40478},
              {{"n_positions", "max_position_embeddings"}, context, 512},
              {{"n_embd", "hidden_size"}, width_and_mlp, 768},
              {{"n_layer", "num_hidden_layers"}, layers, 12},
              {{"n_head", "num_attention_heads"}, heads, 12},
              {"afn", own_activation, "gelu"},
              {"layer_norm_epsilon", epsilon_of_blocks, 1e-5},
              {"is_causal", only(true, "GPT looks back only")},
          },
      // n_special: how many of the tokens fine-tuning added.
      .neutral = {"n_ctx", "n_special", "predict_special_tokens", "summary_activation", "summary_first_dropout",
                  "summary_proj_to_labels", "summary_type", "summary_use_proj"},
      .tensors =
          {
              {"tokens_embed", "embed.token"},
              {"positions_embed", "embed.position"},
              {"h.{}.attn.c_attn", {"attention.query", "attention.key", "attention.value"}, Stored::transposed},
              {"h.{}.attn.c_proj", "attention.output", Stored::transposed},
              {"h.{}.ln_1", "attention.norm"},
              {"h.{}.mlp.c_fc", "mlp.up", Stored::transposed},
              {"h.{}.mlp.c_proj", "mlp.down", Stored::transposed},
              {"h.{}.ln_2", "mlp.norm"},
          },
      .ignored = {"transformer.h.*.attn.bias", "transformer.position_ids"},
  });
  return family;
}

}  // namespace pare
