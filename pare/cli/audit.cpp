// pare audit: how many parameters a model has, where they are, what they cost, and which of them can go.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/arch/presets.h"
#include "pare/audit/passes.h"
#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/cli/subject.h"
#include "pare/support/text.h"

namespace pare {

namespace {

constexpr Dtype shown_dtypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16};

int64_t amount(const Counts& counts, Part part) {
  const auto found = counts.parts.find(part);
  return found == counts.parts.end() ? 0 : found->second;
}

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

struct Audit {
  Counts counts;
  std::vector<Counts> blocks;  // the different ones
  std::vector<PartRow> rows;
  int64_t layers = 0, distinct_blocks = 0, cache_elements = 0;
  std::optional<Skipless> skipless;
};

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
std::optional<Skipless> skipless_counts(const Architecture& architecture, const Audit& audit) {
  const std::vector<Block>& blocks = architecture.blocks;
  const bool alike = std::all_of(blocks.begin(), blocks.end(), [&](const Block& b) { return b == blocks.front(); }) &&
                     !architecture.layers && !architecture.final_norm;
  if (!alike || !is_bare(blocks.front()) || amount(audit.counts, Part::query) == 0) {
    return std::nullopt;
  }
  const Counts& block = audit.blocks.front();
  Skipless result;
  result.query_output = amount(block, Part::query) + amount(block, Part::output);
  result.key_value = amount(block, Part::key) + amount(block, Part::value);
  result.mlp = amount(block, Part::mlp);
  result.embeddings = amount(audit.counts, Part::embedding) + amount(audit.counts, Part::head);
  result.total = audit.counts.total;
  result.remaining = result.total - audit.layers * result.query_output;
  result.parallel = blocks.front().wiring == Wiring::parallel;
  return result;
}

// The first and the last of each run of equal blocks: a first-layer table makes the first differ from the rest.
std::vector<Counts> count_kinds(const Architecture& architecture) {
  const std::vector<Block>& blocks = architecture.blocks;
  std::vector<Counts> kinds;
  for (size_t n = 0; n < blocks.size(); ++n) {
    const bool first = n == 0 || blocks[n] != blocks[n - 1],
               last = n + 1 == blocks.size() || blocks[n] != blocks[n + 1];
    if (first || last) {
      kinds.push_back(count_block(architecture, static_cast<int64_t>(n)));
    }
  }
  return kinds;
}

Audit audit_architecture(const Architecture& architecture) {
  Audit audit;
  audit.counts = count(architecture);
  audit.layers = static_cast<int64_t>(layer_blocks(architecture).size());
  audit.cache_elements = cache_elements_per_token(architecture);
  audit.blocks = count_kinds(architecture);
  audit.distinct_blocks = std::ssize(architecture.blocks);
  audit.rows = part_rows(audit.counts, audit.blocks);
  audit.skipless = skipless_counts(architecture, audit);
  return audit;
}

int64_t stored_bytes(const ModelFolder& model) {
  int64_t bytes = 0;
  for (const auto& [name, weight] : model.model.weights) {
    bytes += bytes_of(element_count(weight.shape()), weight.dtype());
  }
  return bytes;
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

std::string headline(const Subject& subject, const Audit& audit) {
  const Architecture& a = subject.architecture;
  std::string text =
      fmt::format("{}: {}, {} layers", a.name.empty() ? "(no name)" : escaped(a.name), word(a.task), audit.layers);
  if (audit.distinct_blocks != audit.layers) {
    text += fmt::format(" over {} stored", audit.distinct_blocks);
  }
  text = wrapped(fmt::format("{}, width {}, context {}", text, a.width, a.context), 2, "");
  if (subject.stored) {
    text += wrapped(fmt::format("family {}, stored in {}, {} of safetensors", subject.stored->family,
                                dtype_word(subject.stored->dtype), human_bytes(file_bytes(subject.stored->path))),
                    2, "");
  }
  return text;
}

std::string part_table(const Audit& audit) {
  Table table({Align::left, Align::right, Align::right, Align::right});
  table.row({"part", "per layer", "parameters", "share"});
  table.rule();
  for (const PartRow& row : audit.rows) {
    const std::string per_layer = !row.in_blocks ? "-" : row.per_layer ? with_commas(*row.per_layer) : "varies";
    table.row(
        {word(row.part), per_layer, with_commas(row.total),
         fmt::format("{:.2f} %", 100.0 * static_cast<double>(row.total) / static_cast<double>(audit.counts.total))});
  }
  table.rule();
  table.row({"total", "", with_commas(audit.counts.total), human_count(audit.counts.total)});
  return table.text();
}

std::string byte_table(const Subject& subject, const Audit& audit) {
  Table table({Align::left, Align::right, Align::right});
  table.row({"stored as", "weights", "cache per token"});
  table.rule();
  for (Dtype dtype : shown_dtypes) {
    table.row({std::string(dtype_word(dtype)), human_bytes(bytes_of(audit.counts.total, dtype)),
               audit.cache_elements == 0 ? "-" : with_commas(bytes_of(audit.cache_elements, dtype)) + " B"});
  }
  if (subject.stored) {
    table.row({"as it is", human_bytes(stored_bytes(*subject.stored))});
  }
  return table.text();
}

double saving(const Skipless& s) {
  return static_cast<double>(s.total - s.remaining) / static_cast<double>(s.total);
}

double speedup(const Skipless& s) {
  return static_cast<double>(s.total) / static_cast<double>(s.remaining);
}

std::string skipless_table(const Skipless& s) {
  Table table({Align::left, Align::right});
  table.row({"no skip, no norm: without query (Q) and output (P)", ""});
  table.rule();
  table.row({"Q+P weights per layer", with_commas(s.query_output)});
  table.row({"K+V weights per layer", with_commas(s.key_value)});
  table.row({"FFN weights per layer", with_commas(s.mlp)});
  table.row({"Input+output embed.", with_commas(s.embeddings)});
  table.row({"Total weights", human_count(s.total)});
  table.row({"Total w/o Q+P weights", human_count(s.remaining)});
  table.row({"Weight savings", fmt::format("{:.0f}%", 100 * saving(s))});
  table.row({"Possible speedup (batch 1, memory bound)", fmt::format("{:.2f}x", speedup(s))});
  std::string text = table.text();
  if (s.parallel) {
    text += wrapped(
        "In parallel blocks this is the count of an architecture to train: an exact rewrite of trained weights can "
        "remove one of Q and P per layer, not both.",
        0);
  }
  return text;
}

nlohmann::ordered_json to_json(const Subject& subject, const Audit& audit) {
  nlohmann::ordered_json json;
  json["name"] = subject.architecture.name;
  json["task"] = word(subject.architecture.task);
  json["layers"] = audit.layers;
  json["parameters"] = audit.counts.total;
  for (const PartRow& row : audit.rows) {
    json["parts"][word(row.part)] = row.total;
    if (row.in_blocks && row.per_layer) {
      json["parts_per_layer"][word(row.part)] = *row.per_layer;
    }
  }
  for (Dtype dtype : shown_dtypes) {
    json["bytes"][std::string(dtype_word(dtype))] = bytes_of(audit.counts.total, dtype);
    json["kv_cache_bytes_per_token"][std::string(dtype_word(dtype))] = bytes_of(audit.cache_elements, dtype);
  }
  if (audit.skipless) {
    json["without_query_and_output"] = {{"parameters", audit.skipless->remaining},
                                        {"saving", saving(*audit.skipless)},
                                        {"speedup", speedup(*audit.skipless)},
                                        {"exact_rewrite", !audit.skipless->parallel}};
  }
  if (subject.stored) {
    json["bytes"]["stored"] = stored_bytes(*subject.stored);
    json["family"] = subject.stored->family;
    json["dtype"] = dtype_word(subject.stored->dtype);
    json["file_bytes"] = file_bytes(subject.stored->path);
  }
  return json;
}

void audit_command(const std::string& what, Measure measure, const Settings& settings) {
  const Subject subject = find_subject(what);
  const Audit audit = audit_architecture(subject.architecture);
  const PassAudit passes =
      audit_passes({subject.architecture, subject.stored ? subject.stored->model.weights : Weights{}},
                   subject.stored ? subject.stored->dtype : Dtype::f32, measure);
  if (settings.json) {
    nlohmann::ordered_json json = to_json(subject, audit);
    add_json(json, passes);
    print_json(json);
    return;
  }
  std::string text = headline(subject, audit) + "\n" + part_table(audit) + "\n" + byte_table(subject, audit);
  if (audit.skipless) {
    text += "\n" + skipless_table(*audit.skipless);
  }
  print_text(text + "\n" + text_of(passes));
}

}  // namespace

void add_audit(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("audit", "What a model costs, what can go, and if not, why not");
  auto what = std::make_shared<std::string>();
  auto conditions = std::make_shared<bool>(false);
  command->add_option("MODEL", *what, "a model folder, a preset, or an Architecture as JSON")
      ->required()
      ->check(suggested(preset_names()));
  command->add_flag("--conditions", *conditions, "condition numbers also where no pass can use them");
  command->footer("Example: pare audit mistral-7b");
  command->callback([what, conditions, &settings] {
    audit_command(*what, *conditions ? Measure::always : Measure::usual, settings);
  });
}

}  // namespace pare
