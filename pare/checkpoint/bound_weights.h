#pragma once
// The same weights under the other names: a family's tensors as ours, and ours as a family's.

#include <string>

#include "pare/checkpoint/family.h"
#include "pare/checkpoint/weights.h"

namespace pare {

// Everything the Architecture needs, under canonical names. InputError listing every tensor that is missing,
// unexpected or of the wrong shape; no data is read. A fused tensor is read once for all that it holds. Where a file
// holds a tied tensor twice, whoever loads it also compares the two.
Weights canonical_weights(const Family& family, const Architecture& architecture, const Weights& stored,
                          const std::string& subject);

// The weights under the family's own names, to write with family_config(): every tensor present, copies left out.
Weights family_weights(const Family& family, const Architecture& architecture, const Weights& canonical);

}  // namespace pare
