#pragma once
// The whole way to a proof: a witness is looked for here, and judged by pare/proof.

#include "pare/proof/proof.h"

namespace pare {

// Reads every tensor of both once, and those that differ again; a few at a time, tables in slices of rows.
Proof prove(const Model& reference, const Model& candidate, at::Device device);

}  // namespace pare
