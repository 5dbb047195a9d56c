#pragma once
// What families of decoders share: how their heads divide the width, how their blocks are bound, what they end in, what
// older files say.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/family.h"

namespace pare {

// The width of one head where all of them together are as wide as the stream; a problem where they do not divide it.
int64_t equal_head_width(Config& config, int64_t width, int64_t heads);

// auto_map names code beside the file, from before transformers had the family. It is the family's where every class
// in it is: then it says nothing. Anything else is a problem.
void accept_own_classes(Config& config, std::string_view class_prefix);

struct BlockModule {
  std::string_view theirs;             // within a block, as "mlp.fc1"
  std::vector<std::string_view> ours;  // within a block, as "mlp.up"; query, key and value where one matrix holds them
};

// Binds PREFIX.N.THEIRS of every block N. A matrix of queries, keys and values holds, for each key head in turn, its
// queries, its key and its value: GPT-NeoX's heads, Falcon's groups, and multi-query attention are all of this kind.
void bind_blocks(Binder& binder, const Architecture& architecture, std::string_view prefix,
                 const std::vector<BlockModule>& modules);

// The classes of a family of decoders that have a head, and the modules that hold them. A sequence is classified by its
// last token, in `score`. An empty module: the family has no such class.
struct DecoderHeads {
  std::string_view classes;      // how the names of its classes begin: "Llama"
  std::string_view base_prefix;  // of all other tensors, in files of these classes
  std::string_view language_class = "ForCausalLM";
  std::string_view language_model = "lm_head";
  std::string_view tokens = "score";        // token classification
  std::string_view answers = "qa_outputs";  // question answering: start and end of the answer
  bool language_bias = false;
};

// Task and head. `tied`: what tie_word_embeddings says where it is absent.
void read_decoder_head(Config& config, Architecture& architecture, const DecoderHeads& heads, bool tied);
nlohmann::ordered_json write_decoder_head(const Architecture& architecture, const DecoderHeads& heads);
// A tied head may be in the file a second time.
void bind_decoder_head(Binder& binder, const Architecture& architecture, const DecoderHeads& heads);

}  // namespace pare
