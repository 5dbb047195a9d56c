#include "pare/search/gauge_search.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pare/proof/head_algebra.h"

namespace pare {

namespace {

at::Tensor eye_like(int64_t size, const at::Tensor& like) {
  return at::eye(size, like.options());
}

// Between streams that stayed, what is the identity but for rounding is the identity: nobody makes such a gauge, and it
// would explain an entry that is a little off.
at::Tensor gauge_or_none(const at::Tensor& gauges, bool streams_stayed) {
  constexpr double no_gauge = 1e-2;
  const double largest = (gauges - eye_like(gauges.size(1), gauges)).abs().max().item<double>();
  return streams_stayed && largest < no_gauge ? at::Tensor() : gauges;
}

// A gauge for every group that makes the heads of one matrix [heads * k, n] well conditioned.
at::Tensor normalising_gauges(const at::Tensor& rows, MapGroup group, const std::optional<Rope>& rope, int64_t groups,
                              int64_t k) {
  std::vector<at::Tensor> found;
  for (int64_t g = 0; g < groups; ++g) {
    const at::Tensor samples = samples_of_group(rows, groups, k, g);
    at::Tensor gauge = eye_like(k, rows);
    if (group == MapGroup::turning) {
      const at::Tensor sizes = samples.square().sum(0);
      for (const auto& [x, y] : turning_planes(*rope)) {
        const double length = std::sqrt((sizes[x] + sizes[y]).item<double>() / 2);
        gauge[x][x] = gauge[y][y] = length > 0 ? 1 / length : 1;
      }
    } else if (group == MapGroup::general) {
      const at::Tensor upper = std::get<1>(at::linalg_qr(samples, "r"));
      const at::Tensor diagonal = upper.diagonal().abs();
      if (upper.size(0) == k && diagonal.min().item<double>() > 1e-14 * diagonal.max().item<double>()) {
        gauge = at::linalg_solve_triangular(upper.t(), eye_like(k, rows), /*upper=*/false);
      }
    }
    found.push_back(gauge);
  }
  return at::stack(found);
}

// A map for each group of columns, from `guesses` [groups, k, k] on.
at::Tensor fit_groups(MapGroup group, const std::optional<Rope>& rope, const std::vector<MapSamples>& samples,
                      const at::Tensor& guesses) {
  const int64_t groups = guesses.size(0), k = guesses.size(1);
  std::vector<at::Tensor> found;
  for (int64_t g = 0; g < groups; ++g) {
    const auto of = [&](const at::Tensor& rows) { return samples_of_group(rows.t(), groups, k, g); };
    std::vector<MapSamples> own;
    for (const MapSamples& sample : samples) {
      own.push_back({sample.role, of(sample.reference), of(sample.candidate)});
    }
    found.push_back(fit_in_group(group, rope, own, guesses[g]));
  }
  return at::stack(found);
}

// The same by one of the two alone, solved and not squared: where heads are badly scaled, what one of them says is lost
// beside the other.
at::Tensor solved_alone(const MapSamples& sample) {
  const bool writes = sample.role == Role::writer;
  const at::Tensor& from = writes ? sample.candidate : sample.reference;
  const at::Tensor& to = writes ? sample.reference : sample.candidate;
  const at::Tensor sizes = from.norm(2, {0}), units = at::where(sizes > 0, sizes, at::ones_like(sizes));
  const at::Tensor found =
      std::get<0>(at::linalg_lstsq((from / units).cpu(), to.cpu())).to(from.device()) / units.unsqueeze(1);
  return writes ? found.t() : found;
}

// The one that leaves least, which is the first where that is little enough.
template <class Off>
at::Tensor best_of(const at::Tensor& first, const std::vector<at::Tensor> (&others)[2], const Off& off) {
  at::Tensor best = first;
  double least = off(first);
  for (const std::vector<at::Tensor>& other : others) {
    if (other.empty() || least <= most_roundings) {
      continue;
    }
    const at::Tensor gauge = at::stack(other);
    if (const double left = gauge.isfinite().all().item<bool>() ? off(gauge) : least; left < least) {
      best = gauge;
      least = left;
    }
  }
  return best;
}

}  // namespace

GaugeSearch::GaugeSearch(const HeadRelations& heads, const ModelView& reference, const ModelView& candidate)
    : heads_(heads),
      a_(reference),
      b_(candidate),
      scores_(heads.group_of(Slot::query)),
      values_(heads.group_of(Slot::value)) {}

HeadRelations::Tokens GaugeSearch::some_tokens() const {
  const int64_t enough = 4 * heads_.spec(a_).head_width + 64;
  return heads_.is_tabled() ? rows_from_all_over(a_.architecture().vocab, enough) : HeadRelations::Tokens();
}

// ---- the gauges

Gauges GaugeSearch::fit(const StreamMap& in, const StreamMap* out) const {
  const Attention& t = heads_.spec(a_);
  const int64_t k = t.head_width, groups = t.kv_heads;
  const HeadRelations::Tokens tokens = some_tokens();
  const auto read = [&](Slot slot) { return projected(heads_.projection(a_, slot, tokens), in).value; };
  Gauges found;
  // Where one of the two is what it was there is no gauge; what the other is off by is not for it to explain.
  const auto stayed = [](const Finding& finding) { return finding.holds() && finding.size > 0; };
  if (scores_ != MapGroup::identity &&
      !(!determines(Slot::key) && stayed(heads_.check_read(Slot::query, in, {}, tokens))) &&
      !(!determines(Slot::query) && stayed(heads_.check_read(Slot::key, in, {}, tokens)))) {
    const at::Tensor qa = read(Slot::query), qb = heads_.projection(b_, Slot::query, tokens).value;
    const at::Tensor ka = read(Slot::key), kb = heads_.projection(b_, Slot::key, tokens).value;
    const auto exact = [&](Slot slot, const at::Tensor& both) {  // a missing matrix is not rounded, its bias is
      return determines(slot) ? both.narrow(1, 0, both.size(1) - 1) : both;
    };
    std::vector<at::Tensor> gauges, alone[2];
    for (int64_t g = 0; g < groups; ++g) {
      const auto of = [&](const at::Tensor& rows) { return samples_of_group(rows, groups, k, g); };
      std::vector<MapSamples> samples;
      if (!determines(Slot::key)) {
        samples.push_back({Role::writer, of(exact(Slot::query, qa)), of(exact(Slot::query, qb))});
      }
      if (!determines(Slot::query)) {
        samples.push_back({Role::reader, of(exact(Slot::key, ka)), of(exact(Slot::key, kb))});
      }
      gauges.push_back(fit_in_group(scores_, t.rope, samples, eye_like(k, qa)));
      for (size_t i = 0; i < samples.size() && scores_ == MapGroup::general; ++i) {
        alone[i].push_back(solved_alone(samples[i]));
      }
    }
    const auto off = [&](const at::Tensor& gauge) {
      return std::max(heads_.check_read(Slot::query, in, gauge, tokens).residual,
                      heads_.check_read(Slot::key, in, gauge, tokens).residual);
    };
    found.scores = gauge_or_none(best_of(at::stack(gauges), alone, off), in.is_identity());
  }
  if (values_ != MapGroup::identity && (!heads_.check_read(Slot::value, in, {}, tokens).holds() ||
                                        (out && !heads_.check_output(in, *out, {}).holds()))) {
    const at::Tensor va = read(Slot::value), vb = heads_.projection(b_, Slot::value, tokens).value;
    const int64_t columns = va.size(1) - (determines(Slot::value) ? 1 : 0);
    const at::Tensor oa = heads_.output(a_).value.t();
    const at::Tensor ob = out ? written_through(transposed(heads_.output(b_)), *out).value : at::Tensor();
    std::vector<at::Tensor> gauges, alone[2];
    for (int64_t g = 0; g < groups; ++g) {
      const auto of = [&](const at::Tensor& rows) { return samples_of_group(rows, groups, k, g); };
      std::vector<MapSamples> samples;
      if (!out || !determines(Slot::output) || determines(Slot::value)) {
        samples.push_back({Role::writer, of(va.narrow(1, 0, columns)), of(vb.narrow(1, 0, columns))});
      }
      if (out && !determines(Slot::value)) {
        samples.push_back({Role::reader, of(oa), of(ob)});
      }
      gauges.push_back(fit_in_group(values_, std::nullopt, samples, eye_like(k, va)));
      for (size_t i = 0; i < samples.size() && out; ++i) {
        alone[i].push_back(solved_alone(samples[i]));
      }
    }
    const auto off = [&](const at::Tensor& gauge) {
      return std::max(heads_.check_read(Slot::value, in, gauge, tokens).residual,
                      heads_.check_output(in, *out, gauge).residual);
    };
    const at::Tensor best = out ? best_of(at::stack(gauges), alone, off) : at::stack(gauges);
    found.values = gauge_or_none(best, in.is_identity() && (!out || out->is_identity()));
  }
  return found;
}

std::vector<MapSamples> GaugeSearch::input_samples(const Gauges& gauges) const {
  std::vector<MapSamples> samples;
  for (const Slot slot : {Slot::query, Slot::key, Slot::value}) {
    if (!heads_.has_matrix(slot)) {
      continue;
    }
    at::Tensor a = heads_.projection(a_, slot).value, b = heads_.projection(b_, slot).value;
    const at::Tensor& gauge = slot == Slot::value ? gauges.values : gauges.scores;
    if (gauge.defined() && slot == Slot::key) {
      a = on_heads(gauge.transpose(1, 2), a);
    } else if (gauge.defined()) {
      b = on_heads(gauge, b);
    }
    const int64_t width = a.size(1) - 1;
    samples.push_back({Role::reader, a.narrow(1, 0, width), b.narrow(1, 0, width)});
  }
  return samples;
}

std::vector<MapSamples> GaugeSearch::output_samples(const Gauges& gauges) const {
  if (heads_.spec(a_).values != Form::factored) {
    return {};
  }
  at::Tensor a = heads_.output(a_).value.t();
  if (gauges.values.defined()) {
    a = on_heads(gauges.values.repeat_interleave(heads_.spec(a_).heads / heads_.spec(a_).kv_heads, 0).transpose(1, 2),
                 a);
  }
  return {{Role::writer, a, heads_.output(b_).value.t()}};
}

// ---- bases that a missing matrix pins

bool GaugeSearch::determines(Slot slot) const {
  return heads_.pins(slot) || (heads_.has_matrix(slot) && !heads_.stores(b_, slot));
}

std::optional<Slot> GaugeSearch::pinned_input() const {
  for (const Slot slot : {Slot::query, Slot::key, Slot::value}) {
    if (heads_.pins(slot)) {
      return slot;
    }
  }
  return std::nullopt;
}

// A projection's bias has the gauge of its heads too: b_A = D b_B.
MapSamples GaugeSearch::bias_sample(Slot slot, const at::Tensor& gauges, bool of_reference) const {
  const auto bias = [&](const ModelView& side) {
    const at::Tensor both = heads_.projection(side, slot).value;
    return both.narrow(1, both.size(1) - 1, 1);
  };
  // The identity took the scale along, and is to be the identity again.
  const double scale = slot == Slot::query ? heads_.query_scale(of_reference ? b_ : a_) : 1;
  const at::Tensor a = bias(a_) / (of_reference ? 1 : scale), b = bias(b_) / (of_reference ? scale : 1);
  return {Role::writer, (of_reference ? on_heads(gauges, a) : a).t(), (of_reference ? b : on_heads(gauges, b)).t()};
}

// M Ψ = D where only the reference has a matrix, Ψ = D M where only the candidate has: D is fitted head by head.
at::Tensor GaugeSearch::fit_pinned_input(Slot slot, const std::vector<MapSamples>& samples) const {
  const Attention& t = heads_.spec(a_);
  const int64_t k = t.head_width, groups = t.kv_heads, width = heads_.heads_of(slot) * k;
  const bool of_reference = heads_.stores(a_, slot);
  const MapGroup group = heads_.group_of(slot);
  const at::Tensor stored = heads_.projection(of_reference ? a_ : b_, slot).value.narrow(1, 0, width);
  const at::Tensor start = normalising_gauges(stored, group, t.rope, groups, k);
  const at::Tensor matrix = on_heads(start, stored);
  std::vector<MapSamples> seen = {bias_sample(slot, start, of_reference)};
  for (const MapSamples& sample : samples) {
    MapSamples turned = sample;
    at::Tensor& side = of_reference ? turned.reference : turned.candidate;
    const bool product = sample.role == Role::writer;
    side = product ? at::matmul(side, matrix.t()) : at::linalg_solve(matrix.t(), side.t()).t();
    seen.push_back(turned);
  }
  const at::Tensor guesses = of_reference ? start : at::linalg_inv(start);
  const at::Tensor all = block_diagonal(fit_groups(group, t.rope, seen, guesses), heads_.heads_of(slot));
  return of_reference ? at::linalg_solve(matrix, all) : at::matmul(all, matrix);
}

bool GaugeSearch::passes_through() const {
  return values_ == MapGroup::general && heads_.pins(Slot::output) && determines(Slot::value) &&
         !heads_.stores(b_, Slot::value) && !heads_.stores(b_, Slot::output);
}

at::Tensor GaugeSearch::through_values(const at::Tensor& readers) const {
  const at::Tensor value = heads_.projection(a_, Slot::value).value;
  return at::matmul(at::matmul(readers, heads_.output(a_).value), value.narrow(1, 0, value.size(1) - 1));
}

// Ψ = W_O E, or Ψ W_O = E.
StreamBasis GaugeSearch::fit_pinned_output(const std::vector<MapSamples>& samples, const at::Tensor& gauge) const {
  const Attention& t = heads_.spec(a_);
  const int64_t k = t.head_width, groups = t.kv_heads;
  const bool of_reference = heads_.stores(a_, Slot::output);
  const at::Tensor matrix = heads_.output(of_reference ? a_ : b_).value;
  const auto between = [&](const at::Tensor& all) {
    return StreamBasis{.map = of_reference ? at::matmul(matrix, all) : at::linalg_solve(matrix, all, /*left=*/false),
                       .gauges = all};
  };
  if (gauge.defined()) {
    return between(block_diagonal(gauge, t.heads));
  }
  std::vector<MapSamples> seen;
  for (const MapSamples& sample : samples) {
    MapSamples turned = sample;
    at::Tensor& side = of_reference ? turned.reference : turned.candidate;
    if (sample.role == Role::reader) {
      side = at::matmul(side, matrix);
    } else {
      const auto [solved, info] = at::linalg_solve_ex(matrix, side.t());
      if (info.item<int64_t>() != 0) {  // a singular matrix was absorbed: only what reads it can tell
        continue;
      }
      side = solved.t();
    }
    seen.push_back(turned);
  }
  const at::Tensor guesses = eye_like(k, matrix).expand({groups, k, k});
  return between(block_diagonal(fit_groups(values_, std::nullopt, seen, guesses), t.heads));
}

// ---- for all of them together

void GaugeSearch::add_equations(size_t in, size_t out, MatrixSystem& system) const {
  const Attention& t = heads_.spec(a_);
  const int64_t k = t.head_width, groups = t.kv_heads;
  const auto gauges = [&](const at::Tensor& like) {
    const size_t first = system.guess.size();
    system.guess.insert(system.guess.end(), static_cast<size_t>(groups), at::eye(k, like.options()));
    return first;
  };
  std::optional<size_t> scores, values;
  for (const Slot slot : {Slot::query, Slot::key, Slot::value}) {
    if (heads_.is_tabled() && slot == Slot::value &&
        values_ != MapGroup::identity) {  // no stream stands before a table
      const at::Tensor a = heads_.projection(a_, slot, some_tokens()).value,
                       b = heads_.projection(b_, slot, some_tokens()).value;
      values = gauges(a);
      for (int64_t g = 0; g < groups; ++g) {
        const at::Tensor from = a.narrow(0, g * k, k), to = b.narrow(0, g * k, k);
        system.add({{{.unknown = *values + static_cast<size_t>(g), .right = to}}, from}, one_over(from));
      }
    }
    if (!heads_.has_matrix(slot)) {
      continue;
    }
    const at::Tensor a = heads_.projection(a_, slot).value, b = heads_.projection(b_, slot).value;
    const int64_t width = a.size(1) - 1;
    if (heads_.group_of(slot) == MapGroup::identity) {
      system.add({{{.unknown = in, .left = a.narrow(1, 0, width)}}, b.narrow(1, 0, width)}, one_over(b));
      continue;
    }
    // Keys have the other's inverse, which is itself where nothing but rotations are allowed.
    const bool turned = scores_ == MapGroup::rotation || scores_ == MapGroup::turning_rotation;
    const size_t first = slot == Slot::key && turned && scores ? *scores : gauges(a);
    (slot == Slot::value ? values : scores) = first;
    const int64_t heads = heads_.heads_of(slot);
    for (int64_t h = 0; h < heads; ++h) {
      const size_t gauge = first + static_cast<size_t>(h / (heads / groups));
      const at::Tensor from = a.narrow(0, h * k, k), to = b.narrow(0, h * k, k), size = one_over(from);
      system.add({{{.unknown = in, .left = from.narrow(1, 0, width)},
                   {.unknown = gauge, .right = to.narrow(1, 0, width), .sign = -1}}},
                 size);
      system.add({{{.unknown = gauge, .right = to.narrow(1, width, 1)}}, from.narrow(1, width, 1)}, size);
    }
  }
  if (t.values != Form::factored) {
    return;
  }
  const at::Tensor a = heads_.output(a_).value, b = heads_.output(b_).value;
  for (int64_t h = 0; h < t.heads; ++h) {
    const at::Tensor from = a.narrow(1, h * k, k), to = b.narrow(1, h * k, k), size = one_over(from.t()).t();
    const MatrixTerm written = {.unknown = out, .right = to * size};
    if (!values) {
      system.add({{written}, from * size}, {});
      continue;
    }
    const size_t gauge = *values + static_cast<size_t>(h / (t.heads / groups));
    const at::Tensor scaled = at::diag(size.squeeze(0));
    system.add({{written, {.unknown = gauge, .left = from, .right = scaled, .sign = -1}}}, {});
  }
}

}  // namespace pare
