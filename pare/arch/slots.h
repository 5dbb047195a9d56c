#pragma once
// Where a kind of sublayer says, in one place, all that it stores and all that it does to the streams.
// attention.cpp and mlp.cpp fill it for each block; slots.cpp does for the two ends.

#include <optional>
#include <vector>

#include "pare/arch/tensors.h"

namespace pare {

// What touches a stream and is no matrix.
enum class TouchKind {
  norm_reads,   // a norm whose input this is
  norm_writes,  // a norm whose output this is
  identity,     // a projection without a matrix: one basis on both of its sides
  shrunk,       // a matrix stored with an identity block cut out of it
  activation,   // elementwise
  sinusoidal,   // positions that are computed, not stored
  hidden,       // the answer of the model itself
  pooled,       // the same, of a sequence
  elsewhere,    // read by what is no part of the model
};

struct PlacedTouch {
  Point point = Point::first;
  TouchKind kind = TouchKind::identity;
  ModuleId module;  // the norm, projection or table
};

class Slots {
 public:
  void add(TensorId id, Shape shape, Part part, std::vector<Axis> axes = {}, double initial = 0);
  void add_index(const ModuleId& module, Shape shape, Part part);
  // Only where present: a vector, alone or on the stream that its matrix writes.
  void add_bias(bool present, const ModuleId& module, int64_t size, std::vector<Axis> axes = {});
  void add_norm(const std::optional<Norm>& norm, const ModuleId& module, const Shape& shape);
  void touch(Point point, TouchKind kind, const ModuleId& module) { touches.push_back({point, kind, module}); }

  std::vector<TensorSpec> tensors;
  std::vector<PlacedTouch> touches;
};

inline Axis reads(Point point, int64_t axis = 1) {
  return {point, Role::reader, axis};
}
inline Axis writes(Point point, int64_t axis = 0) {
  return {point, Role::writer, axis};
}

Slots slots_of(const Architecture& architecture);

// One sublayer each, of block N.
void add_attention_slots(Slots& slots, const Architecture& architecture, int64_t block);  // attention.cpp
void add_mlp_slots(Slots& slots, const Architecture& architecture, int64_t block);        // mlp.cpp

// The matrices of the MLP of block N, whatever its kind: a neuron is a row of each that reads and a column of the one
// that writes.
struct MlpMatrices {
  std::vector<TensorSpec> readers;
  TensorSpec writer;
};
MlpMatrices mlp_matrices(const Architecture& architecture, int64_t block);

}  // namespace pare
