#include "pare/audit/audit.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>

#include "pare/support/progress.h"

namespace pare {

namespace {

int64_t amount(const Counts& counts, Part part) {
  const auto found = counts.parts.find(part);
  return found == counts.parts.end() ? 0 : found->second;
}

std::vector<PartRow> part_rows(const Counts& counts, const std::vector<Counts>& blocks) {
  std::vector<PartRow> rows;
  for (const auto& [part, total] : counts.parts) {
    PartRow row{.part = part, .per_layer = amount(blocks.front(), part), .total = total};
    for (const Counts& block : blocks) {
      row.in_blocks |= amount(block, part) > 0;
      if (row.per_layer != amount(block, part)) {
        row.per_layer.reset();
      }
    }
    rows.push_back(row);
  }
  return rows;
}

bool is_bare(const Block& block) {
  const Attention& t = block.attention;
  const bool bare_attention =
      !t.skip && !t.norm && !t.output_norm && !t.qk_norm && is<Dense>(t.query) && is<Dense>(t.output);
  return bare_attention && block.mlp && !block.mlp->skip && !block.mlp->norm && !block.mlp->output_norm;
}

// Only where every layer is a block of its own, without skip and norm, and all have the same numbers.
std::optional<Skipless> skipless_counts(const Architecture& architecture, const Counts& counts, const Counts& block) {
  const std::vector<Block>& blocks = architecture.blocks;
  const bool alike = std::ranges::all_of(blocks, [&](const Block& b) { return b == blocks.front(); }) &&
                     !architecture.layers && !architecture.final_norm;
  if (!alike || !is_bare(blocks.front()) || amount(counts, Part::query) == 0) {
    return std::nullopt;
  }
  Skipless result;
  result.query_output = amount(block, Part::query) + amount(block, Part::output);
  result.key_value = amount(block, Part::key) + amount(block, Part::value);
  result.mlp = amount(block, Part::mlp);
  result.embeddings = amount(counts, Part::embedding) + amount(counts, Part::head);
  result.total = counts.total;
  result.remaining = result.total - static_cast<int64_t>(blocks.size()) * result.query_output;
  result.parallel = blocks.front().wiring == Wiring::parallel;
  return result;
}

// The first and the last of each run of equal blocks: a first-layer table makes the first differ from the rest.
std::vector<Counts> count_kinds(const Architecture& architecture) {
  const std::vector<Block>& blocks = architecture.blocks;
  std::vector<Counts> kinds;
  for (size_t n = 0; n < blocks.size(); ++n) {
    const bool first = n == 0 || blocks[n] != blocks[n - 1];
    const bool last = n + 1 == blocks.size() || blocks[n] != blocks[n + 1];
    if (first || last) {
      kinds.push_back(count_block(architecture, static_cast<int64_t>(n)));
    }
  }
  return kinds;
}

StoredSize stored_size(const ModelFolder& model) {
  StoredSize size{
      .family = model.family, .dtype = model.dtype, .unused = model.unused, .tensors = model.model.weights.size()};
  size.file_bytes = static_cast<int64_t>(stored_bytes(model));
  size.gguf = !model.gguf.empty();
  for (const auto& [name, weight] : model.model.weights) {
    size.bytes += bytes_of(element_count(weight.shape()), model.stored_dtype(name));
  }
  return size;
}

// Which tensors somebody has read the numbers of.
struct Readings {
  std::mutex mutex;
  std::set<std::string> names;
};

Weights watched(const Weights& weights, const std::shared_ptr<Readings>& readings) {
  Weights result;
  for (const auto& [name, weight] : weights) {
    result[name] = Weight::made(
        name, weight.dtype(), weight.shape(), {weight},
        [readings, name = name](std::vector<at::Tensor>& in) {
          const std::lock_guard lock(readings->mutex);
          readings->names.insert(name);
          return in[0];
        },
        weight.can_load_rows() ? Weight::Rows::each : Weight::Rows::all);
  }
  return result;
}

// Loading a tensor checks that it is finite. Tables, which are the largest, in pieces.
void read_all(const Weights& weights) {
  Progress progress("reading", weights.size());
  for (const auto& [name, weight] : weights) {
    progress.advance();
    const int64_t rows = weight.can_load_rows() ? weight.shape().front() : 0, step = 1 << 14;
    for (int64_t row = 0; row < rows; row += step) {
      weight.load_rows(row, std::min(step, rows - row));
    }
    if (rows == 0) {
      weight.load();
    }
  }
}

Audit audit_structure(const Architecture& architecture) {
  const Counts counts = count(architecture);
  const std::vector<Counts> blocks = count_kinds(architecture);
  Audit audit;
  audit.architecture = architecture;
  audit.parameters = counts.total;
  audit.layers = static_cast<int64_t>(layer_blocks(architecture).size());
  audit.distinct_blocks = std::ssize(architecture.blocks);
  audit.cache_elements = cache_elements_per_token(architecture);
  audit.parts = part_rows(counts, blocks);
  audit.skipless = skipless_counts(architecture, counts, blocks.front());
  return audit;
}

// Norms that do nothing need no training to go.
void add_norms(Audit& audit, const Architecture& architecture, const std::string& model) {
  audit.constant_norms = audit_constant_norms(audit.passes, architecture, model);
  if (!audit.constant_norms) {
    audit.without_norms = audit_norms(audit.passes, architecture, model);
  }
}

}  // namespace

Audit audit_architecture(const Architecture& architecture, Measure measure, Prove prove) {
  Audit audit = audit_structure(architecture);
  audit.passes = audit_passes({.architecture = architecture}, Dtype::f32, measure);
  audit.redundancy = audit_redundancy(architecture, prove);
  add_norms(audit, architecture, "MODEL");
  return audit;
}

Audit audit_model(const ModelFolder& model, Measure measure, Prove prove) {
  Audit audit = audit_structure(model.model.architecture);
  const auto readings = std::make_shared<Readings>();
  const Model asked{model.model.architecture, watched(model.model.weights, readings)};
  if (measure == Measure::always) {
    read_all(asked.weights);
  }
  audit.passes = audit_passes(asked, model.dtype, measure);
  audit.stored = stored_size(model);
  audit.stored->read = readings->names.size();
  audit.redundancy = audit_redundancy(model.model.architecture, prove);
  add_norms(audit, model.model.architecture, model.path.string());
  return audit;
}

}  // namespace pare
