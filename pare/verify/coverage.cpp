#include "pare/verify/coverage.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "pare/arch/head.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

// Every tensor that either model has and the proof does not explain.
std::vector<TensorSpec> open_tensors(const Architecture& reference, const Architecture& candidate, const Proof& proof) {
  const TensorTable table = tensor_table(reference);
  std::vector<TensorSpec> open;
  for (const TensorSpec& spec : table) {
    if (proof.unexplained.contains(spec.name)) {
      open.push_back(spec);
    }
  }
  for (const TensorSpec& spec : tensor_table(candidate)) {
    if (!table.contains(spec.name) && !proof.complete) {
      open.push_back(spec);
    }
  }
  return open;
}

enum class Level { token, sequence };  // what a row of its input is

Level level_of(const TensorSpec& spec, const Architecture& a) {
  const ModuleId& m = spec.id.module;
  if (m.sublayer != Sublayer::head) {
    return Level::token;
  }
  const bool second = m.slot == Slot::sequence || m.slot == Slot::sequence_transform;
  const bool pooler = has_pooler(a) && m.slot == Slot::transform;
  return second || pooler || answers_sequences(a) ? Level::sequence : Level::token;
}

// A matrix's: how many numbers of its input each row of its output depends on. 0 for a vector.
int64_t inputs_of(const TensorSpec& spec) {
  if (spec.shape.size() < 2 || spec.index) {
    return 0;
  }
  return spec.id.module.slot == Slot::patch ? element_count(spec.shape) / spec.shape[0] : spec.shape.back();
}

bool is_table(const TensorSpec& spec) {
  const ModuleId& m = spec.id.module;
  return m == token_table || m == position_table || m == in_embedding(Slot::type) || m == in_embedding(Slot::table);
}

struct Seen {
  int64_t tokens = 0, sequences = 0, longest = 0;
  std::set<int64_t> ids, types;
  std::set<int64_t> alone;  // type * vocab + id
};

Seen seen_in(const Architecture& reference, const std::vector<Asked>& rounds) {
  Seen seen;
  for (const Asked& asked : rounds) {
    seen.tokens += asked.tokens;
    seen.sequences += asked.sequences;
    for (const Inputs& inputs : asked.inputs) {
      if (!inputs.ids.defined()) {
        seen.longest = patch_positions(reference);
        continue;
      }
      const at::Tensor real = inputs.mask.defined() ? inputs.mask : at::ones_like(inputs.ids, at::kBool);
      seen.longest = std::max(seen.longest, real.sum(1).max().item<int64_t>());
      const auto collect = [&real](std::set<int64_t>& into, const at::Tensor& values) {
        const at::Tensor found = std::get<0>(at::unique_dim(values.masked_select(real).to(at::kCPU), 0));
        into.insert(found.data_ptr<int64_t>(), found.data_ptr<int64_t>() + found.numel());
      };
      const at::Tensor types = inputs.types.defined() ? inputs.types : at::zeros_like(inputs.ids);
      collect(seen.ids, inputs.ids);
      collect(seen.types, types);
      if (inputs.ids.size(1) == 1) {
        collect(seen.alone, types * reference.vocab + inputs.ids);
      }
    }
  }
  return seen;
}

// Of a table: the rows that are known to be others, and which were asked.
struct TableRows {
  const std::vector<int64_t>& strange;
  std::set<int64_t> asked;
  int64_t all = 0;    // that something can read
  int64_t first = 0;  // of those; what stands before it may be anything

  int64_t strange_ones_missing() const {
    return std::ranges::count_if(strange, [this](int64_t row) { return row >= first && !asked.contains(row); });
  }
};

TableRows rows_of_table(const TensorSpec& spec, const Architecture& reference, const Proof& proof, const Seen& seen) {
  if (spec.id.module != position_table) {
    const bool types = spec.id.module == in_embedding(Slot::type);
    return {types ? proof.strange_types : proof.strange_tokens, types ? seen.types : seen.ids, spec.shape[0]};
  }
  const Embedding& embedding = reference.embedding;
  TableRows rows{proof.strange_positions, {}, spec.shape[0] - embedding.position_offset, embedding.position_offset};
  if (embedding.position_pad) {  // which stands before the first
    ++rows.all;
    --rows.first;
    if (seen.ids.contains(*embedding.position_pad)) {
      rows.asked.insert(embedding.position_offset - 1);
    }
  }
  for (int64_t place = 0; place < seen.longest; ++place) {
    rows.asked.insert(rows.asked.end(), place + embedding.position_offset);
  }
  return rows;
}

