#pragma once
// Tensors that can be had, not tensors that are held: each is read, sliced or computed when asked for.
// A file's tensor, a family's renamed slice and a pass's recipe are all the same thing to whoever asks.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>

#include "pare/arch/tensors.h"
#include "pare/checkpoint/dtype.h"

namespace pare {

struct Weight {
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::function<at::Tensor()> load;  // a fresh CPU tensor of that dtype and shape
};

using Weights = std::map<std::string, Weight>;  // sorted by name, as files are

// Every tensor of the files, under its stored name. Reading checks that floats are finite, and names the tensor.
class SafetensorsFile;
Weights weights_of(const SafetensorsFile& file);

at::ScalarType scalar_type(Dtype dtype);  // InputError for those we cannot compute with
Dtype dtype_of(at::ScalarType type);

// Writes the weights to one file, or to shards with an index once they pass `shard_bytes`; one tensor at a time.
void write_weights(const std::filesystem::path& folder, const Weights& weights, uint64_t shard_bytes);

}  // namespace pare
