#pragma once
// A model as a GGUF file, as llama.cpp wants it.

#include <filesystem>
#include <string>
#include <vector>

#include "pare/checkpoint/model_folder.h"
#include "pare/support/gguf.h"

namespace pare {

// What of a model is written. Of an encoder whose vectors sentence-transformers makes of its hidden states, the pooler
// that nobody reads then is among what is unused: llama.cpp has none.
ModelFolder gguf_source(const ModelFolder& source);

// Whether what is quantised of it is in Q8_0, and so can stay what it is.
bool is_q8_0(const ModelFolder& source);

// Writes `file`: every matrix in `type` (f32, f16, bf16 or q8_0), vectors in float32, and the tokenizer that lies in
// the folder `tokenizer`. Hands back notes. Refused, with every reason, where llama.cpp cannot say the model.
std::vector<std::string> write_gguf(const std::filesystem::path& file, const ModelFolder& source, GgufType type,
                                    const std::filesystem::path& tokenizer);

}  // namespace pare