// Why a table's rows were not all seen; empty where they were.
std::string missing_in_table(const TableRows& rows) {
  const int64_t missing = rows.strange.empty() ? rows.all - std::ssize(rows.asked) : rows.strange_ones_missing();
  return missing > 0 ? fmt::format("{} of its {} rows were not asked", with_commas(missing), with_commas(rows.all))
                     : "";
}

}  // namespace

Wanted wanted_by(const Architecture& reference, const Architecture& candidate, const Proof& proof) {
  // So many that rows which are rarely off are among them: a head that is almost sure of itself may show a change in
  // one of some hundred sequences. Images cost more than short sequences do.
  const int64_t sequences = reference.embedding.patch ? 256 : 1024;
  Wanted wanted{
      .tokens = 2048, .sequences = answers_sequences(reference) ? sequences : 0, .longest = reference.context};
  // Every token, those that are known to be odd first.
  std::vector<int64_t>& cards = wanted.cards;
  for (int64_t token = 0; token < reference.vocab; ++token) {
    if (!std::ranges::binary_search(proof.strange_tokens, token)) {
      cards.push_back(token);
    }
  }
  wanted.first_cards = proof.strange_tokens;
  for (const TensorSpec& spec : open_tensors(reference, candidate, proof)) {
    if (is_table(spec)) {
      if (!(spec.id.module == token_table && reference.head.tied)) {
        continue;
      }
    }
    const int64_t rows = inputs_of(spec) + inputs_of(spec) / 4 + 1;
    int64_t& enough = level_of(spec, reference) == Level::sequence ? wanted.sequences : wanted.tokens;
    enough = std::max(enough, rows);
  }
  return wanted;
}

Coverage coverage_of(const Architecture& reference, const Architecture& candidate, const Proof& proof,
                     const Questions& questions) {
  const Seen seen = seen_in(reference, questions.asked);
  Coverage coverage{.longest = seen.longest,
                    .context = reference.embedding.patch ? patch_positions(reference) : reference.context};
  for (const Relation& relation : proof.relations) {
    coverage.tensors[relation.tensor] = word(relation.how);
  }
  const auto leave_out = [&coverage](std::string what) {
    coverage.complete = false;
    coverage.not_exercised.push_back(std::move(what));
  };
  const int64_t types = std::max<int64_t>(1, reference.embedding.types), pairs = types * reference.vocab;
  if (const int64_t unseen = pairs - std::ssize(seen.alone);
      questions.every_token && !reference.embedding.patch && unseen > 0) {
    coverage.every_token = false;
    leave_out(fmt::format("tokens: {} of {}{} were not asked alone", with_commas(unseen), with_commas(pairs),
                          types > 1 ? fmt::format(", of {} types,", types) : ""));
  }
  // What positions, windows and scalings do in longer texts is in no tensor.
  if (!proof.complete && coverage.longest < coverage.context) {
    leave_out(fmt::format("longer texts: the longest sequence asked has {} tokens of {}{}",
                          with_commas(coverage.longest), with_commas(coverage.context),
                          questions.bound.empty() ? "" : fmt::format(" ({})", questions.bound)));
  }
  for (const TensorSpec& spec : open_tensors(reference, candidate, proof)) {
    const int64_t rows = level_of(spec, reference) == Level::sequence ? seen.sequences : seen.tokens;
    const int64_t inputs = inputs_of(spec);
    std::string missing;
    if (is_table(spec)) {
      const TableRows table = rows_of_table(spec, reference, proof, seen);
      missing = missing_in_table(table);
      if (const int64_t known = table.strange_ones_missing(); known > 0) {
        coverage.known_other.push_back(
            fmt::format("{}: {} of its rows are others in the candidate, and no sequence reached {} of them", spec.name,
                        with_commas(std::ssize(table.strange)), with_commas(known)));
      }
    }
    const bool is_matrix = !is_table(spec) || (spec.id.module == token_table && reference.head.tied);
    if (missing.empty() && is_matrix && rows <= inputs) {
      missing = fmt::format("{} rows were compared, and it has {} inputs", with_commas(rows), with_commas(inputs));
    }
    coverage.tensors[spec.name] = missing.empty() ? "exercised" : "not exercised: " + missing;
    if (!missing.empty()) {
      leave_out(spec.name + ": " + missing);
    }
  }
  return coverage;
}

}  // namespace pare
