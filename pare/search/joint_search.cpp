#include "pare/search/basis_search.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/linear/map_fit.h"

// Bases that no table and no matrix determines alone: too few tokens, a narrow factor, an MLP of few neurons. Queries,
// keys and values read the stream, but each in a gauge that is not known either. All of that is linear in the maps and
// the gauges together,
//   A Ψ = D B    A = Ψ B    O_A E = Ψ' O_B,
// but for D of the keys, which is D⁻ᵀ of the queries and is looked for by itself: one system of least squares. Where it
// is right is found by the relations, as ever.

namespace pare {

namespace {

// Of as many entries as this; those of larger models have tables.
constexpr int64_t most_unknowns = 1 << 14;

// [n, width], each row of length one: whether they span the space well.
bool span(const std::vector<at::Tensor>& rows, int64_t width) {
  constexpr double well = 1e-3;
  if (rows.empty()) {
    return false;
  }
  const at::Tensor all = at::cat(rows);
  if (all.size(0) < width) {
    return false;
  }
  const at::Tensor values = at::linalg_svdvals(all);
  return values[-1].item<double>() > well * values[0].item<double>();
}

}  // namespace

bool BasisSearch::is_determined(size_t s) const {
  std::vector<at::Tensor> written, read;
  const auto add = [&](const MapSamples& sample) {
    const bool writes = sample.role == Role::writer;
    const at::Tensor& rows = writes ? sample.candidate : sample.reference;
    (writes ? written : read).push_back(rows * one_over(rows));
  };
  for (size_t each : turning_with(s)) {
    for (const ProofPort& port : relations_.ports()) {
      if (port.stream == each && (!port.samples_on || known_[*port.samples_on])) {
        add(samples_of(port));
      }
    }
    for (size_t n = 0; n < heads_.size(); ++n) {
      if (streams_of(n).attention_input == each && heads_[n].knows_scores() && heads_[n].knows_values()) {
        for (const MapSamples& sample : heads_[n].input_samples({})) {
          add(sample);
        }
      }
    }
  }
  const int64_t width = width_of(s);
  return span(written, width) || span(read, width);
}

bool BasisSearch::fit_jointly(const std::vector<size_t>& changed) {
  int64_t unknowns = 0;
  for (size_t s : changed) {
    unknowns += width_of(s) * width_of(s);
  }
  if (unknowns > most_unknowns || std::ranges::all_of(changed, [&](size_t s) { return is_determined(s); })) {
    return false;
  }
  MatrixSystem system;
  std::vector<size_t> maps(known_.size());
  for (size_t s = 0; s < maps.size(); ++s) {
    if (const size_t first = turning_with(s).front(); first != s) {
      maps[s] = maps[first];
      continue;
    }
    maps[s] = system.guess.size();
    system.guess.push_back(at::eye(width_of(s), options_));
    if (known_[s]) {
      system.known[maps[s]] = relations_.map(s).is_identity() ? system.guess.back() : relations_.map(s).map;
    }
  }
  for (const ProofPort& port : relations_.ports()) {
    if (!port.stream) {
      continue;
    }
    if (port.samples_on && !known_[*port.samples_on]) {
      const at::Tensor a = Relations::rows_of(port, a_, 0, port.samples).value,
                       b = Relations::rows_of(port, b_, 0, port.samples).value;
      const int64_t width = width_of(*port.samples_on);
      for (int64_t begin = 0; begin < port.samples; begin += width) {
        const at::Tensor from = a.narrow(0, begin, width), to = b.narrow(0, begin, width);
        system.add({{{.unknown = maps[*port.samples_on], .right = from, .transposed = true},
                     {.unknown = maps[*port.stream], .left = to, .transposed = true, .sign = -1}}},
                   {});
      }
      continue;
    }
    const MapSamples samples = samples_of(port);
    const bool writes = samples.role == Role::writer;
    const at::Tensor scale = one_over(samples.candidate);
    system.add({{{.unknown = maps[*port.stream],
                  .left = writes ? samples.candidate : samples.reference,
                  .transposed = writes}},
                writes ? samples.reference : samples.candidate},
               scale);
  }
  for (size_t n = 0; n < heads_.size(); ++n) {
    heads_[n].add_equations(maps[streams_of(n).attention_input], maps[streams_of(n).attention_output], system);
  }
  const std::vector<at::Tensor> found = solve_together(system.equations, system.guess);
  for (size_t s : changed) {
    const at::Tensor& map = found[maps[s]];
    if (!map.isfinite().all().item<bool>()) {
      return false;
    }
    set_map(s, {.map = together_.contains(s) ? nearest_orthogonal(map) : map}, {});
  }
  for (size_t n = 0; n < heads_.size(); ++n) {
    fit_heads(n);
  }
  for (size_t s : changed) {  // how large readers are is known by those of heads too, whose gauges are there now
    if (!relations_.map(s).is_identity()) {
      std::vector<TableSamples> tables;
      set_map(s, {.map = relations_.map(s).map}, samples_for(turning_with(s), tables));
    }
  }
  return true;
}

}  // namespace pare
