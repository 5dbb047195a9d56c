// CodeGen: GPT-J with one matrix for queries, values and keys, in four parts, as its trainer had four devices.

#include <fmt/format.h>

#include "pare/checkpoint/families/shared/gptj_like.h"

namespace pare {

static void four_parts(Config& config, Draft& draft) {
  if (draft.block.attention.heads % 4 != 0) {
    config.problem(fmt::format("n_head {} is not divisible by 4: CodeGen stores its heads in four parts",
                               draft.block.attention.heads));
  }
}

const Family& family_codegen() {
  static const Family family = make_family(gptj_like({
      .model_type = "codegen",
      .classes = "CodeGen",
      .heads = decoder_heads({.language_bias = true, .sequences = false, .tokens = "", .answers = ""}),
      .finish = four_parts,
      .tensors =
          {{"h.{}.attn.qkv_proj", {"attention.query", "attention.value", "attention.key"}, Stored::in_four_parts}},
      .ignored = {"transformer.h.*.attn.causal_mask"},
  }));
  return family;
}

}  // namespace pare
