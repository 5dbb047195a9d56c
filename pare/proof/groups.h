#pragma once
// Which maps may stand between the two sides, and how far one is from being such. Relations of tensors say nothing of
// what stands between them: a norm, RoPE, an activation. A map that does not commute with that explains no function,
// whoever found it and however; so this is asked of every map where it is used, and knows nothing of how they are
// found.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "pare/linear/map_fit.h"
#include "pare/proof/side.h"

namespace pare {

struct StreamMap;

// By stream: any map where only matrices touch it, one rotation for all that RMSNorms join, the identity elsewhere.
// (Other norms, activations and answers allow some groups too, and so far count as the identity alone.)
std::vector<MapGroup> groups_of_streams(const ProofSide& reference, const ProofSide& candidate);

// How much of what passes through is off: 0 for a member. Of a rotation that is none, what lengths change by; of a map
// that does not commute with RoPE, what it has beside one that does. [k, k], or the largest of [n, k, k].
double distance_to(MapGroup group, const at::Tensor& maps, const std::optional<Rope>& rope);

// Maps where none may be, and streams that a norm joins under different ones.
std::vector<std::string> misplaced(const ProofSide& reference, const ProofSide& candidate,
                                   const std::vector<StreamMap>& maps);

}  // namespace pare
