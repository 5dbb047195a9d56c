#include "pare/checkpoint/families/shared/modernbert_like.h"

#include <fmt/format.h>

#include <algorithm>

namespace pare {

namespace {

using nlohmann::ordered_json;

const Field norm_bias =
    field::flag([](const Draft& d) { return d.a.final_norm.value_or(Norm{}).bias; },
                [](Draft& d, bool value) { field::each_norm(d, [&](Norm& norm) { norm.bias = value; }); });

// A key that says it in whole: transformers halves it, and takes the half in its place where the file has that.
Field window_of_halves(int64_t itself) {
  return {[=](Config& config, const Key& key, Draft& draft) {
            const int64_t none = -1, half = key.whole(config, 0, most::rows) / 2;
            const int64_t side =
                config.integer("sliding_window", config.is_null(key.name()) ? none : half, none, most::rows);
            if (config.is_null("sliding_window")) {
              config.wrong("sliding_window", nullptr, "a whole number");
            }
            std::optional<int64_t>& window = draft.block.attention.window;
            window = side + itself > 0 ? std::optional(side + itself) : std::nullopt;
          },
          [=](ordered_json& config, const Key& key, Draft& draft) {
            const std::vector<Block>& blocks = draft.a.blocks;
            const auto first =
                std::ranges::find_if(blocks, [](const Block& b) { return b.attention.window.has_value(); });
            const int64_t side =
                first == blocks.end() ? key.fallback.get<int64_t>() / 2 : *first->attention.window - itself;
            config[key.name()] = 2 * side;
            config["sliding_window"] = side;
          }};
}

// Every so many layers one has no window, from the first on; a list says it in newer files.
const Field kinds_of_layers = {
    [](Config& config, const Key& key, Draft& draft) {
      const int64_t period = config.integer("global_attn_every_n_layers", 3, 1, most::layers);
      field::layer_types([=](int64_t layer) { return layer % period != 0; }).read(config, key, draft);
    },
    [](ordered_json& config, const Key& key, Draft& draft) { field::layer_types(nullptr).write(config, key, draft); }};

// ---- the layer before the head

const Field head_activation = {[](Config& config, const Key& key, Draft& draft) {
                                 const Activation found =
                                     config.activation(key.name(), key.fallback.get<std::string>());
                                 if (draft.a.head.transform) {
                                   draft.a.head.transform->activation = found;
                                 }
                               },
                               [](ordered_json& config, const Key& key, Draft& draft) {
                                 if (draft.a.head.transform) {
                                   config[key.name()] = hugging_face_activation(draft.a.head.transform->activation);
                                 }
                               }};

void finish(Config& config, Draft& draft) {
  if (config.is_null("local_rope_theta") || config.is_null("global_rope_theta")) {
    config.problem("local_rope_theta or global_rope_theta is null: transformers needs a number, or no such key");
  }
  draft.by_layer.emplace_back([](int64_t layer, Block& block) {
    if (layer == 0) {  // the embedding's norm stands right before it
      block.attention.norm.reset();
    }
  });
}

Architecture model_of(Mask mask) {
  const Norm norm = {.kind = NormKind::layer};
  return {.embedding = {.norm = norm},
          .blocks = {{.attention = {.mask = mask, .norm = norm},
                      .mlp = Mlp{.kind = DenseMlp{.gated = true}, .norm = norm}}},
          .final_norm = norm};
}

}  // namespace

HeadTransform modernbert_transform() {
  return {.norm = Norm{.kind = NormKind::layer}};
}

std::vector<TensorRow> modernbert_head(std::string_view layer, std::string_view matrix) {
  return {{fmt::format("{}.dense", layer), "head.transform"},
          {fmt::format("{}.norm", layer), "head.transform.norm"},
          {std::string(matrix), "head"}};
}

FamilyTable modernbert_like(FamilyTable table, const ModernBert& kind) {
  using namespace field;
  table.base_prefix = "model.";
  table.model = model_of(kind.mask);
  table.keys.insert(
      table.keys.begin(),
      {{"vocab_size", vocab, 50368},
       {"hidden_size", width, 768},
       {"intermediate_size", mlp_width, 1152},
       {"num_hidden_layers", layers, 22},
       {"num_attention_heads", heads, 12},
       {"hidden_activation", activation, "gelu"},
       {"max_position_embeddings", context, 8192},
       {"norm_eps", epsilon, 1e-5},
       {"norm_bias", norm_bias, false},
       {"attention_bias", attention_bias, false},
       {"mlp_bias", mlp_bias, false},
       {"local_attention", window_of_halves(kind.itself), 128},
       {"layer_types", kinds_of_layers},
       {"rope_parameters", rope_by_type({.full = {.theta = 160000, .theta_key = "global_rope_theta"},
                                         .sliding = {.theta = 10000, .theta_key = "local_rope_theta"},
                                         .both_scaled = true})},
       {"classifier_activation", head_activation, "gelu"},
       {"head_dim", repeats(head_width, "the heads of ModernBERT divide its width")},
       {"position_embedding_type", only("absolute", "transformers has no other positions than rotary ones here")}});
  // Training; how attention is computed; what the first configurations had and nobody reads.
  table.neutral.insert(table.neutral.end(), {"deterministic_flash_attn", "initializer_cutoff_factor", "layer_norm_eps",
                                             "mlp_dropout", "reference_compile", "repad_logits_with_grad",
                                             "sparse_pred_ignore_index", "sparse_prediction"});
  table.finish = finish;
  const std::vector<TensorRow> shared = {
      {"embeddings.tok_embeddings", "embed.token"},
      {"embeddings.norm", "embed.norm"},
      {"layers.{}.attn_norm", "attention.norm"},
      {"layers.{}.attn.Wo", "attention.output"},
      {"layers.{}.mlp_norm", "mlp.norm"},
      {"layers.{}.mlp.Wi", {"mlp.gate", "mlp.up"}},
      {"layers.{}.mlp.Wo", "mlp.down"},
  };
  table.tensors.insert(table.tensors.begin(), shared.begin(), shared.end());
  table.tensors.push_back({"final_norm", "norm"});
  return table;
}

}  // namespace pare
