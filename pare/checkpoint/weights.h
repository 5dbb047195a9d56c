#pragma once
// The tensors of a file or a model by name. A file's tensor, a family's renamed slice and what a pass computes are all
// the same thing to whoever asks.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "pare/checkpoint/tensor_file.h"
#include "pare/checkpoint/weight.h"

namespace pare {

using Weights = std::map<std::string, Weight>;  // sorted by name, as files are

// Every tensor under its stored name. Loading one checks that its floats are finite, and an error names the tensor.
Weights weights_of(const TensorFile& file);
Weights weights_of(std::span<const TensorFile> files);
Weights open_weights(const std::filesystem::path& folder);  // one file, or shards with an index

// Throws InputError "tensor NAME of SUBJECT ..." with the first element that is infinite or not a number.
void check_finite(const at::Tensor& tensor, const std::string& name, const std::string& subject);

at::ScalarType scalar_type(Dtype dtype);  // InputError for those we cannot compute with
Dtype dtype_of(at::ScalarType type);

// Bytes of a file, to be stored as they are: of any type, and nobody looks whether they are finite.
struct CopiedTensor {
  TensorFile file;
  std::string name;  // there
};

// Of several processes that write into one folder together, each a file of its own, which this one is.
struct WriteShare {
  int64_t number = 0, of = 1;
  bool load_all = false;  // also what others write: a tensor can be had only where all ask for it
};

// Names for at most so many files of about the same bytes, in sorted order.
std::vector<std::vector<std::string>> names_by_file(const Weights& weights, int64_t files);

// Writes model.safetensors, or shards of at most `shard_bytes` with an index, into a folder that exists; one tensor at
// a time. A tensor larger than a shard gets one of its own. `copied`: under names that no weight has.
void write_weights(const std::filesystem::path& folder, const Weights& weights, uint64_t shard_bytes,
                   const std::map<std::string, CopiedTensor>& copied = {});
// The same, of as many files as there are processes; the first writes the index.
void write_weights(const std::filesystem::path& folder, const Weights& weights, const WriteShare& share);

}  // namespace pare
