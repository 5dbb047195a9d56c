#pragma once
// What a model costs, part by part, and what it could do without.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/arch/count.h"
#include "pare/audit/constant_norms.h"
#include "pare/audit/passes.h"
#include "pare/audit/redundancy.h"
#include "pare/audit/trained_away.h"
#include "pare/checkpoint/model_folder.h"

namespace pare {

struct PartRow {
  Part part;
  std::optional<int64_t> per_layer;  // absent where the blocks differ
  bool in_blocks = false;
  int64_t total = 0;
};

// Without Q and the output projection: what a skipless block can be trained, or rewritten, to do without.
struct Skipless {
  int64_t query_output = 0, key_value = 0, mlp = 0;  // of one layer
  int64_t embeddings = 0, total = 0, remaining = 0;
  bool parallel = false;
};

// How a model lies on disk.
struct StoredSize {
  std::string family;
  Dtype dtype = Dtype::f32;           // of most of it
  int64_t bytes = 0, file_bytes = 0;  // of its tensors; of the files that it was read from
  bool gguf = false;                  // and not safetensors
  UnusedTensors unused;               // what lies in those beside them
  size_t tensors = 0, read = 0;       // of the model's own, those whose numbers were looked at: the others may be NaN
};

struct Audit {
  Architecture architecture;
  int64_t parameters = 0, layers = 0, distinct_blocks = 0;
  int64_t cache_elements = 0;  // that one more token adds to the cache
  std::vector<PartRow> parts;
  std::optional<Skipless> skipless;  // only where every layer is such a block
  std::optional<StoredSize> stored;  // only of a model folder
  PassAudit passes;
  RedundancyAudit redundancy;
  std::optional<ConstantNorms> constant_norms;
  std::optional<TrainedAway> without_norms;  // of norms that do something
};

Audit audit_architecture(const Architecture& architecture, Measure measure = Measure::usual, Prove prove = Prove::no);
// The same, with what its weights say. With Measure::always each of them is read, and InputError where one is not
// finite.
Audit audit_model(const ModelFolder& model, Measure measure = Measure::usual, Prove prove = Prove::no);

std::string text_of(const Audit& audit);
nlohmann::ordered_json to_json(const Audit& audit);

}  // namespace pare
