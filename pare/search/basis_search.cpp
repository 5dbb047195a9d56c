#include "pare/search/basis_search.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "pare/proof/allowed_maps.h"
#include "pare/proof/proof.h"

namespace pare {

// Few of many rows, from all over.
static MapSamples every(int64_t step, MapSamples samples) {
  for (at::Tensor* rows : {&samples.reference, &samples.candidate, &samples.weights}) {
    if (rows->defined() && rows->dim() > 0) {
      *rows = rows->slice(0, 0, std::nullopt, step);
    }
  }
  return samples;
}

BasisSearch::BasisSearch(Relations& relations, at::Device device)
    : relations_(relations),
      a_(relations.reference()),
      b_(relations.candidate()),
      options_(at::TensorOptions(at::kDouble).device(device)),
      known_(a_.streams().all.size(), true) {
  for (const HeadRelations& heads : relations.heads()) {
    heads_.emplace_back(heads, a_, b_);
  }
  for (std::vector<size_t>& streams : turning_together(a_, b_)) {
    for (size_t s : streams) {
      together_[s] = streams;
    }
  }
}

void BasisSearch::find() {
  find_identities();
  std::vector<size_t> changed;
  for (size_t s = 0; s < known_.size(); ++s) {
    if (!known_[s]) {
      changed.push_back(s);
    }
  }
  if (changed.empty()) {
    return;
  }
  const std::vector<bool> known = known_;
  const int64_t wrong = fit_in_turn(changed);
  if (wrong == 0) {
    return;
  }
  const std::vector<bool> first_known = known_;
  const Relations::State first = relations_.state();
  known_ = known;
  if (!fit_jointly(changed) || (relations_.count_wrong() > 0 && fit_in_turn(changed) >= wrong)) {
    known_ = first_known;
    relations_.restore(first);
  }
}

// Gauges tell of streams and streams of gauges: a few rounds, until everything agrees, and more where that helps. What
// is wrong then is handed back.
int64_t BasisSearch::fit_in_turn(const std::vector<size_t>& changed) {
  constexpr int most_rounds = 24, few_rounds = 4;
  double wrong = std::numeric_limits<double>::infinity();
  for (int round = 0; round < most_rounds; ++round) {
    for (size_t s : changed) {
      fit_stream(s);
      for (size_t n = 0; n < heads_.size(); ++n) {
        if (streams_of(n).attention_input == s || streams_of(n).attention_output == s) {
          fit_heads(n);
        }
      }
    }
    const auto left = static_cast<double>(relations_.count_wrong());
    if (left == 0 || (round + 1 >= few_rounds && left > wrong * 0.75)) {
      break;
    }
    wrong = left;
  }
  return relations_.count_wrong();
}

void BasisSearch::find_identities() {
  std::vector<int64_t> obey(known_.size(), 0), differ(known_.size(), 0);
  for (size_t i = 0; i < relations_.ports().size(); ++i) {
    const ProofPort& port = relations_.ports()[i];
    const Finding& finding = relations_.finding(i);
    if (port.stream && finding.size > 0) {
      const bool obeys = port.rows == RowsOf::tensor ? finding.holds() : Relations::mostly_holds(finding, port.samples);
      ++(obeys ? obey : differ)[*port.stream];
    }
  }
  for (size_t s = 0; s < known_.size(); ++s) {
    if (const auto turning = together_.find(s); turning != together_.end()) {
      int64_t stayed = 0, moved = 0;
      for (size_t other : turning->second) {
        stayed += obey[other];
        moved += differ[other];
      }
      known_[s] = stayed >= moved;
      continue;
    }
    if (relations_.group_of(s) == MapGroup::identity) {
      continue;
    }
    known_[s] = obey[s] + differ[s] > 0 ? obey[s] >= differ[s] : !is_pinned(s);
  }
  for (size_t n = 0; n < heads_.size(); ++n) {
    fit_heads(n);
  }
}

bool BasisSearch::is_pinned(size_t stream) const {
  for (size_t n = 0; n < heads_.size(); ++n) {
    if ((streams_of(n).attention_input == stream && heads_[n].pinned_input()) ||
        (streams_of(n).attention_output == stream && heads_[n].pins_output())) {
      return true;
    }
  }
  return false;
}

void BasisSearch::fit_heads(size_t n) {
  const BlockStreams& at = streams_of(n);
  if (known_[at.attention_input] && !relations_.is_untouched(n)) {
    const StreamMap* out = known_[at.attention_output] ? &relations_.map(at.attention_output) : nullptr;
    relations_.set_gauges(n, heads_[n].fit(relations_.map(at.attention_input), out));
  }
}

double BasisSearch::roundoff_of(const ProofPort& port) const {
  const TensorId& id = port.parts[0];
  return unit_roundoff(b_.stores(id) ? b_.dtype_of(id) : Dtype::f64);
}

int64_t BasisSearch::samples_on(size_t s) const {
  int64_t count = 0;
  for (const ProofPort& port : relations_.ports()) {
    count += port.stream == s ? std::min(port.samples, enough_samples(port)) : 0;
  }
  for (size_t n = 0; n < heads_.size(); ++n) {
    const Attention& t = a_.architecture().blocks[n].attention;
    count += streams_of(n).attention_input == s ? (t.heads + 2 * t.kv_heads) * t.head_width : 0;
    count += streams_of(n).attention_output == s ? t.heads * t.head_width : 0;
  }
  return count;
}

std::vector<size_t> BasisSearch::turning_with(size_t s) const {
  const auto turning = together_.find(s);
  return turning == together_.end() ? std::vector{s} : turning->second;
}

std::vector<MapSamples> BasisSearch::samples_for(const std::vector<size_t>& streams,
                                                 std::vector<TableSamples>& tables) const {
  int64_t count = 0;
  for (size_t each : streams) {
    count += samples_on(each);
  }
  const int64_t step = (count + most_samples(streams.front()) - 1) / most_samples(streams.front());
  std::vector<MapSamples> samples;
  for (size_t each : streams) {
    add_samples(each, step, samples, tables);
  }
  return samples;
}

void BasisSearch::fit_stream(size_t s) {
  const std::vector<size_t> streams = turning_with(s);
  if (streams.front() != s) {
    return;  // it was turned with the first of them
  }
  std::vector<TableSamples> tables;
  std::vector<MapSamples> samples = samples_for(streams, tables);
  StreamBasis found = fit_once(s, samples);
  constexpr int most_trials = 12;
  for (int i = 0; i < most_trials && weigh_down_strange_rows(found.map, tables, samples); ++i) {
    found = fit_once(s, samples);
  }
  for (size_t each : streams) {
    set_map(each, found, samples);
  }
}

void BasisSearch::add_samples(size_t s, int64_t step, std::vector<MapSamples>& samples,
                              std::vector<TableSamples>& tables) const {
  for (const ProofPort& port : relations_.ports()) {
    if (port.stream == s && (!port.samples_on || known_[*port.samples_on])) {
      if (port.rows != RowsOf::tensor) {
        tables.push_back({samples.size(), roundoff_of(port)});
      }
      samples.push_back(every(step, samples_of(port)));
    }
  }
  for (size_t n = 0; n < heads_.size(); ++n) {
    add_head_samples(n, s, step, samples);
    if (streams_of(n).attention_input == s && heads_[n].passes_through()) {
      add_samples_behind(n, samples);
    }
  }
}

void BasisSearch::set_map(size_t s, StreamBasis found, const std::vector<MapSamples>& samples) {
  known_[s] = true;
  // What is the identity but for a little is the identity: nobody makes such a basis, and it would explain entries that
  // are a little off.
  constexpr double no_basis = 1e-2;
  const at::Tensor off = found.map - at::eye(found.map.size(0), options_);
  if (!is_pinned(s) && off.abs().max().item<double>() < no_basis) {
    relations_.set_basis(s, {});
    return;
  }
  found.units = usual_sizes(samples, found.map);
  relations_.set_basis(s, found);
}

void BasisSearch::add_head_samples(size_t n, size_t s, int64_t step, std::vector<MapSamples>& samples) const {
  const GaugeSearch& attention = heads_[n];
  const bool fitted = known_[streams_of(n).attention_input] && known_[s];
  if (streams_of(n).attention_input == s && (fitted || (attention.knows_scores() && attention.knows_values()))) {
    for (const MapSamples& sample : attention.input_samples(relations_.gauges(n))) {
      samples.push_back(every(step, sample));
    }
  }
  if (streams_of(n).attention_output == s && (known_[streams_of(n).attention_input] || attention.knows_values())) {
    for (const MapSamples& sample : attention.output_samples(relations_.gauges(n))) {
      samples.push_back(every(step, sample));
    }
  }
}

void BasisSearch::add_samples_behind(size_t n, std::vector<MapSamples>& samples) const {
  for (const ProofPort& port : relations_.ports()) {
    if (port.stream == streams_of(n).attention_output && port.role == Role::reader) {
      const MapSamples behind = samples_of(port);
      samples.push_back({Role::reader, heads_[n].through_values(behind.reference), behind.candidate});
    }
  }
}

// The gauge of a block's values, where what they read says it without rounding; undefined where it does not.
at::Tensor BasisSearch::known_values(size_t n) const {
  if (!known_[streams_of(n).attention_input]) {
    return {};
  }
  if (relations_.gauges(n).values.defined()) {
    return heads_[n].determines(Slot::value) ? relations_.gauges(n).values : at::Tensor();
  }
  const Attention& t = a_.architecture().blocks[n].attention;
  return at::eye(t.head_width, options_).expand({t.kv_heads, t.head_width, t.head_width});
}

StreamBasis BasisSearch::fit_once(size_t s, const std::vector<MapSamples>& samples) const {
  for (size_t n = 0; n < heads_.size(); ++n) {
    const std::optional<Slot> pinned = heads_[n].pinned_input();
    if (streams_of(n).attention_input == s && pinned) {
      return {.map = heads_[n].fit_pinned_input(*pinned, samples)};
    }
    if (streams_of(n).attention_output == s && heads_[n].pins_output()) {
      return heads_[n].fit_pinned_output(samples, known_values(n));
    }
  }
  const int64_t width = width_of(s);
  const at::Tensor guess = relations_.map(s).is_identity() ? at::eye(width, options_) : relations_.map(s).map;
  return {.map = together_.contains(s) ? fit_rotation(samples, guess) : fit_map(samples, guess)};
}

// Enough rows to know a map by, from all over the tensor.
MapSamples BasisSearch::samples_of(const ProofPort& port) const {
  const int64_t enough = port.sliced ? enough_samples(port) : port.samples;
  std::vector<Rounded> a, b;
  for (const RowRange& rows : rows_from_all_over(port.samples, enough)) {
    a.push_back(Relations::rows_of(port, a_, rows.begin, rows.count));
    b.push_back(Relations::rows_of(port, b_, rows.begin, rows.count));
  }
  return {port.role, relations_.through_samples(port, joined(a, 0)).value, joined(b, 0).value};
}

// Rows far from the map count less in the next fit, in proportion: least squares become least distances, which a
// minority of strange rows cannot move. Once most rows obey to rounding, those that do not are out.
bool BasisSearch::weigh_down_strange_rows(const at::Tensor& map, const std::vector<TableSamples>& tables,
                                          std::vector<MapSamples>& samples) {
  bool any = false;
  for (const TableSamples& table : tables) {
    MapSamples& sample = samples[table.index];
    const at::Tensor size = at::matmul(sample.candidate.abs(), map.abs().t()).norm(2, {1}, true).clamp_min(1e-300);
    const at::Tensor off = (sample.reference - at::matmul(sample.candidate, map.t())).norm(2, {1}, true) / size;
    const double middle = off.median().item<double>(), usual = std::max(30 * middle, most_roundings * table.roundoff);
    const at::Tensor strange = off > usual;
    if (!strange.any().item<bool>() && !(middle > most_roundings * table.roundoff)) {
      continue;
    }
    any = true;
    sample.weights = middle > 1e-2 ? (1e-2 / off.clamp_min(1e-2)).sqrt() : at::where(strange, 1e-12, 1.0);
  }
  return any;
}

}  // namespace pare
