#pragma once
// The list of blocks in an Architecture's JSON, where an entry may stand for several that are alike (repeat).

#include <nlohmann/json_fwd.hpp>

namespace pare {

// An entry for each block: entry N is then block N, as tensors are named. What is no list of blocks stays as it is, for
// whoever reads it to say.
void unfold_blocks(nlohmann::json& blocks);

}  // namespace pare
