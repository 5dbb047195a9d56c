#pragma once
// The compat form: every tensor of the source's layout is stored, and those that a pass made superfluous do nothing.
// Engines that know only that layout run it. The file keeps its size: what is smaller is the strict form.

#include <vector>

#include "pare/rewrite/pipeline.h"

namespace pare {

// The same function in the tensors of `source`: identity matrices, gains of one and biases of zero are written out, so
// that an engine that knows only the source's form runs it.
Model compatible(const Model& model, const Architecture& source);

// What a pass comes to in a file.
struct StoredChange {
  int64_t saved = 0;    // parameters that are stored no more; negative where more are
  int64_t neutral = 0;  // parameters that became ones, zeros or the identity, and were not before
};

// Of each step of the pipeline, in the compat form. Looks at the values of `source`.
std::vector<StoredChange> compatible_changes(const Model& source, const Pipeline& pipeline);

}  // namespace pare
