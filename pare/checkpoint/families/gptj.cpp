// GPT-J: interleaved rotary positions on the first dimensions of each head, attention and MLP side by side behind one
// LayerNorm, biases in the MLP and the head only.

#include "pare/checkpoint/families/shared/gptj_like.h"

namespace pare {

const Family& family_gptj() {
  static const Family family = make_family(gptj_like({
      .model_type = "gptj",
      .classes = "GPTJ",
      .heads = decoder_heads({.language_bias = true, .tokens = ""}),
      .tensors =
          {
              {"h.{}.attn.q_proj", "attention.query"},
              {"h.{}.attn.k_proj", "attention.key"},
              {"h.{}.attn.v_proj", "attention.value"},
          },
  }));
  return family;
}

}  // namespace pare
