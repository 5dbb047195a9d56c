#pragma once
// How many parameters an Architecture has, part by part, and how much a token adds to its cache.

#include <map>

#include "pare/arch/architecture.h"
#include "pare/arch/tensors.h"

namespace pare {

struct Counts {
  std::map<Part, int64_t> parts;  // parts that have no parameter are absent
  int64_t total = 0;
};

Counts count(const Architecture& architecture);
// The parameters of distinct block N alone.
Counts count_block(const Architecture& architecture, int64_t block);

// Elements that one more token adds to the decoding cache, over all layers; 0 where nothing is cached (full masks).
int64_t cache_elements_per_token(const Architecture& architecture);

}  // namespace pare
