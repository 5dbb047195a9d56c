#pragma once
// What two models say they are, beyond what is proved tensor by tensor. Whatever is not erased here is compared: a new
// field of the Architecture is a difference until someone explains it.

#include <string>
#include <vector>

#include "pare/arch/architecture.h"

namespace pare {

// Whether a factor of the scores can go into the query: a gauge of the heads then holds it.
bool absorbs_scale(const Attention& attention);

// A window that the reference's longest sequence does not fill: none.
void erase_wide_windows(Architecture& architecture, int64_t context);

// "blocks[0].attention.rope.theta: 100 in the reference, 10000 in the candidate".
std::vector<std::string> differing_settings(const Architecture& reference, const Architecture& candidate);
// Whether tensor can be held against tensor all the same.
bool same_structure(const Architecture& reference, const Architecture& candidate);

}  // namespace pare
