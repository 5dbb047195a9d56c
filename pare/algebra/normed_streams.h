#pragma once
// Norms between streams: which stream each reads and writes, and what passes that change such streams share.

#include <vector>

#include "pare/algebra/prediction.h"
#include "pare/arch/norm_exits.h"
#include "pare/arch/streams.h"
#include "pare/checkpoint/model.h"

namespace pare {

// Whether the norm multiplies all coordinates by one number. Without weights nobody knows, and it is taken to.
bool has_uniform_gain(const Model& model, const NormBetween& norm);

// Whether one table embeds tokens and is the head.
bool is_table_of_both_ends(const Architecture& architecture);

// A step for every sublayer of which a tensor lies along one of these ports: it is rounded anew. What is rounded at the
// embedding goes through every layer, and is one place like any other.
void step_along(RoundingWalk& walk, const Model& model, const std::vector<Port>& ports);

}  // namespace pare
