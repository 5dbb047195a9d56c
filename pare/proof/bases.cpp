#include "pare/proof/bases.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/arch/norms.h"
#include "pare/proof/groups.h"
#include "pare/proof/proof.h"
#include "pare/proof/rotations.h"
#include "pare/proof/settings.h"

namespace pare {

namespace {

// Gains that are stored alike mean the same only with the same offset.
std::vector<std::optional<double>> norm_offsets(Architecture a) {
  std::vector<std::optional<double>> found;
  for (const PlacedNorm& placed : norms_of(a)) {
    found.push_back(placed.norm->offset);
  }
  for (const Block& block : a.blocks) {
    found.push_back(block.attention.qk_norm ? std::optional(block.attention.qk_norm->offset) : std::nullopt);
  }
  return found;
}

// Few of many rows, from all over.
MapSamples every(int64_t step, MapSamples samples) {
  for (at::Tensor* rows : {&samples.reference, &samples.candidate, &samples.weights}) {
    if (rows->defined() && rows->dim() > 0) {
      *rows = rows->slice(0, 0, std::nullopt, step);
    }
  }
  return samples;
}

}  // namespace

ProofBases::ProofBases(const ProofSide& reference, const ProofSide& candidate, const std::set<TensorId>& same,
                       const at::TensorOptions& options)
    : a_(reference),
      b_(candidate),
      wide_(candidate.in_float64()),
      same_(same),
      options_(options),
      same_offsets_(norm_offsets(reference.architecture()) == norm_offsets(candidate.architecture())),
      groups_(groups_of_streams(reference, candidate)),
      ports_(ports_of(reference, candidate)),
      findings_(ports_.size()),
      heads_(reference.architecture().blocks.size()),
      head_findings_(heads_.size()),
      maps_(reference.streams().all.size()),
      known_(maps_.size(), true) {
  for (size_t n = 0; n < heads_.size(); ++n) {
    attentions_.emplace_back(reference, candidate, wide_, static_cast<int64_t>(n));
  }
  for (std::vector<size_t>& streams : turning_together(reference, candidate)) {
    for (size_t s : streams) {
      together_[s] = streams;
    }
  }
}

bool ProofBases::are_same(const std::vector<TensorId>& parts) const {
  return same_offsets_ && std::all_of(parts.begin(), parts.end(), [&](const TensorId& id) {
           return same_.contains(id) || (!a_.stores(id) && !b_.stores(id));
         });
}

// What writes a stream whose mean nobody sees is seen without it.
Effective ProofBases::loaded(const ProofPort& port, const ProofSide& side, int64_t begin, int64_t count) {
  const Effective rows = port.load(side, begin, count);
  return port.stream && port.role == Role::writer ? side.written(rows, *port.stream) : rows;
}

bool ProofBases::is_centred(const std::optional<size_t>& stream) const {
  return stream && (a_.centres(*stream) || b_.centres(*stream));
}

// The factors of its neurons are known no better than the numbers that they were found by.
bool ProofBases::is_scaled(const ProofPort& port) const {
  return std::any_of(port.parts.begin(), port.parts.end(), [&](const TensorId& id) { return b_.is_scaled(id); });
}

bool ProofBases::is_made(const ProofPort& port) const {
  const bool made = std::any_of(port.parts.begin(), port.parts.end(),
                                [&](const TensorId& id) { return a_.is_made(id) || b_.is_made(id); });
  return made || (port.role == Role::writer && is_centred(port.stream));
}

at::Tensor ProofBases::carried(const ProofPort& port, const Effective& rows) const {
  const StreamMap none;
  const StreamMap& map = port.stream ? maps_[*port.stream] : none;
  if (port.role == Role::reader) {
    return map.is_identity() ? rows.rounding : at_least_usual(rows.rounding, map.units);
  }
  return written_through(with_usual_samples(port, rows), map).rounding;
}

at::Tensor ProofBases::unit(const ProofPort& port, int64_t begin, int64_t count, const at::Tensor& rounding) const {
  const auto [coarsest, mixed] = b_.unit(port.parts);
  if (!mixed) {
    return at::full({}, coarsest, rounding.options());
  }
  const at::Tensor units = mixed_units(rounding, carried(port, loaded(port, wide_, begin, count)), coarsest);
  if (!is_identity(port.samples_on)) {  // each entry of the reference sees those of its column
    return units.amax();
  }
  return port.role == Role::reader && !is_identity(port.stream) ? units.amax(-1, true).expand_as(units) : units;
}

// The reference's rows as the candidate should have them, or the candidate's as the reference has them.
Finding ProofBases::check_rows(const ProofPort& port, int64_t begin, int64_t count) const {
  Effective a = loaded(port, a_, begin, count);
  const Effective b = loaded(port, b_, begin, count);
  const StreamMap none;
  const StreamMap& map = port.stream ? maps_[*port.stream] : none;
  const Rigour rigour = is_fitted(port) || is_scaled(port) ? Rigour::fitted
                        : is_made(port)                    ? Rigour::folded
                                                           : port.rigour;
  const at::Tensor own = carried(port, b), units = unit(port, begin, count, own);
  if (port.role == Role::reader) {
    const Effective expected = read_through(a, map);
    const at::Tensor residual = b.value - expected.value;
    Allowance allowed = allowance(expected.rounding + solving_error(b.value, map, Role::reader), own, rigour, units);
    allowed.off_group = map.off_group;
    allowed.expected = expected.value;
    return judged(residual, allowed, pulled_back(residual, map), before_moving(a.value, expected.value, map));
  }
  const at::Tensor whole = port.usual ? at::full_like(a.value, *port.usual) : a.value;
  a = through_samples(port, a);
  const at::Tensor residual = a.value - written_through(b, map).value;
  const at::Tensor lost = a.rounding + solving_error(a.value, map, Role::writer);
  Allowance allowed = allowance(lost, own, rigour, units);
  allowed.elsewhere = off_elsewhere(residual, lost, with_usual_samples(port, b).rounding, map);
  allowed.off_group = map.off_group + (port.samples_on ? maps_[*port.samples_on].off_group : 0);
  allowed.expected = a.value;
  return judged(residual, allowed, through_samples_back(port, residual), whole);
}

// A matrix between two streams: the one that it reads is the candidate's from now on.
Effective ProofBases::through_samples(const ProofPort& port, const Effective& rows) const {
  if (!port.samples_on || maps_[*port.samples_on].is_identity()) {
    return rows;
  }
  const at::Tensor map = maps_[*port.samples_on].map.t();
  const int64_t width = map.size(0), out = rows.value.size(1);
  const auto turned = [&](const at::Tensor& matrix, const at::Tensor& x) {
    return at::matmul(matrix, x.reshape({-1, width, out})).reshape({-1, out});
  };
  return {turned(map, rows.value), turned(map.abs(), rows.rounding)};
}

at::Tensor ProofBases::through_samples_back(const ProofPort& port, const at::Tensor& rows) const {
  if (!port.samples_on || maps_[*port.samples_on].is_identity()) {
    return rows;
  }
  const int64_t width = maps_[*port.samples_on].map.size(0), out = rows.size(1);
  const at::Tensor along = rows.reshape({-1, width, out}).transpose(1, 2);
  return pulled_back(along, maps_[*port.samples_on]).transpose(1, 2).reshape({-1, out});
}

// The same for the rounding of what the candidate has there.
Effective ProofBases::with_usual_samples(const ProofPort& port, const Effective& rows) const {
  if (!port.samples_on || maps_[*port.samples_on].is_identity()) {
    return rows;
  }
  const StreamMap& read = maps_[*port.samples_on];
  const int64_t width = read.map.size(0), out = rows.value.size(1);
  const auto along = [&](const at::Tensor& x) { return x.reshape({-1, width, out}).transpose(1, 2); };
  const at::Tensor rounding =
      at_least_usual(along(rows.rounding), read.units) + solving_error(along(rows.value), read, Role::reader);
  return {rows.value, rounding.transpose(1, 2).reshape({-1, out})};
}

Finding ProofBases::check(const ProofPort& port) const {
  if (is_untouched(port)) {
    for (const TensorId& id : port.parts) {
      a_.use(id);
      b_.use(id);
    }
    return {.size = 1, .entries = port.samples};
  }
  Finding all;
  const int64_t width = port.stream ? a_.streams().all[*port.stream].width : 1;
  // Slices of one size: what is usual in a column is no less sure in the last of them.
  const int64_t most = port.sliced ? rows_at_once(width) : port.samples, slices = (port.samples + most - 1) / most;
  const int64_t step = (port.samples + slices - 1) / std::max<int64_t>(slices, 1);
  for (int64_t begin = 0; begin < port.samples; begin += step) {
    merge(all, check_rows(port, begin, std::min(step, port.samples - begin)), begin);
  }
  return all;
}

bool ProofBases::mostly_holds(const Finding& finding, int64_t rows) {
  return finding.holds() || std::ssize(finding.wrong_rows) * 2 < rows;
}

void ProofBases::find_identities() {
  std::vector<int64_t> obey(maps_.size(), 0), differ(maps_.size(), 0);
  for (size_t i = 0; i < ports_.size(); ++i) {
    const Finding& finding = findings_[i].emplace(check(ports_[i]));
    if (ports_[i].stream && finding.size > 0) {
      const bool obeys = ports_[i].rows == RowsOf::tensor ? finding.holds() : mostly_holds(finding, ports_[i].samples);
      ++(obeys ? obey : differ)[*ports_[i].stream];
    }
  }
  for (size_t s = 0; s < maps_.size(); ++s) {
    if (const auto turning = together_.find(s); turning != together_.end()) {
      int64_t stayed = 0, moved = 0;
      for (size_t other : turning->second) {
        stayed += obey[other];
        moved += differ[other];
      }
      known_[s] = stayed >= moved;
      continue;
    }
    if (groups_[s] == MapGroup::identity) {
      continue;
    }
    known_[s] = obey[s] + differ[s] > 0 ? obey[s] >= differ[s] : !is_pinned(s);
  }
  for (size_t n = 0; n < attentions_.size(); ++n) {
    fit_heads(n);
  }
}

bool ProofBases::is_pinned(size_t stream) const {
  for (size_t n = 0; n < attentions_.size(); ++n) {
    if ((streams_of(n).attention_input == stream && attentions_[n].pinned_input()) ||
        (streams_of(n).attention_output == stream && attentions_[n].pins_output())) {
      return true;
    }
  }
  return false;
}

// The candidate has no output matrix, and nothing else writes there: its readers took the matrix in, as a product.
bool ProofBases::is_absorbed(size_t stream) const {
  for (size_t n = 0; n < attentions_.size(); ++n) {
    const ModuleId output = in_attention(static_cast<int64_t>(n), Slot::output);
    const bool pinned = streams_of(n).attention_output == stream && attentions_[n].pins_output();
    if (pinned && !b_.stores(weight_of(output))) {
      return std::none_of(ports_.begin(), ports_.end(), [&](const ProofPort& port) {
        return port.stream == stream && port.role == Role::writer && port.parts[0].module != output;
      });
    }
  }
  return false;
}

bool ProofBases::is_untouched(const ProofPort& port) const {
  return !is_fitted(port) && !is_made(port) && are_same(port.parts);
}

How ProofBases::how(const ProofPort& port) const {
  if (is_untouched(port)) {
    return How::same_numbers;
  }
  if (is_fitted(port) || (port.how != How::basis && port.how != How::same_up_to_rounding)) {
    return port.how;
  }
  if (is_made(port)) {
    return How::written_out;
  }
  return b_.is_scaled(port.parts[0])      ? How::scaled
         : b_.is_reordered(port.parts[0]) ? How::reordered
                                          : How::same_up_to_rounding;
}

bool ProofBases::is_untouched(size_t n) const {
  const BlockStreams& at = streams_of(n);
  const Attention &t = a_.architecture().blocks[n].attention, &u = b_.architecture().blocks[n].attention;
  return maps_[at.attention_input].is_identity() && maps_[at.attention_output].is_identity() &&
         !is_centred(at.attention_output) && scale_of(t) == scale_of(u) && are_same(attentions_[n].parts());
}

void ProofBases::fit_heads(size_t n) {
  const BlockStreams& at = streams_of(n);
  head_findings_[n].reset();
  if (known_[at.attention_input] && !is_untouched(n)) {
    const bool both = known_[at.attention_output];
    heads_[n] = attentions_[n].fit(maps_[at.attention_input], both ? &maps_[at.attention_output] : nullptr);
  }
}

double ProofBases::roundoff_of(const ProofPort& port) const {
  const TensorId& id = port.parts[0];
  return unit_roundoff(b_.stores(id) ? b_.dtype_of(id) : Dtype::f64);
}

int64_t ProofBases::samples_on(size_t s) const {
  int64_t count = 0;
  for (const ProofPort& port : ports_) {
    count += port.stream == s ? std::min(port.samples, enough_samples(port)) : 0;
  }
  for (size_t n = 0; n < attentions_.size(); ++n) {
    const Attention& t = a_.architecture().blocks[n].attention;
    count += streams_of(n).attention_input == s ? (t.heads + 2 * t.kv_heads) * t.head_width : 0;
    count += streams_of(n).attention_output == s ? t.heads * t.head_width : 0;
  }
  return count;
}

std::vector<size_t> ProofBases::turning_with(size_t s) const {
  const auto turning = together_.find(s);
  return turning == together_.end() ? std::vector{s} : turning->second;
}

std::vector<MapSamples> ProofBases::samples_for(const std::vector<size_t>& streams,
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

void ProofBases::fit_stream(size_t s) {
  const std::vector<size_t> streams = turning_with(s);
  if (streams.front() != s) {
    return;  // it was turned with the first of them
  }
  std::vector<TableSamples> tables;
  std::vector<MapSamples> samples = samples_for(streams, tables);
  PinnedMap map = fit_once(s, samples);
  constexpr int most_trials = 12;
  for (int i = 0; i < most_trials && weigh_down_strange_rows(map.map, tables, samples); ++i) {
    map = fit_once(s, samples);
  }
  for (size_t each : streams) {
    set_map(each, map, samples);
  }
}

void ProofBases::add_samples(size_t s, int64_t step, std::vector<MapSamples>& samples,
                             std::vector<TableSamples>& tables) const {
  for (const ProofPort& port : ports_) {
    if (port.stream == s && (!port.samples_on || known_[*port.samples_on])) {
      if (port.rows != RowsOf::tensor) {
        tables.push_back({samples.size(), roundoff_of(port)});
      }
      samples.push_back(every(step, samples_of(port)));
    }
  }
  for (size_t n = 0; n < attentions_.size(); ++n) {
    add_head_samples(n, s, step, samples);
    if (streams_of(n).attention_input == s && attentions_[n].passes_through()) {
      add_samples_behind(n, samples);
    }
  }
}

void ProofBases::set_map(size_t s, const PinnedMap& found, const std::vector<MapSamples>& samples) {
  const at::Tensor& map = found.map;
  known_[s] = true;
  for (size_t i = 0; i < ports_.size(); ++i) {
    if (ports_[i].stream == s || ports_[i].samples_on == s) {
      findings_[i].reset();  // what was found of it was found under another map
    }
  }
  for (size_t n = 0; n < attentions_.size(); ++n) {
    if (streams_of(n).attention_input == s || streams_of(n).attention_output == s) {
      head_findings_[n].reset();
    }
  }
  // What is the identity but for a little is the identity: nobody makes such a basis, and it would explain entries that
  // are a little off.
  constexpr double no_basis = 1e-2;
  if (!is_pinned(s) && (map - at::eye(map.size(0), options_)).abs().max().item<double>() < no_basis) {
    maps_[s] = {};
    return;
  }
  maps_[s] = stream_map(map, usual_sizes(samples, map), groups_[s]);
  maps_[s].absorbed = is_absorbed(s);
  if (maps_[s].absorbed) {
    maps_[s].back = at::Tensor();
    if (found.gauges.defined()) {
      const auto [back, info] = at::linalg_inv_ex(found.gauges);
      maps_[s].back = info.item<int64_t>() == 0 ? back : at::Tensor();
    }
  }
}

void ProofBases::add_head_samples(size_t n, size_t s, int64_t step, std::vector<MapSamples>& samples) const {
  const AttentionProof& attention = attentions_[n];
  const bool fitted = known_[streams_of(n).attention_input] && known_[s];
  if (streams_of(n).attention_input == s && (fitted || (attention.knows_scores() && attention.knows_values()))) {
    for (const MapSamples& sample : attention.input_samples(heads_[n])) {
      samples.push_back(every(step, sample));
    }
  }
  if (streams_of(n).attention_output == s && (known_[streams_of(n).attention_input] || attention.knows_values())) {
    for (const MapSamples& sample : attention.output_samples(heads_[n])) {
      samples.push_back(every(step, sample));
    }
  }
}

void ProofBases::add_samples_behind(size_t n, std::vector<MapSamples>& samples) const {
  for (const ProofPort& port : ports_) {
    if (port.stream == streams_of(n).attention_output && port.role == Role::reader) {
      const MapSamples behind = samples_of(port);
      samples.push_back({Role::reader, attentions_[n].through_values(behind.reference), behind.candidate});
    }
  }
}

// The gauge of a block's values, where what they read says it without rounding; undefined where it does not.
at::Tensor ProofBases::known_values(size_t n) const {
  if (!known_[streams_of(n).attention_input]) {
    return {};
  }
  if (heads_[n].values.defined()) {
    return attentions_[n].determines(Slot::value) ? heads_[n].values : at::Tensor();
  }
  const Attention& t = a_.architecture().blocks[n].attention;
  return at::eye(t.head_width, options_).expand({t.kv_heads, t.head_width, t.head_width});
}

PinnedMap ProofBases::fit_once(size_t s, const std::vector<MapSamples>& samples) const {
  for (size_t n = 0; n < attentions_.size(); ++n) {
    const std::optional<Slot> pinned = attentions_[n].pinned_input();
    if (streams_of(n).attention_input == s && pinned) {
      return {attentions_[n].fit_pinned_input(*pinned, samples), {}};
    }
    if (streams_of(n).attention_output == s && attentions_[n].pins_output()) {
      return attentions_[n].fit_pinned_output(samples, known_values(n));
    }
  }
  const int64_t width = a_.streams().all[s].width;
  const at::Tensor guess = maps_[s].is_identity() ? at::eye(width, options_) : maps_[s].map;
  return {together_.contains(s) ? fit_rotation(samples, guess) : fit_map(samples, guess), {}};
}

int64_t ProofBases::enough_samples(const ProofPort& port) const {
  return 4 * a_.streams().all[*port.stream].width + 64;
}

// Enough rows to know a map by, from all over the tensor.
MapSamples ProofBases::samples_of(const ProofPort& port) const {
  const int64_t enough = port.sliced ? enough_samples(port) : port.samples;
  std::vector<at::Tensor> a, roundings, b;
  for (const RowRange& rows : rows_from_all_over(port.samples, enough)) {
    const Effective some = loaded(port, a_, rows.begin, rows.count);
    a.push_back(some.value);
    roundings.push_back(some.rounding);
    b.push_back(loaded(port, b_, rows.begin, rows.count).value);
  }
  return {port.role, through_samples(port, {at::cat(a), at::cat(roundings)}).value, at::cat(b)};
}

// Rows far from the map count less in the next fit, in proportion: least squares become least distances, which a
// minority of strange rows cannot move. Once most rows obey to rounding, those that do not are out.
bool ProofBases::weigh_down_strange_rows(const at::Tensor& map, const std::vector<TableSamples>& tables,
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

const std::vector<AttentionProof::Named>& ProofBases::check_heads(size_t n) {
  const BlockStreams& at = streams_of(n);
  if (!head_findings_[n]) {
    head_findings_[n] = attentions_[n].check(maps_[at.attention_input], maps_[at.attention_output], heads_[n]);
  }
  return *head_findings_[n];
}

}  // namespace pare
