#pragma once
// What is wrong with an Architecture: every problem at once, each under its path.

#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/support/error.h"

namespace pare {

constexpr int64_t most_blocks = 10'000;

// `block_paths`: what to call each block, with a dot at the end; absent: "blocks[3].".
void validate(const Architecture& architecture, Problems& problems, const std::vector<std::string>& block_paths = {});

}  // namespace pare
