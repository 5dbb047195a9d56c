#pragma once
// Tensors of a model's files that the model, as it is read, has no use for: the pooler that pre-training left beside a
// masked-LM head, masks, a tied tensor that is stored a second time. Other programs read them, so they are not lost in
// silence.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/tensor_file.h"

namespace pare {

struct Family;

struct UnusedTensor {
  TensorFile file;
  std::string stored;   // its name there
  std::string copy_of;  // the tensor of the model that it holds once more; empty: it is no part of the model
  const StoredTensor& tensor() const { return file.tensors().at(stored); }
  uint64_t bytes() const { return tensor().end - tensor().begin; }
};

using UnusedTensors = std::map<std::string, UnusedTensor>;  // by the family's name, with the base prefix, as `copy_of`

UnusedTensors unused_tensors(const Family& family, const Architecture& architecture,
                             const std::vector<TensorFile>& files);
uint64_t bytes_of(const UnusedTensors& tensors);
// Some are matrices over the stream, such as a pooler: whoever uses them gives them the last hidden states.
bool read_hidden_states(const UnusedTensors& tensors, int64_t width);

// What no comparison of two models sees. Copies are left out: what they hold is compared.
struct UnusedDifference {
  std::vector<std::string> only_reference, only_candidate, different;
  bool none() const { return only_reference.empty() && only_candidate.empty() && different.empty(); }
};
UnusedDifference compare_unused(const UnusedTensors& reference, const UnusedTensors& candidate);  // reads both

std::string some_names(const std::vector<std::string>& names);  // the first few, and how many more
// "12 kB not used by this model: a, b", and what is there twice. For people; may be empty.
std::vector<std::string> lines_of(const UnusedTensors& tensors);
nlohmann::ordered_json to_json(const UnusedTensors& tensors);
nlohmann::ordered_json to_json(const UnusedDifference& difference);

}  // namespace pare
