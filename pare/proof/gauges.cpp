#include "pare/proof/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pare/proof/heads.h"
#include "pare/proof/settings.h"

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

// ---- the gauges

HeadMaps AttentionProof::fit(const StreamMap& in, const StreamMap* out) const {
  const Attention& t = spec(a_);
  const int64_t k = t.head_width, groups = t.kv_heads;
  const Tokens tokens = some_tokens();
  const auto read = [&](Slot slot) { return projected(projection(a_, slot, tokens), in).value; };
  HeadMaps heads;
  // Where one of the two is what it was there is no gauge; what the other is off by is not for it to explain.
  const auto stayed = [](const Finding& finding) { return finding.holds() && finding.size > 0; };
  if (scores_ != MapGroup::identity && !(!determines(Slot::key) && stayed(check_query(in, {}, tokens))) &&
      !(!determines(Slot::query) && stayed(check_key(in, {}, tokens)))) {
    const at::Tensor qa = read(Slot::query), qb = projection(b_, Slot::query, tokens).value;
    const at::Tensor ka = read(Slot::key), kb = projection(b_, Slot::key, tokens).value;
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
      return std::max(check_query(in, gauge, tokens).residual, check_key(in, gauge, tokens).residual);
    };
    heads.scores = gauge_or_none(best_of(at::stack(gauges), alone, off), in.is_identity());
  }
  if (values_ != MapGroup::identity &&
      (!check_value(in, {}, tokens).holds() || (out && !check_output(in, *out, {}).holds()))) {
    const at::Tensor va = read(Slot::value), vb = projection(b_, Slot::value, tokens).value;
    const int64_t columns = va.size(1) - (determines(Slot::value) ? 1 : 0);
    const at::Tensor oa = output(a_).value.t();
    const at::Tensor ob = out ? written_through(transposed(output(b_)), *out).value : at::Tensor();
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
      return std::max(check_value(in, gauge, tokens).residual, check_output(in, *out, gauge).residual);
    };
    const at::Tensor best = out ? best_of(at::stack(gauges), alone, off) : at::stack(gauges);
    heads.values = gauge_or_none(best, in.is_identity() && (!out || out->is_identity()));
  }
  return heads;
}

std::vector<MapSamples> AttentionProof::input_samples(const HeadMaps& heads) const {
  std::vector<MapSamples> samples;
  for (const Slot slot : {Slot::query, Slot::key, Slot::value}) {
    if (!has_matrix(slot)) {
      continue;
    }
    at::Tensor a = projection(a_, slot).value, b = projection(b_, slot).value;
    const at::Tensor& gauge = slot == Slot::value ? heads.values : heads.scores;
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

std::vector<MapSamples> AttentionProof::output_samples(const HeadMaps& heads) const {
  if (spec(a_).values != Form::factored) {
    return {};
  }
  at::Tensor a = output(a_).value.t();
  if (heads.values.defined()) {
    a = on_heads(heads.values.repeat_interleave(spec(a_).heads / spec(a_).kv_heads, 0).transpose(1, 2), a);
  }
  return {{Role::writer, a, output(b_).value.t()}};
}

// ---- bases that a missing matrix pins

bool AttentionProof::pins(Slot slot) const {
  const TensorId id = weight_of(in_attention(block_, slot));
  return has_matrix(slot) && a_.stores(id) != b_.stores(id);
}

bool AttentionProof::determines(Slot slot) const {
  return pins(slot) || (has_matrix(slot) && !b_.stores(weight_of(in_attention(block_, slot))));
}

std::optional<Slot> AttentionProof::pinned_input() const {
  for (const Slot slot : {Slot::query, Slot::key, Slot::value}) {
    if (pins(slot)) {
      return slot;
    }
  }
  return std::nullopt;
}

// A projection's bias has the gauge of its heads too: b_A = D b_B.
MapSamples AttentionProof::bias_sample(Slot slot, const at::Tensor& gauges, bool of_reference) const {
  const auto bias = [&](const ProofSide& side) {
    const at::Tensor both = projection(side, slot).value;
    return both.narrow(1, both.size(1) - 1, 1);
  };
  // The identity took the scale along, and is to be the identity again.
  const double scale = slot == Slot::query ? query_scale(of_reference ? b_ : a_) : 1;
  const at::Tensor a = bias(a_) / (of_reference ? 1 : scale), b = bias(b_) / (of_reference ? scale : 1);
  return {Role::writer, (of_reference ? on_heads(gauges, a) : a).t(), (of_reference ? b : on_heads(gauges, b)).t()};
}

// M Ψ = D where only the reference has a matrix, Ψ = D M where only the candidate has: D is fitted head by head.
at::Tensor AttentionProof::fit_pinned_input(Slot slot, const std::vector<MapSamples>& samples) const {
  const Attention& t = spec(a_);
  const int64_t k = t.head_width, groups = t.kv_heads, width = heads_of(slot) * k;
  const bool of_reference = a_.stores(weight_of(in_attention(block_, slot)));
  const MapGroup group = group_of(slot);
  const at::Tensor stored = projection(of_reference ? a_ : b_, slot).value.narrow(1, 0, width);
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
  const at::Tensor all = block_diagonal(fit_groups(group, t.rope, seen, guesses), heads_of(slot));
  return of_reference ? at::linalg_solve(matrix, all) : at::matmul(all, matrix);
}

bool AttentionProof::passes_through() const {
  return values_ == MapGroup::general && pins(Slot::output) && determines(Slot::value) &&
         !b_.stores(weight_of(in_attention(block_, Slot::value))) &&
         !b_.stores(weight_of(in_attention(block_, Slot::output)));
}

at::Tensor AttentionProof::through_values(const at::Tensor& readers) const {
  const at::Tensor value = projection(a_, Slot::value).value;
  return at::matmul(at::matmul(readers, output(a_).value), value.narrow(1, 0, value.size(1) - 1));
}

// Ψ = W_O E, or Ψ W_O = E.
PinnedMap AttentionProof::fit_pinned_output(const std::vector<MapSamples>& samples, const at::Tensor& gauge) const {
  const Attention& t = spec(a_);
  const int64_t k = t.head_width, groups = t.kv_heads;
  const bool of_reference = a_.stores(weight_of(in_attention(block_, Slot::output)));
  const at::Tensor matrix = output(of_reference ? a_ : b_).value;
  const auto between = [&](const at::Tensor& all) {
    return PinnedMap{of_reference ? at::matmul(matrix, all) : at::linalg_solve(matrix, all, /*left=*/false), all};
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

}  // namespace pare
