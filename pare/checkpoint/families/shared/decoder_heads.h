#pragma once
// What decoders end in: a language model, a classifier of sequences or tokens, an answer in the text, or nothing.

#include <string_view>

#include "pare/checkpoint/family_table.h"

namespace pare {

// The modules that hold the heads. A sequence is classified by its last token, in `score`. An empty module: the family
// has no such class.
struct DecoderHeads {
  bool tied = false;  // what tie_word_embeddings says where it is absent
  std::string_view language_class = "ForCausalLM";
  std::string_view language_model = "lm_head";
  bool language_bias = false;
  bool sequences = true;                    // sequence classification
  std::string_view tokens = "score";        // token classification
  std::string_view answers = "qa_outputs";  // question answering: start and end of the answer
};

Heads decoder_heads(const DecoderHeads& heads);

}  // namespace pare
