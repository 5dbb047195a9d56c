// The text tower of CLIP, as it is saved alone: tokens look back, and the one that ends the text stands for it.

#include "pare/checkpoint/families/shared/clip_like.h"

namespace pare {

namespace {

// 2 is what older files say, and never was the token: transformers then takes the highest id in the text, which ended
// it in the vocabulary of the time.
const Field last_token = {[](Config& config, const Key& key, Draft& draft) {
                            const nlohmann::json found = config.raw(key.name());
                            if (found.is_array()) {
                              config.wrong(key.name(), found, "one token: it stands for the text");
                              return;
                            }
                            if (config.is_null(key.name())) {
                              config.wrong(key.name(), nullptr, "the token that stands for the text");
                              return;
                            }
                            // The default is in no smaller vocabulary; then no text has it, and the first token is
                            // read.
                            const int64_t token = key.whole(config, 0, most::rows);
                            draft.a.head.pool_token = token == 2 ? std::nullopt : std::optional(token);
                          },
                          [](nlohmann::ordered_json& config, const Key& key, Draft& draft) {
                            config[key.name()] = draft.a.head.pool_token.value_or(2);
                          }};

FamilyTable make_table() {
  using namespace field;
  FamilyTable table = {
      .model_type = "clip_text_model",
      .classes = "CLIPText",
      .base_prefix = "text_model.",
      .model = {.embedding = {.position = Position::learned},
                .blocks = {clip_block(Mask::causal)},
                .final_norm = layer_norm()},
      .heads = {{{"ModelWithProjection",
                  Task::encoder,
                  {.transform = projection(/*bias=*/false), .pool = Pool::token},
                  {{"text_projection", "head.transform"}}},
                 {"Model", Task::encoder, {.pool = Pool::token}}}},
      .keys =
          {
              {"vocab_size", vocab, 49408},
              {"hidden_size", width, 512},
              {"num_hidden_layers", layers, 12},
              {"num_attention_heads", heads, 8},
              {"intermediate_size", mlp_width, 2048},
              {"hidden_act", activation, "quick_gelu"},
              {"layer_norm_eps", epsilon, 1e-5},
              {"max_position_embeddings", context, 77},
              {"eos_token_id", last_token, 49407},
              {"projection_dim", projection_width, 512},
              {"is_causal", only(true, "CLIP's texts look back only")},
          },
      .tensors = clip_layers(),
      .ignored = {"text_model.embeddings.position_ids"},
  };
  table.tensors.insert(table.tensors.begin(), {{"embeddings.token_embedding", "embed.token"},
                                               {"embeddings.position_embedding", "embed.position"}});
  table.tensors.push_back({"final_layer_norm", "norm"});
  return table;
}

}  // namespace

const Family& family_clip_text_model() {
  static const Family family = make_family(make_table());
  return family;
}

}  // namespace pare
