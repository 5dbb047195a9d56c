// Gemma 3, the text alone: Gemma 2 with norms of queries and keys in place of its caps, and layers with a window that
// turn faster than the others.

#include "pare/checkpoint/families/shared/gemma_like.h"

namespace pare {

const Family& family_gemma3_text() {
  Heads heads = decoder_heads({.tied = true, .tokens = "", .answers = ""});
  heads.classes.at(1).ending = "TextForSequenceClassification";
  heads.classes.at(2).ending = "TextModel";
  static const Family family = make_family(gemma3_like({
      .model_type = "gemma3_text",
      .classes = "Gemma3",
      .heads = std::move(heads),
      .keys = {{"final_logit_softcapping", field::head_softcap}},
  }));
  return family;
}

}  // namespace pare
