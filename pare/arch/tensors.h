#pragma once
// The one table of tensors: for any Architecture, every stored tensor with its identity, name, shape and place.
// Counting, initialising, loading, checking, translating and the streams all walk this table.

#include <map>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/arch/tensor_id.h"

namespace pare {

using Shape = std::vector<int64_t>;

// What a tensor belongs to, for counting. Every bias counts as a bias, wherever it stands.
enum class Part { embedding, query, key, value, output, query_key, value_output, gate, shape, mlp, norm, bias, head };

// The points of the computation that a stored tensor can write or read. Those of sublayers are there in every block.
enum class Point {
  token,     // a row of the token table
  embedded,  // the sum of all embeddings
  normed,    // the same after their norm
  first,     // what the first layer gets
  attention_input,
  attention_output,
  mlp_input,
  mlp_output,
  answered,              // after the final norm
  last,                  // what a head reads: the same, or behind the norm of what stands for a sequence
  pool_mlp_input,        // of attention that pools: behind its norm
  transformed,           // what the layer before the head writes
  head_input,            // what the head's matrix reads
  sequence_transformed,  // the same two of a second head
  sequence_input,
};

enum class Role { writer, reader };

// One axis of a tensor that lies along a point's stream, from entry `begin` on.
struct Axis {
  Point point = Point::first;
  Role role = Role::reader;
  int64_t axis = 0, begin = 0;
};

struct TensorSpec {
  TensorId id;
  std::string name;
  Shape shape;
  Part part = Part::embedding;
  bool index = false;  // int32 pivots: stored, but not parameters
  double initial = 0;  // where training starts from: one for a gain (less its offset), zero for a bias
  std::vector<Axis> axes = {};
};

class TensorTable {
 public:
  explicit TensorTable(std::vector<TensorSpec> specs);

  const TensorSpec* find(const TensorId& id) const;  // nullptr where the Architecture has no such tensor
  const TensorSpec* find(const std::string& name) const;
  bool contains(const TensorId& id) const { return find(id) != nullptr; }
  bool contains(const std::string& name) const { return find(name) != nullptr; }
  const TensorSpec& at(const TensorId& id) const;
  const TensorSpec& at(const std::string& name) const;

  std::vector<TensorSpec>::const_iterator begin() const { return specs_.begin(); }
  std::vector<TensorSpec>::const_iterator end() const { return specs_.end(); }
  size_t size() const { return specs_.size(); }

 private:
  std::vector<TensorSpec> specs_;
  std::map<TensorId, size_t> by_id_;
  std::map<std::string, size_t> by_name_;
};

TensorTable tensor_table(const Architecture& architecture);

const char* word(Part part);
int64_t element_count(const Shape& shape);

}  // namespace pare
