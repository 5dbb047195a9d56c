#include "pare/verify/proof_attention.h"

#include <ATen/ATen.h>

#include <cmath>

#include "pare/support/error.h"
#include "pare/verify/proof_ports.h"
#include "pare/verify/proof_settings.h"

namespace pare {

namespace {

bool is_plain(const Projection& projection) {
  return is<Dense>(projection) || is<Identity>(projection);
}

const Projection& projection_in(const Attention& t, Slot slot) {
  switch (slot) {
    case Slot::query:
      return t.query;
    case Slot::key:
      return t.key;
    case Slot::value:
      return t.value;
    case Slot::output:
      return t.output;
    default:
      PARE_UNREACHABLE("a slot without a projection");
  }
}

Effective beside(const Effective& matrix, const Effective& column) {
  return {at::cat({matrix.value, column.value.unsqueeze(1)}, 1),
          at::cat({matrix.rounding, column.rounding.unsqueeze(1)}, 1)};
}

// [W | b] on the candidate's side of the stream: the bias is no stream's.
Effective projected(const Effective& both, const StreamMap& in) {
  const int64_t width = both.value.size(1) - 1;
  if (in.is_identity() || width == 0) {
    return both;
  }
  const Effective matrix = read_through({both.value.narrow(1, 0, width), both.rounding.narrow(1, 0, width)}, in);
  return beside(matrix, {both.value.select(1, width), both.rounding.select(1, width)});
}

// The same for what a residual of [W | b] is in the reference's coordinates.
at::Tensor projected_back(const at::Tensor& residual, const StreamMap& in) {
  const int64_t width = residual.size(1) - 1;
  if (in.is_identity() || width == 0) {
    return residual;
  }
  return at::cat({pulled_back(residual.narrow(1, 0, width), in), residual.narrow(1, width, 1)}, 1);
}

at::Tensor solving_error_of(const at::Tensor& both, const StreamMap& in) {
  const int64_t width = both.size(1) - 1;
  if (in.is_identity() || width == 0) {
    return at::zeros({}, both.options());
  }
  return at::cat({solving_error(both.narrow(1, 0, width), in, Role::reader), at::zeros_like(both.narrow(1, width, 1))},
                 1);
}

// One matrix on the rows of each head: [heads * k, n].
at::Tensor on_heads(const at::Tensor& matrices, const at::Tensor& rows) {
  const int64_t groups = matrices.size(0), k = matrices.size(1);
  return at::matmul(matrices.unsqueeze(1), rows.reshape({groups, -1, k, rows.size(1)})).reshape(rows.sizes());
}

// The rows of one group's heads, as samples of its k entries: [heads of the group * n, k].
at::Tensor samples_of_group(const at::Tensor& rows, int64_t groups, int64_t k, int64_t g) {
  return rows.reshape({groups, -1, k, rows.size(1)})[g].transpose(1, 2).reshape({-1, k});
}

at::Tensor eye_like(int64_t size, const at::Tensor& like) {
  return at::eye(size, like.options());
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

}  // namespace

AttentionProof::AttentionProof(const ProofSide& reference, const ProofSide& candidate, int64_t block)
    : a_(reference),
      b_(candidate),
      block_(block),
      input_(reference.streams().blocks[static_cast<size_t>(block)].attention_input),
      tabled_(is_tabled(reference.architecture(), block)) {
  const Attention &t = spec(a_), &u = spec(b_);
  const auto plain = [&](Slot slot) { return is_plain(projection_in(t, slot)) && is_plain(projection_in(u, slot)); };
  if (tabled_) {
    return;
  }
  const bool factored = t.scores == Form::factored, own_values = t.values == Form::factored;
  if (factored && plain(Slot::query) && plain(Slot::key) && !t.qk_norm && !is<FromKey>(t.value)) {
    scores_ = t.rope ? MapGroup::turning : MapGroup::general;
  }
  if (own_values && plain(Slot::value) && plain(Slot::output) && !is<FromValue>(t.key)) {
    values_ = MapGroup::general;
  }
}

const Attention& AttentionProof::spec(const ProofSide& side) const {
  return side.architecture().blocks[static_cast<size_t>(block_)].attention;
}

std::vector<TensorId> AttentionProof::parts() const {
  std::vector<TensorId> found;
  for (const Slot slot : {Slot::query, Slot::key, Slot::value, Slot::output, Slot::query_key}) {
    const ModuleId module = in_attention(block_, slot);
    for (const TensorId& id : {weight_of(module), bias_of(module), TensorId{module, TensorKind::pivot}}) {
      if (a_.stores(id) || b_.stores(id)) {
        found.push_back(id);
      }
    }
  }
  for (const auto* folded : {&a_.folded().gains, &a_.folded().biases}) {
    if (const auto norm = folded->find(input_); norm != folded->end()) {
      found.push_back(folded == &a_.folded().gains ? weight_of(norm->second) : bias_of(norm->second));
    }
  }
  return found;
}

bool AttentionProof::has_matrix(Slot slot) const {
  const Attention& t = spec(a_);
  if (tabled_ || (slot == Slot::value ? t.values : t.scores) == Form::collapsed) {
    return false;
  }
  return is_plain(projection_in(t, slot)) || (slot == Slot::query && is<Nonlinear>(t.query));
}

int64_t AttentionProof::heads_of(Slot slot) const {
  const Attention& t = spec(a_);
  return slot == Slot::query || slot == Slot::output ? t.heads : t.kv_heads;
}

MapGroup AttentionProof::group_of(Slot slot) const {
  return slot == Slot::query || slot == Slot::key ? scores_ : values_;
}

// Where softmax ignores it a key's bias is none: on entries that do not turn, and if nothing but softmax sees scores.
Effective AttentionProof::key_bias(const ProofSide& side, const Effective& bias) const {
  const Attention& t = spec(side);
  if (t.qk_norm || t.softcap || is<SameAsKey>(t.query)) {
    return bias;
  }
  const int64_t turned = t.rope ? t.rope->width : 0;
  at::Tensor seen = at::zeros({t.kv_heads, t.head_width}, bias.value.options());
  seen.narrow(1, 0, turned).fill_(1);
  seen = seen.flatten();
  return {bias.value * seen, bias.rounding * seen};
}

Effective AttentionProof::projection(const ProofSide& side, Slot slot) const {
  const ModuleId module = in_attention(block_, slot);
  const Attention& t = spec(side);
  const int64_t rows = heads_of(slot) * t.head_width;
  Effective bias = side.load_or_zeros(bias_of(module), {rows});
  Effective matrix = side.made(at::zeros({rows, 0}, at::kDouble));
  if (side.stores(weight_of(module)) && has_matrix(slot)) {
    matrix = side.with_gain(side.load(weight_of(module)), input_);
    const Effective shift = side.shift(weight_of(module), input_);
    bias = shift.value.defined() ? sum(bias, shift) : bias;
  } else if (has_matrix(slot)) {
    matrix = side.made(at::eye(rows, at::kDouble));
  }
  if (slot == Slot::key) {
    bias = key_bias(side, bias);
  }
  if (slot == Slot::value && value_bias_folds(a_.architecture(), block_)) {  // it is in the output's
    bias = side.made(at::zeros_like(bias.value));
  }
  const Effective both = beside(matrix, bias);
  return slot == Slot::query && absorbs_scale(t) ? times(both, scale_of(t)) : both;
}

Effective AttentionProof::output(const ProofSide& side) const {
  const TensorId id = weight_of(in_attention(block_, Slot::output));
  return side.stores(id) ? side.load(id) : side.made(at::eye(side.architecture().width, at::kDouble));
}

// ---- the relations

Finding AttentionProof::check_query(const StreamMap& in, const at::Tensor& gauge) const {
  const Effective a = projection(a_, Slot::query), b = projection(b_, Slot::query);
  const Effective expected = projected(a, in);
  if (!gauge.defined()) {
    const at::Tensor residual = expected.value - b.value;
    return judged(residual, expected.rounding + b.rounding + solving_error_of(b.value, in),
                  projected_back(residual, in), a.value);
  }
  const at::Tensor residual = expected.value - on_heads(gauge, b.value), sizes = gauge.abs();
  const at::Tensor lost = on_heads(sizes, solving_error_of(b.value, in).expand_as(b.value));
  return judged(residual, expected.rounding + on_heads(sizes, b.rounding) + lost, projected_back(residual, in),
                a.value);
}

Finding AttentionProof::check_key(const StreamMap& in, const at::Tensor& gauge) const {
  const Effective a = projection(a_, Slot::key), b = projection(b_, Slot::key);
  Effective expected = projected(a, in);
  if (gauge.defined()) {
    const at::Tensor turned = gauge.transpose(1, 2);
    expected = {on_heads(turned, expected.value), on_heads(turned.abs(), expected.rounding)};
  }
  const at::Tensor residual = expected.value - b.value;
  return judged(residual, expected.rounding + b.rounding + solving_error_of(b.value, in), residual, b.value);
}

Finding AttentionProof::check_value(const StreamMap& in, const at::Tensor& gauge) const {
  const Effective a = projection(a_, Slot::value), b = projection(b_, Slot::value);
  const Effective expected = projected(a, in);
  const at::Tensor found = gauge.defined() ? on_heads(gauge, b.value) : b.value;
  const at::Tensor carried = gauge.defined() ? on_heads(gauge.abs(), b.rounding) : b.rounding;
  const at::Tensor lost = solving_error_of(b.value, in).expand_as(b.value);
  const at::Tensor residual = expected.value - found;
  return judged(residual, expected.rounding + carried + (gauge.defined() ? on_heads(gauge.abs(), lost) : lost),
                projected_back(residual, in), a.value);
}

Finding AttentionProof::check_output(const StreamMap& out, const at::Tensor& gauge) const {
  const Effective a = transposed(output(a_)), b = transposed(output(b_));  // [heads * k, width]
  Effective expected = a;
  if (gauge.defined()) {
    const at::Tensor wide = gauge.repeat_interleave(spec(a_).heads / spec(a_).kv_heads, 0).transpose(1, 2);
    expected = {on_heads(wide, a.value), on_heads(wide.abs(), a.rounding)};
  }
  const Effective found = written_through(b, out);
  const at::Tensor residual = expected.value - found.value;
  return judged(residual, expected.rounding + found.rounding + solving_error(expected.value, out, Role::writer),
                residual, expected.value);
}

// Ψᵀ A_h Ψ = B_h: collapsed scores read the stream on both sides.
Finding AttentionProof::check_collapsed(const StreamMap& in) const {
  const TensorId id = weight_of(in_attention(block_, Slot::query_key));
  const Effective a = a_.load(id), b = b_.load(id);
  Effective once = read_through(a, in);
  once = {once.value.transpose(1, 2), once.rounding.transpose(1, 2)};
  const Effective twice = read_through(once, in);
  const at::Tensor expected = twice.value.transpose(1, 2), residual = expected - b.value;
  at::Tensor lost = at::zeros({}, b.value.options());
  if (!in.is_identity()) {
    lost = solving_error(b.value, in, Role::reader) +
           solving_error(b.value.transpose(1, 2), in, Role::reader).transpose(1, 2);
    if (in.inverse.defined()) {  // each side loses what the other has left
      lost = lost * in.condition;
    }
  }
  return judged(residual, twice.rounding.transpose(1, 2) + b.rounding + lost, residual, b.value);
}

std::vector<AttentionProof::Named> AttentionProof::check(const StreamMap& in, const StreamMap& out,
                                                         const HeadMaps& heads) const {
  const Attention& t = spec(a_);
  std::vector<Named> found;
  const auto add = [&](Slot slot, const Finding& finding, const at::Tensor& gauge, const StreamMap& stream) {
    const ModuleId module = in_attention(block_, slot);
    const bool bias = !a_.stores(weight_of(module)) && a_.stores(bias_of(module));
    const std::string how = gauge.defined()         ? "gauge of each head"
                            : !stream.is_identity() ? "basis of the stream"
                                                    : "same up to rounding";
    found.push_back({bias ? bias_of(module) : weight_of(module), how, finding});
  };
  if (!tabled_ && t.scores == Form::factored) {
    if (!is<SameAsKey>(t.query)) {
      add(Slot::query, check_query(in, heads.scores), heads.scores, in);
    }
    add(Slot::key, check_key(in, heads.scores), heads.scores, in);
  } else if (!tabled_) {
    found.push_back({weight_of(in_attention(block_, Slot::query_key)), "basis of the stream", check_collapsed(in)});
  }
  if (!tabled_ && t.values == Form::factored) {
    add(Slot::value, check_value(in, heads.values), heads.values, in);
  }
  if (t.values == Form::factored) {
    add(Slot::output, check_output(out, heads.values), heads.values, out);
  }
  for (const Slot slot : {Slot::key, Slot::value}) {
    if (is<Shrunk>(projection_in(t, slot)) && !tabled_) {
      for (const TensorKind kind : {TensorKind::weight, TensorKind::pivot}) {
        const TensorId id{in_attention(block_, slot), kind};
        const Effective a = a_.load(id), b = b_.load(id);
        const at::Tensor residual = a.value - b.value;
        found.push_back({id, "same up to rounding", judged(residual, a.rounding + b.rounding, residual, a.value)});
      }
    }
  }
  return found;
}

// ---- the gauges

HeadMaps AttentionProof::fit(const StreamMap& in, const StreamMap* out) const {
  const Attention& t = spec(a_);
  const int64_t k = t.head_width, groups = t.kv_heads;
  HeadMaps heads;
  if (scores_ != MapGroup::identity && (!check_query(in, {}).holds() || !check_key(in, {}).holds())) {
    const at::Tensor qa = projected(projection(a_, Slot::query), in).value, qb = projection(b_, Slot::query).value;
    const at::Tensor ka = projected(projection(a_, Slot::key), in).value, kb = projection(b_, Slot::key).value;
    std::vector<at::Tensor> gauges;
    for (int64_t g = 0; g < groups; ++g) {
      const auto of = [&](const at::Tensor& rows) { return samples_of_group(rows, groups, k, g); };
      gauges.push_back(fit_in_group(scores_, t.rope, {{Role::writer, of(qa), of(qb)}, {Role::reader, of(ka), of(kb)}},
                                    eye_like(k, qa)));
    }
    heads.scores = at::stack(gauges);
  }
  if (values_ != MapGroup::identity && (!check_value(in, {}).holds() || (out && !check_output(*out, {}).holds()))) {
    const at::Tensor va = projected(projection(a_, Slot::value), in).value, vb = projection(b_, Slot::value).value;
    const at::Tensor oa = output(a_).value.t();
    const at::Tensor ob = out ? written_through(transposed(output(b_)), *out).value : at::Tensor();
    std::vector<at::Tensor> gauges;
    for (int64_t g = 0; g < groups; ++g) {
      const auto of = [&](const at::Tensor& rows) { return samples_of_group(rows, groups, k, g); };
      std::vector<MapSamples> samples = {{Role::writer, of(va), of(vb)}};
      if (out) {
        samples.push_back({Role::reader, of(oa), of(ob)});
      }
      gauges.push_back(fit_in_group(values_, std::nullopt, samples, eye_like(k, va)));
    }
    heads.values = at::stack(gauges);
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

std::optional<Slot> AttentionProof::pinned_input() const {
  for (const Slot slot : {Slot::query, Slot::key, Slot::value}) {
    const TensorId id = weight_of(in_attention(block_, slot));
    if (has_matrix(slot) && a_.stores(id) != b_.stores(id)) {
      return slot;
    }
  }
  return std::nullopt;
}

bool AttentionProof::pins_output() const {
  const TensorId id = weight_of(in_attention(block_, Slot::output));
  return spec(a_).values == Form::factored && a_.stores(id) != b_.stores(id);
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
  std::vector<MapSamples> seen;
  for (const MapSamples& sample : samples) {
    MapSamples turned = sample;
    at::Tensor& side = of_reference ? turned.reference : turned.candidate;
    const bool product = sample.role == Role::writer;
    side = product ? at::matmul(side, matrix.t()) : at::linalg_solve(matrix.t(), side.t()).t();
    seen.push_back(turned);
  }
  std::vector<at::Tensor> gauges;
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<MapSamples> own;
    for (const MapSamples& sample : seen) {
      const auto of = [&](const at::Tensor& rows) { return samples_of_group(rows.t(), groups, k, g); };
      own.push_back({sample.role, of(sample.reference), of(sample.candidate)});
    }
    const at::Tensor guess = of_reference ? start[g] : at::linalg_inv(start[g]);
    gauges.push_back(fit_in_group(group, t.rope, own, guess));
  }
  const at::Tensor all = block_diagonal(at::stack(gauges), heads_of(slot));
  return of_reference ? at::linalg_solve(matrix, all) : at::matmul(all, matrix);
}

// Ψ = W_O E, or Ψ W_O = E.
at::Tensor AttentionProof::fit_pinned_output(const std::vector<MapSamples>& samples) const {
  const Attention& t = spec(a_);
  const int64_t k = t.head_width, groups = t.kv_heads;
  const bool of_reference = a_.stores(weight_of(in_attention(block_, Slot::output)));
  const at::Tensor matrix = output(of_reference ? a_ : b_).value;
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
  std::vector<at::Tensor> gauges;
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<MapSamples> own;
    for (const MapSamples& sample : seen) {
      const auto of = [&](const at::Tensor& rows) { return samples_of_group(rows.t(), groups, k, g); };
      own.push_back({sample.role, of(sample.reference), of(sample.candidate)});
    }
    gauges.push_back(fit_in_group(values_, std::nullopt, own, eye_like(k, matrix)));
  }
  const at::Tensor all = block_diagonal(at::stack(gauges), t.heads);
  return of_reference ? at::matmul(matrix, all) : at::linalg_solve(matrix, all, /*left=*/false);
}

}  // namespace pare
