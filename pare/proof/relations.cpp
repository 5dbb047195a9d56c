#include "pare/proof/relations.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/proof/allowed_maps.h"

namespace pare {

// Gains that are stored alike mean the same only with the same offset.
static bool same_offsets(const std::map<ModuleId, Norm>& a, const std::map<ModuleId, Norm>& b) {
  return std::ranges::equal(
      a, b, [](const auto& x, const auto& y) { return x.first == y.first && x.second.offset == y.second.offset; });
}

Relations::Relations(const ModelView& reference, const ModelView& candidate, const std::set<TensorId>& same)
    : a_(reference),
      b_(candidate),
      wide_(candidate.in_float64()),
      same_(same),
      same_offsets_(same_offsets(reference.norms(), candidate.norms())),
      groups_(groups_of_streams(reference, candidate)),
      ports_(ports_of(reference, candidate)) {
  const size_t blocks = reference.architecture().blocks.size();
  for (size_t n = 0; n < blocks; ++n) {
    heads_.emplace_back(reference, candidate, wide_, static_cast<int64_t>(n));
  }
  state_.maps.resize(groups_.size());
  state_.gauges.resize(blocks);
  state_.of_ports.resize(ports_.size());
  state_.of_heads.resize(blocks);
}

// ---- the witness

// Whether it is absorbed, how well it is conditioned and how far it is from its group is told by the map itself.
void Relations::set_basis(size_t s, const StreamBasis& basis) {
  for (size_t i = 0; i < ports_.size(); ++i) {
    if (ports_[i].stream == s || ports_[i].samples_on == s) {
      state_.of_ports[i].reset();
    }
  }
  for (size_t n = 0; n < heads_.size(); ++n) {
    if (streams_of(n).attention_input == s || streams_of(n).attention_output == s) {
      state_.of_heads[n].reset();
    }
  }
  StreamMap& found = state_.maps[s];
  found = basis.map.defined() ? stream_map(basis.map, basis.units, groups_[s]) : StreamMap();
  if (basis.map.defined() && is_absorbed(s)) {
    found.absorbed = true;
    found.back = at::Tensor();
    if (basis.gauges.defined()) {
      const auto [back, info] = at::linalg_inv_ex(basis.gauges);
      found.back = info.item<int64_t>() == 0 ? back : at::Tensor();
    }
  }
}

void Relations::set_gauges(size_t n, const Gauges& gauges) {
  state_.gauges[n] = gauges;
  state_.of_heads[n].reset();
}

// ---- what is found under it

const Finding& Relations::finding(size_t port) {
  std::optional<Finding>& found = state_.of_ports[port];
  return found ? *found : found.emplace(check(ports_[port]));
}

const std::vector<NamedFinding>& Relations::findings_of_heads(size_t n) {
  std::optional<std::vector<NamedFinding>>& found = state_.of_heads[n];
  const BlockStreams& at = streams_of(n);
  return found ? *found : found.emplace(heads_[n].check(map(at.attention_input), map(at.attention_output), gauges(n)));
}

int64_t Relations::count_wrong() {
  int64_t wrong = 0;
  for (size_t i = 0; i < ports_.size(); ++i) {
    wrong += finding(i).wrong;
  }
  for (size_t n = 0; n < heads_.size(); ++n) {
    for (const NamedFinding& named : findings_of_heads(n)) {
      wrong += named.finding.wrong;
    }
  }
  return wrong;
}

// ---- the relations

bool Relations::are_same(const std::vector<TensorId>& parts) const {
  return same_offsets_ && std::ranges::all_of(parts, [&](const TensorId& id) {
           return same_.contains(id) || (!a_.stores(id) && !b_.stores(id));
         });
}

// What writes a stream whose mean nobody sees is seen without it.
Rounded Relations::rows_of(const ProofPort& port, const ModelView& side, int64_t begin, int64_t count) {
  const Rounded rows = port.load(side, begin, count);
  return port.stream && port.role == Role::writer ? side.written(rows, *port.stream) : rows;
}

bool Relations::is_centred(const std::optional<size_t>& stream) const {
  return stream && (a_.centres(*stream) || b_.centres(*stream));
}

// The factors of its neurons are known no better than the numbers that they were found by.
bool Relations::is_scaled(const ProofPort& port) const {
  return std::ranges::any_of(port.parts, [&](const TensorId& id) { return b_.is_scaled(id); });
}

bool Relations::is_made(const ProofPort& port) const {
  const bool made =
      std::ranges::any_of(port.parts, [&](const TensorId& id) { return a_.is_made(id) || b_.is_made(id); });
  return made || (port.role == Role::writer && is_centred(port.stream));
}

bool Relations::is_untouched(const ProofPort& port) const {
  return !is_fitted(port) && !is_made(port) && are_same(port.parts);
}

bool Relations::is_untouched(size_t n) const {
  const BlockStreams& at = streams_of(n);
  const Attention &t = a_.architecture().blocks[n].attention, &u = b_.architecture().blocks[n].attention;
  return state_.maps[at.attention_input].is_identity() && state_.maps[at.attention_output].is_identity() &&
         !is_centred(at.attention_output) && scale_of(t) == scale_of(u) && are_same(heads_[n].parts());
}

How Relations::how(const ProofPort& port) const {
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

// The candidate has no output matrix, and nothing else writes there: its readers took the matrix in, as a product.
bool Relations::is_absorbed(size_t stream) const {
  for (size_t n = 0; n < heads_.size(); ++n) {
    const ModuleId output = in_attention(static_cast<int64_t>(n), Slot::output);
    const bool pinned = streams_of(n).attention_output == stream && heads_[n].pins(Slot::output);
    if (pinned && !b_.stores(weight_of(output))) {
      return std::ranges::none_of(ports_, [&](const ProofPort& port) {
        return port.stream == stream && port.role == Role::writer && port.parts[0].module != output;
      });
    }
  }
  return false;
}

at::Tensor Relations::carried(const ProofPort& port, const Rounded& rows) const {
  const StreamMap none;
  const StreamMap& map = port.stream ? state_.maps[*port.stream] : none;
  if (port.role == Role::reader) {
    return map.is_identity() ? rows.rounding : at_least_usual(rows.rounding, map.units);
  }
  return written_through(with_usual_samples(port, rows), map).rounding;
}

at::Tensor Relations::unit(const ProofPort& port, int64_t begin, int64_t count, const at::Tensor& rounding) const {
  const auto [coarsest, mixed] = b_.unit(port.parts);
  if (!mixed) {
    return at::full({}, coarsest, rounding.options());
  }
  const at::Tensor units = mixed_units(rounding, carried(port, rows_of(port, wide_, begin, count)), coarsest);
  if (!is_identity(port.samples_on)) {  // each entry of the reference sees those of its column
    return units.amax();
  }
  return port.role == Role::reader && !is_identity(port.stream) ? units.amax(-1, true).expand_as(units) : units;
}

// The reference's rows as the candidate should have them, or the candidate's as the reference has them.
Finding Relations::check_rows(const ProofPort& port, int64_t begin, int64_t count) const {
  Rounded a = rows_of(port, a_, begin, count);
  const Rounded b = rows_of(port, b_, begin, count);
  const StreamMap none;
  const StreamMap& map = port.stream ? state_.maps[*port.stream] : none;
  const Rigour rigour = is_fitted(port) || is_scaled(port) ? Rigour::fitted
                        : is_made(port)                    ? Rigour::folded
                                                           : port.rigour;
  const at::Tensor own = carried(port, b), units = unit(port, begin, count, own);
  if (port.role == Role::reader) {
    const Rounded expected = read_through(a, map);
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
  allowed.off_group = map.off_group + (port.samples_on ? state_.maps[*port.samples_on].off_group : 0);
  allowed.expected = a.value;
  return judged(residual, allowed, through_samples_back(port, residual), whole);
}

// A matrix between two streams: the one that it reads is the candidate's from now on.
Rounded Relations::through_samples(const ProofPort& port, const Rounded& rows) const {
  if (is_identity(port.samples_on)) {
    return rows;
  }
  const at::Tensor map = state_.maps[*port.samples_on].map.t();
  const int64_t width = map.size(0), out = rows.value.size(1);
  const auto turned = [&](const at::Tensor& matrix, const at::Tensor& x) {
    return at::matmul(matrix, x.reshape({-1, width, out})).reshape({-1, out});
  };
  return {turned(map, rows.value), turned(map.abs(), rows.rounding)};
}

at::Tensor Relations::through_samples_back(const ProofPort& port, const at::Tensor& rows) const {
  if (is_identity(port.samples_on)) {
    return rows;
  }
  const int64_t width = state_.maps[*port.samples_on].map.size(0), out = rows.size(1);
  const at::Tensor along = rows.reshape({-1, width, out}).transpose(1, 2);
  return pulled_back(along, state_.maps[*port.samples_on]).transpose(1, 2).reshape({-1, out});
}

// The same for the rounding of what the candidate has there.
Rounded Relations::with_usual_samples(const ProofPort& port, const Rounded& rows) const {
  if (is_identity(port.samples_on)) {
    return rows;
  }
  const StreamMap& read = state_.maps[*port.samples_on];
  const int64_t width = read.map.size(0), out = rows.value.size(1);
  const auto along = [&](const at::Tensor& x) { return x.reshape({-1, width, out}).transpose(1, 2); };
  const at::Tensor rounding =
      at_least_usual(along(rows.rounding), read.units) + solving_error(along(rows.value), read, Role::reader);
  return {rows.value, rounding.transpose(1, 2).reshape({-1, out})};
}

Finding Relations::check(const ProofPort& port) const {
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

bool Relations::mostly_holds(const Finding& finding, int64_t rows) {
  return finding.holds() || std::ssize(finding.wrong_rows) * 2 < rows;
}

}  // namespace pare
