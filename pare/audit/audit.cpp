#include "pare/audit/audit.h"

#include <filesystem>

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
  const bool alike = std::all_of(blocks.begin(), blocks.end(), [&](const Block& b) { return b == blocks.front(); }) &&
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

int64_t file_bytes(const std::filesystem::path& folder) {
  int64_t bytes = 0;
  for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().extension() == ".safetensors") {
      bytes += static_cast<int64_t>(entry.file_size());
    }
  }
  return bytes;
}

StoredSize stored_size(const ModelFolder& model) {
  StoredSize size{.family = model.family, .dtype = model.dtype, .file_bytes = file_bytes(model.path)};
  for (const auto& [name, weight] : model.model.weights) {
    size.bytes += bytes_of(element_count(weight.shape()), weight.dtype());
  }
  return size;
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

}  // namespace

Audit audit_architecture(const Architecture& architecture, Measure measure, Prove prove) {
  Audit audit = audit_structure(architecture);
  audit.passes = audit_passes({.architecture = architecture}, Dtype::f32, measure);
  audit.redundancy = audit_redundancy(architecture, prove);
  audit.without_norms = audit_norms(audit.passes, architecture, "MODEL");
  return audit;
}

Audit audit_model(const ModelFolder& model, Measure measure, Prove prove) {
  Audit audit = audit_structure(model.model.architecture);
  audit.stored = stored_size(model);
  audit.passes = audit_passes(model.model, model.dtype, measure);
  audit.redundancy = audit_redundancy(model.model.architecture, prove);
  audit.without_norms = audit_norms(audit.passes, model.model.architecture, model.path.string());
  return audit;
}

}  // namespace pare
