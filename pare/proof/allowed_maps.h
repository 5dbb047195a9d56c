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
#include "pare/proof/model_view.h"

namespace pare {

struct StreamMap;

// Sets of streams that RMSNorms join, norm(Ψ z) = Ψ norm(z) for an orthogonal Ψ, so that one Ψ may stand on both sides
// of each norm. They may be turned together, and by nothing but a rotation. Those that something else touches, or
// whose norms have gains that are neither folded nor the same for all entries, are in none.
std::vector<std::vector<size_t>> turning_together(const ModelView& reference, const ModelView& candidate);

// By stream: any map where only matrices touch it, one rotation for all that RMSNorms join, the identity elsewhere.
// (Other norms, activations and answers allow some groups too, and so far count as the identity alone.)
std::vector<MapGroup> groups_of_streams(const ModelView& reference, const ModelView& candidate);

// How much of what passes through is off: 0 for a member. Of a rotation that is none, what lengths change by; of a map
// that does not commute with RoPE, what it has beside one that does. [k, k], or the largest of [n, k, k].
double distance_to(MapGroup group, const at::Tensor& maps, const std::optional<Rope>& rope);

// Maps where none may be, and streams that a norm joins under different ones.
std::vector<std::string> misplaced(const ModelView& reference, const ModelView& candidate,
                                   const std::vector<StreamMap>& maps);

}  // namespace pare
