#pragma once
// Fitting the map between two bases to samples that it should obey.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "pare/arch/rope.h"
#include "pare/arch/tensors.h"

namespace pare {

// The orthogonal matrix nearest to a square one.
at::Tensor nearest_orthogonal(const at::Tensor& matrix);

// The orthogonal R of the least squares of reference - candidate Rᵀ, rows [n, d]; `start` where the rows say nothing.
at::Tensor procrustes(const at::Tensor& reference, const at::Tensor& candidate, const at::Tensor& start);

// The groups of matrices that may stand between two bases of a stream, or of a head.
enum class MapGroup {
  identity,
  turning,  // what commutes with RoPE: a I + b J on each plane, anything on the entries that do not turn
  general,
  rotation,          // where somebody sees lengths: a norm, or a query that is the key
  turning_rotation,  // both
};

// The dimensions of a head that turn together.
std::vector<std::pair<int64_t, int64_t>> turning_planes(const Rope& rope);

// Rows are samples, [n, width]. Of a writer: reference = candidate Ψᵀ. Of a reader: candidate = reference Ψ.
struct MapSamples {
  Role role = Role::reader;
  at::Tensor reference, candidate;
  at::Tensor weights = {};  // [n, 1], how much each sample counts; undefined: all alike
};

// The Ψ of least squares, each equation in units of its own rounding. Where the samples say nothing, `guess` stays.
at::Tensor fit_map(const std::vector<MapSamples>& samples, const at::Tensor& guess);
at::Tensor fit_turning_map(const std::vector<MapSamples>& samples, const Rope& rope, const at::Tensor& guess);
// The orthogonal Ψ of least squares: for such a one, readers and writers both say reference = candidate Ψᵀ.
at::Tensor fit_rotation(const std::vector<MapSamples>& samples, const at::Tensor& guess);
at::Tensor fit_in_group(MapGroup group, const std::optional<Rope>& rope, const std::vector<MapSamples>& samples,
                        const at::Tensor& guess);

// How large the candidate's entries of readers are, one number for each dimension.
at::Tensor usual_sizes(const std::vector<MapSamples>& samples, const at::Tensor& map);

// One matrix on each head: [groups, k, k] as the block diagonal of [heads * k, heads * k].
at::Tensor block_diagonal(const at::Tensor& matrices, int64_t heads);

}  // namespace pare
