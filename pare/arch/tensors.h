#pragma once
// The one table of tensors: for any Architecture, every stored tensor with its name and shape.
// Counting, initialising, loading, checking and translating all walk this table.

#include <string>
#include <vector>

#include "pare/arch/architecture.h"

namespace pare {

using Shape = std::vector<int64_t>;

// What a tensor belongs to, for counting. Every bias counts as a bias, wherever it stands.
enum class Part { embedding, query, key, value, output, query_key, value_output, gate, mlp, norm, bias, head };

struct TensorSpec {
  std::string name;
  Shape shape;
  Part part = Part::embedding;
  bool index = false;  // int32 pivots: stored, but not parameters
  double rest = 0;     // where training starts from: one for a gain (less its offset), zero for a bias
};

std::vector<TensorSpec> tensor_table(const Architecture& architecture);

const char* part_name(Part part);
int64_t element_count(const Shape& shape);

}  // namespace pare
