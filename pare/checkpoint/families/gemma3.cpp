// Gemma 3 as it is published, beside a tower for images: the text alone is read. What the tower and its projector store
// is unused; what they would write into the stream keeps its basis.

#include "pare/checkpoint/families/shared/gemma_like.h"

namespace pare {

namespace {

// Keys of the file, in place of what the object within says.
const std::vector<std::string_view> outer_keys = {"architectures", "id2label", "label2id", "num_labels",
                                                  "tie_word_embeddings"};

FamilyTable make_table(std::string_view prefix, std::string_view language_model) {
  using namespace field;
  Heads heads = decoder_heads({.tied = true,
                               .language_class = "ForConditionalGeneration",
                               .language_model = language_model,
                               .tokens = "",
                               .answers = ""});
  FamilyTable table = gemma3_like({
      .model_type = "gemma3",
      .classes = "Gemma3",
      .heads = std::move(heads),
      .keys =
          {
              {"model_type", only("gemma3_text", "no other text model stands beside the tower")},
              {"final_logit_softcapping", only(nullptr, "Hugging Face caps no logits beside a tower")},
              {"use_bidirectional_attention", only(false, "Hugging Face looks back only beside a tower")},
          },
      .ignored = {"vision_tower.*", "multi_modal_projector.*", "model.vision_tower.*", "model.multi_modal_projector.*"},
  });
  table.base_prefix = prefix;
  return table;
}

Architecture read_outer(const Family& family, Config& config) {
  Config text = config.within("text_config", outer_keys);
  config.stop_if_wrong();
  config.neutral({"vision_config", "mm_tokens_per_image", "boi_token_id", "boi_token_index", "eoi_token_id",
                  "eoi_token_index", "image_token_id", "image_token_index"});
  const Architecture a = family.read_config(text);
  text.finish();
  return a;
}

nlohmann::ordered_json write_outer(const Family& family, const Architecture& a) {
  nlohmann::ordered_json text = family.write_config(a), config;
  for (const std::string_view key : outer_keys) {
    if (text.contains(key)) {
      config[key] = text[key];
      text.erase(std::string(key));
    }
  }
  text["model_type"] = "gemma3_text";
  config["model_type"] = family.model_type;
  config["text_config"] = text;
  return config;
}

Family make_gemma3() {
  const FamilyTable published = make_table("language_model.model.", "language_model.lm_head"),
                    other_head = make_table("language_model.model.", "lm_head"),
                    in_memory = make_table("model.language_model.", "lm_head");
  const Family inner = make_family(published);
  Family family = inner;
  family.base_prefix = "";  // files of the bare model have it too
  family.read_config = [inner](Config& config) { return read_outer(inner, config); };
  family.write_config = [inner](const Architecture& a) { return write_outer(inner, a); };
  family.possible_bindings = [=](const Architecture& a) {
    return std::vector{bind_table(published, a), bind_table(other_head, a), bind_table(in_memory, a)};
  };
  return family;
}

}  // namespace

const Family& family_gemma3() {
  static const Family family = make_gemma3();
  return family;
}

}  // namespace pare
