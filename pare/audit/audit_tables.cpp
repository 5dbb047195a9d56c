#include "pare/audit/audit.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

namespace {

constexpr Dtype shown_dtypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16};

std::string headline(const Audit& audit) {
  const Architecture& a = audit.architecture;
  std::string text =
      fmt::format("{}: {}, {} layers", a.name.empty() ? "(no name)" : escaped(a.name), word(a.task), audit.layers);
  if (audit.distinct_blocks != audit.layers) {
    text += fmt::format(" over {} stored", audit.distinct_blocks);
  }
  text = wrapped(fmt::format("{}, width {}, context {}", text, a.width, a.context), 2, "");
  if (audit.stored) {
    text += wrapped(fmt::format("family {}, {} in {}, {} of {}", audit.stored->family,
                                audit.stored->gguf ? "read" : "stored", word(audit.stored->dtype),
                                human_bytes(audit.stored->file_bytes), audit.stored->gguf ? "GGUF" : "weight files"),
                    2, "");
    for (const std::string& line : lines_of(audit.stored->unused)) {
      text += wrapped("of which " + line, 4, "  ");
    }
    const StoredSize& stored = *audit.stored;
    text +=
        wrapped(stored.read == stored.tensors
                    ? "read: every tensor; all values are finite"
                    : fmt::format("read: the shapes of {} tensors and the values of {}; --conditions reads all values "
                                  "and refuses NaN and infinity",
                                  stored.tensors, stored.read),
                2, "");
  }
  return text;
}

std::string part_table(const Audit& audit) {
  Table table({Align::left, Align::right, Align::right, Align::right}, {"part", "per layer", "parameters", "share"});
  for (const PartRow& row : audit.parts) {
    const std::string per_layer = !row.in_blocks ? "-" : row.per_layer ? with_commas(*row.per_layer) : "varies";
    table.row(
        {word(row.part), per_layer, with_commas(row.total),
         fmt::format("{:.2f} %", 100.0 * static_cast<double>(row.total) / static_cast<double>(audit.parameters))});
  }
  table.rule();
  table.row({"total", "", with_commas(audit.parameters), human_count(audit.parameters)});
  return table.text();
}

std::string byte_table(const Audit& audit) {
  Table table({Align::left, Align::right, Align::right}, {"stored as", "weights", "cache per token"});
  for (Dtype dtype : shown_dtypes) {
    table.row({std::string(word(dtype)), human_bytes(bytes_of(audit.parameters, dtype)),
               audit.cache_elements == 0 ? "-" : with_commas(bytes_of(audit.cache_elements, dtype)) + " B"});
  }
  if (audit.stored) {
    table.row({"as stored", human_bytes(audit.stored->bytes)});
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
  Table table({Align::left, Align::right}, {"no skip, no norm: without query (Q) and output (P)", ""});
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

}  // namespace

std::string text_of(const Audit& audit) {
  std::string text = headline(audit) + "\n" + part_table(audit) + "\n" + byte_table(audit);
  if (audit.skipless) {
    text += "\n" + skipless_table(*audit.skipless);
  }
  text += "\n" + text_of(audit.redundancy, saved_together(audit.passes)) + "\n" + text_of(audit.passes);
  if (audit.constant_norms) {
    text += "\n" + text_of(*audit.constant_norms, audit.passes);
  }
  return audit.without_norms ? text + "\n" + text_of(*audit.without_norms, audit.passes) : text;
}

nlohmann::ordered_json to_json(const Audit& audit) {
  nlohmann::ordered_json json;
  json["name"] = audit.architecture.name;
  json["task"] = word(audit.architecture.task);
  json["layers"] = audit.layers;
  json["parameters"] = audit.parameters;
  for (const PartRow& row : audit.parts) {
    json["parts"][word(row.part)] = row.total;
    if (row.in_blocks && row.per_layer) {
      json["parts_per_layer"][word(row.part)] = *row.per_layer;
    }
  }
  for (Dtype dtype : shown_dtypes) {
    json["bytes"][std::string(word(dtype))] = bytes_of(audit.parameters, dtype);
    json["kv_cache_bytes_per_token"][std::string(word(dtype))] = bytes_of(audit.cache_elements, dtype);
  }
  if (audit.skipless) {
    json["without_query_and_output"] = {{"parameters", audit.skipless->remaining},
                                        {"saving", saving(*audit.skipless)},
                                        {"speedup", speedup(*audit.skipless)},
                                        {"exact_rewrite", !audit.skipless->parallel}};
  }
  if (audit.stored) {
    json["bytes"]["stored"] = audit.stored->bytes;
    json["family"] = audit.stored->family;
    json["dtype"] = word(audit.stored->dtype);
    json["file_bytes"] = audit.stored->file_bytes;
    json["unused_tensors"] = to_json(audit.stored->unused);
    json["tensors"] = audit.stored->tensors;
    json["tensors_read"] = audit.stored->read;
  }
  add_json(json, audit.redundancy);
  add_json(json, audit.passes);
  if (audit.constant_norms) {
    json["constant_norms"] = to_json(*audit.constant_norms);
  }
  if (audit.without_norms) {
    json["without_norms"] = to_json(*audit.without_norms);
  }
  return json;
}

}  // namespace pare
