#pragma once
// What ggml's converter does to the tensors of a family, and how it is taken back: each change in both directions.

#include <string>
#include <string_view>

#include "pare/checkpoint/weight.h"

namespace pare {

// From the family to the file. The other way it is undone.
enum class GgufChange {
  none,
  query_rows,  // within each head, the two halves that turn together are interleaved
  key_rows,
  plus_one,    // gains that the family stores as their distance from one
  transposed,  // matrices that the family stores as [in, out]
  stacked,     // all queries, then all keys, then all values, which the family has by key heads
};

struct GgufHeads {
  int64_t all = 0, kv = 0;
};

// A tensor of a file as the family has it. `name` is the family's, `theirs` that of the file. A shape that nobody
// expects stays as it is: that is said where shapes are compared.
Weight gguf_undone(GgufChange change, const std::string& name, const std::string& theirs, const Weight& stored,
                   const GgufHeads& heads);
// A tensor of the family as a file has it, under the name there. All are exact but plus_one, which is a sum in float32.
Weight gguf_done(GgufChange change, const std::string& name, const Weight& family, const GgufHeads& heads);

}  // namespace pare
