#include "pare/proof/head_relations.h"

#include <ATen/ATen.h>

#include "pare/proof/allowed_maps.h"
#include "pare/proof/head_algebra.h"
#include "pare/proof/settings.h"
#include "pare/support/error.h"

namespace pare {

namespace {

const TensorId first_table = weight_of(in_embedding(Slot::table));

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

}  // namespace

HeadRelations::HeadRelations(const ModelView& reference, const ModelView& candidate, const ModelView& wide,
                             int64_t block)
    : a_(reference),
      b_(candidate),
      wide_(wide),
      block_(block),
      input_(reference.streams().blocks[block].attention_input),
      output_(reference.streams().blocks[block].attention_output),
      tabled_(pare::is_tabled(reference.architecture(), block)),
      made_table_(tabled_ && (reference.is_made(first_table) || candidate.is_made(first_table))) {
  const Attention &t = spec(a_), &u = spec(b_);
  const auto plain = [&](Slot slot) {
    const bool in_table = tabled_ && slot != Slot::output;  // whatever they were made of
    return in_table || (is_plain(projection_in(t, slot)) && is_plain(projection_in(u, slot)));
  };
  const bool factored = t.scores == Form::factored, own_values = t.values == Form::factored;
  if (factored && plain(Slot::query) && plain(Slot::key) && !t.qk_norm && !is<FromKey>(t.value)) {
    scores_ = t.rope ? MapGroup::turning : MapGroup::general;
  }
  // A norm of heads, or a query that is the key, sees how long they are: what does not change that is left. One over
  // all heads at once sees the length of all, which does not change if none does.
  const auto uniform = [](const ModelView& side, const ModuleId& norm, const Attention& own, int64_t heads) {
    const at::Tensor gains = side.gain(norm, qk_norm_shape(own, heads)).value.reshape({-1, own.head_width});
    return (gains == gains.narrow(1, 0, 1)).all().item<bool>() && side.is_zero(bias_of(norm));
  };
  const auto keeps_lengths = [&](const ModelView& side) {
    const Attention& own = spec(side);
    return !own.qk_norm || (own.qk_norm->kind == NormKind::rms &&
                            uniform(side, in_attention(block, Slot::query_norm), own, own.heads) &&
                            uniform(side, in_attention(block, Slot::key_norm), own, own.kv_heads));
  };
  const bool one = is<SameAsKey>(t.query) && is<SameAsKey>(u.query);
  if (factored && scores_ == MapGroup::identity && (one || plain(Slot::query)) && plain(Slot::key) &&
      !is<FromKey>(t.value) && keeps_lengths(a_) && keeps_lengths(b_)) {
    scores_ = t.rope ? MapGroup::turning_rotation : MapGroup::rotation;
  }
  if (own_values && plain(Slot::value) && plain(Slot::output) && !is<FromValue>(t.key)) {
    values_ = MapGroup::general;
  }
}

const Attention& HeadRelations::spec(const ModelView& side) const {
  return side.architecture().blocks[block_].attention;
}

std::vector<TensorId> HeadRelations::parts() const {
  std::vector<TensorId> found;
  if (tabled_) {
    found.push_back(first_table);
  }
  for (const Slot slot : {Slot::query, Slot::key, Slot::value, Slot::output, Slot::query_key}) {
    const ModuleId module = in_attention(block_, slot);
    for (const TensorId& id : {weight_of(module), bias_of(module), TensorId{module, TensorKind::pivot}}) {
      if (a_.stores(id) || b_.stores(id)) {
        found.push_back(id);
      }
    }
  }
  const std::vector<TensorId> norm = folded_norm();
  found.insert(found.end(), norm.begin(), norm.end());
  if (const auto before = a_.folded().constants.find(input_); before != a_.folded().constants.end()) {
    for (const Slot slot : {Slot::output, Slot::value}) {
      const ModuleId module = in_attention(before->second, slot);
      found.insert(found.end(), {weight_of(module), bias_of(module)});
    }
  }
  return found;
}

std::vector<TensorId> HeadRelations::folded_norm() const {
  std::vector<TensorId> found;
  for (const auto* folded : {&a_.folded().gains, &a_.folded().biases}) {
    if (const auto norm = folded->find(input_); norm != folded->end()) {
      found.push_back(folded == &a_.folded().gains ? weight_of(norm->second) : bias_of(norm->second));
    }
  }
  return found;
}

bool HeadRelations::has_matrix(Slot slot) const {
  const Attention& t = spec(a_);
  if (slot == Slot::output) {
    return t.values == Form::factored;
  }
  if (tabled_ || (slot == Slot::value ? t.values : t.scores) == Form::collapsed) {
    return false;
  }
  return is_plain(projection_in(t, slot)) || (slot == Slot::query && is<Nonlinear>(t.query));
}

bool HeadRelations::pins(Slot slot) const {
  return has_matrix(slot) && stores(a_, slot) != stores(b_, slot);
}

int64_t HeadRelations::heads_of(Slot slot) const {
  const Attention& t = spec(a_);
  return slot == Slot::query || slot == Slot::output ? t.heads : t.kv_heads;
}

MapGroup HeadRelations::group_of(Slot slot) const {
  return slot == Slot::query || slot == Slot::key ? scores_ : values_;
}

// Where softmax ignores it a key's bias is none: on entries that do not turn, and if nothing but softmax sees scores.
at::Tensor HeadRelations::seen_in_keys(const ModelView& side) const {
  const Attention& t = spec(side);
  const bool all = t.qk_norm || t.softcap || (is<SameAsKey>(t.query) && !tabled_);
  const int64_t turned = all ? t.head_width : t.rope ? t.rope->width : 0;
  at::Tensor seen = at::zeros({t.kv_heads, t.head_width}, at::kDouble);
  seen.narrow(1, 0, turned).fill_(1);
  return seen.flatten();
}

Rounded HeadRelations::projection(const ModelView& side, Slot slot, const Tokens& tokens) const {
  if (tabled_) {
    return tabled(side, slot, tokens);
  }
  const ModuleId module = in_attention(block_, slot);
  const Attention& t = spec(side);
  const int64_t rows = heads_of(slot) * t.head_width;
  Rounded bias = side.load_or_zeros(bias_of(module), {rows});
  Rounded matrix = side.made(at::zeros({rows, 0}, at::kDouble));
  if (side.stores(weight_of(module)) && has_matrix(slot)) {
    matrix = side.with_gain(side.load(weight_of(module)), input_);
    const Rounded shift = side.shift(weight_of(module), input_);
    bias = shift.value.defined() ? sum(bias, shift) : bias;
  } else if (has_matrix(slot)) {
    matrix = side.made(at::eye(rows, at::kDouble));
  }
  if (slot == Slot::key) {
    const at::Tensor seen = seen_in_keys(side).to(bias.value.device());
    bias = {bias.value * seen, bias.rounding * seen};
  }
  if (slot == Slot::value && a_.folded().values.contains(block_)) {  // it is in the output's
    bias = side.made(at::zeros_like(bias.value));
  }
  const Rounded both = beside(matrix, bias);
  const double scale = slot == Slot::query ? query_scale(side) : 1;
  return scale == 1 ? both : times(both, scale);
}

// A constant that nobody sees, or that is in the output's bias, is in every token: the quietest one's row is taken off.
Rounded HeadRelations::tabled(const ModelView& side, Slot slot, const Tokens& tokens) const {
  const Attention& t = spec(side);
  const int64_t queries = t.heads * t.head_width, keys = t.kv_heads * t.head_width;
  const int64_t begin =
      side.architecture().width + (slot == Slot::query ? 0 : queries) + (slot == Slot::value ? keys : 0);
  const auto columns = [&](const Rounded& rows) {
    return transposed(narrowed(rows, 1, begin, slot == Slot::query ? queries : keys));
  };
  std::vector<Rounded> some;
  std::vector<at::Tensor> numbers;
  for (const RowRange& rows : tokens) {
    some.push_back(columns(side.load_rows(first_table, rows.begin, rows.count)));
    numbers.push_back(at::arange(rows.begin, rows.begin + rows.count, some.back().value.device()));
  }
  const Rounded all = joined(some, 1);
  const bool folds = slot == Slot::value && a_.folded().values.contains(block_);
  if (!folds && !(slot == Slot::key && made_table_)) {
    return all;
  }
  const Rounded middle = columns(constant_in_table(side));
  const at::Tensor unseen =
      folds ? at::ones_like(middle.value) : (1 - seen_in_keys(side)).unsqueeze(1).to(middle.value.device());
  const Rounded found = sum(all, {-middle.value * unseen, middle.rounding * unseen});
  // Of that token nothing is left there, whichever way its row was multiplied.
  const at::Tensor gone = (at::cat(numbers) == side.folded().quietest).to(at::kDouble).unsqueeze(0) * unseen;
  return {found.value * (1 - gone), found.rounding * (1 - gone)};
}

double HeadRelations::query_scale(const ModelView& side) const {
  const bool changed = absorbs_scale(spec(a_)) && scale_of(spec(a_)) != scale_of(spec(b_));
  return changed ? scale_of(spec(side)) : 1;
}

Rigour HeadRelations::rigour(Slot slot, const StreamMap& stream, const at::Tensor& gauge) const {
  if (gauge.defined() || !stream.is_identity()) {
    return Rigour::fitted;
  }
  const bool scaled = slot == Slot::query && query_scale(a_) != query_scale(b_);
  const bool folds = slot != Slot::output && (a_.folded().gains.contains(input_) || a_.folded().shifts(input_));
  const bool centred = slot == Slot::output && (a_.centres(output_) || b_.centres(output_));
  const TensorId id = weight_of(in_attention(block_, slot)), bias = bias_of(id.module);
  const bool in_table = tabled_ && slot != Slot::output;
  const bool made =
      (in_table && made_table_) || a_.is_made(id) || b_.is_made(id) || a_.is_made(bias) || b_.is_made(bias);
  return scaled || folds || centred || made ? Rigour::folded : Rigour::stored;
}

// Of roundings as they are stored: what is usual in a head is told by all its columns, a bias among them, and its type
// is no other column's.
at::Tensor HeadRelations::unit(const std::function<at::Tensor(const ModelView& side)>& carried) const {
  const auto [coarsest, mixed] = b_.unit(parts());
  return mixed ? mixed_units(carried(b_), carried(wide_), coarsest) : at::full({}, coarsest, at::kDouble);
}

double HeadRelations::off_group(Slot slot, const at::Tensor& gauge) const {
  return distance_to(group_of(slot), gauge, spec(a_).rope);
}

Rounded HeadRelations::output(const ModelView& side) const {
  const TensorId id = weight_of(in_attention(block_, Slot::output));
  const Rounded matrix = side.stores(id) ? side.load(id) : side.made(at::eye(side.architecture().width, at::kDouble));
  return transposed(side.written(transposed(matrix), output_));
}

// ---- the relations

// The rows of a table are its tokens.
Finding HeadRelations::judged_heads(const at::Tensor& residual, const Allowance& allowed, const at::Tensor& moved,
                                    const at::Tensor& whole) const {
  if (!tabled_) {
    return judged(residual, allowed, moved, whole);
  }
  const auto turned = [](const at::Tensor& x) { return x.defined() ? x.t() : x; };  // one number stays one
  return judged(residual.t(),
                {allowed.rounding.t(), allowed.most, turned(allowed.unit), turned(allowed.elsewhere), allowed.off_group,
                 turned(allowed.expected)},
                moved.t(), whole.t());
}

Finding HeadRelations::check_read(Slot slot, const StreamMap& in, const at::Tensor& gauge, const Tokens& tokens) const {
  return slot == Slot::key ? check_key(in, gauge, tokens) : check_turned(slot, in, gauge, tokens);
}

Finding HeadRelations::check_all(Slot slot, const StreamMap& in, const at::Tensor& gauge) const {
  if (!tabled_) {
    return check_read(slot, in, gauge, {});
  }
  Finding all;
  const int64_t tokens = a_.architecture().vocab, step = rows_at_once(a_.table().at(first_table).shape[1]);
  for (int64_t begin = 0; begin < tokens; begin += step) {
    merge(all, check_read(slot, in, gauge, {{begin, std::min(step, tokens - begin)}}), begin);
  }
  return all;
}

// What the candidate has is turned back: q_A = D q_B, v_A = E v_B.
Finding HeadRelations::check_turned(Slot slot, const StreamMap& in, const at::Tensor& gauge,
                                    const Tokens& tokens) const {
  const int64_t k = spec(a_).head_width;
  const Rounded a = projection(a_, slot, tokens), b = projection(b_, slot, tokens);
  const Rounded expected = projected(a, in);
  const auto carried = [&](const Rounded& x) {
    const at::Tensor own = usual_rounding(x.rounding, in, k, gauge.defined());
    return gauge.defined() ? on_heads(gauge.abs(), own) : own;
  };
  at::Tensor lost = solving_error_of(b.value, in).expand_as(b.value);
  if (gauge.defined()) {
    lost = on_heads(gauge.abs(), lost) + gauge_error(gauge, size_of(expected), in);
  }
  const at::Tensor residual = expected.value - (gauge.defined() ? on_heads(gauge, b.value) : b.value);
  const at::Tensor units = unit([&](const ModelView& side) { return projection(side, slot, tokens).rounding; });
  Allowance allowed = allowance(expected.rounding + lost, carried(b), rigour(slot, in, gauge),
                                unit_in_heads(units, in, k, gauge.defined()));
  allowed.off_group = in.off_group + off_group(slot, gauge);
  allowed.expected = expected.value;
  if (gauge.defined()) {
    allowed.elsewhere =
        off_in_heads(residual, expected.rounding + lost, usual_rounding(b.rounding, in, k, true), gauge);
  }
  return judged_heads(residual, allowed, projected_back(residual, in), before_projection(a.value, expected.value, in));
}

Finding HeadRelations::check_key(const StreamMap& in, const at::Tensor& gauge, const Tokens& tokens) const {
  const int64_t k = spec(a_).head_width;
  const Rounded a = projection(a_, Slot::key, tokens), b = projection(b_, Slot::key, tokens);
  Rounded expected = projected(a, in);
  const at::Tensor whole = before_projection(a.value, expected.value, in);
  if (gauge.defined()) {
    const at::Tensor turned = gauge.transpose(1, 2);
    expected = {
        on_heads(turned, expected.value),
        on_heads(turned.abs(), expected.rounding) + gauge_error(turned, on_heads(turned.abs(), size_of(expected)), in)};
  }
  const at::Tensor residual = expected.value - b.value;
  const at::Tensor own = usual_rounding(b.rounding, in, k, gauge.defined());
  const at::Tensor units = unit([&](const ModelView& side) { return projection(side, Slot::key, tokens).rounding; });
  const at::Tensor lost = expected.rounding + solving_error_of(b.value, in);
  const at::Tensor moved = gauge.defined() ? on_heads_back(gauge.transpose(1, 2), residual) : residual;
  Allowance allowed = allowance(lost, own, rigour(Slot::key, in, gauge), unit_in_heads(units, in, k, gauge.defined()));
  allowed.off_group = in.off_group + off_group(Slot::key, gauge);
  allowed.expected = expected.value;
  return judged_heads(residual, allowed, projected_back(moved, in), whole);
}

Finding HeadRelations::check_output(const StreamMap& in, const StreamMap& out, const at::Tensor& gauge) const {
  const int64_t k = spec(a_).head_width;
  const Rounded a = transposed(output(a_)), b = transposed(output(b_));  // [heads * k, width]
  Rounded expected = a;
  at::Tensor wide;
  if (gauge.defined()) {
    wide = gauge.repeat_interleave(spec(a_).heads / spec(a_).kv_heads, 0).transpose(1, 2);
    expected = {on_heads(wide, a.value), on_heads(wide.abs(), a.rounding)};
    expected.rounding = expected.rounding + gauge_error(wide, size_of(expected), in);
  }
  const auto carried = [&](const Rounded& x) {
    const at::Tensor rounding = written_through(x, out).rounding;
    return gauge.defined() ? usual_in_heads(rounding, k) : rounding;
  };
  const at::Tensor residual = expected.value - written_through(b, out).value;
  const at::Tensor lost = expected.rounding + solving_error(expected.value, out, Role::writer);
  const at::Tensor units = unit([&](const ModelView& side) { return carried(transposed(output(side))); });
  Allowance allowed = allowance(lost, carried(b), rigour(Slot::output, out, gauge),
                                unit_in_heads(units, StreamMap(), k, gauge.defined()));
  allowed.elsewhere = off_elsewhere(residual, lost, gauge.defined() ? usual_in_heads(b.rounding, k) : b.rounding, out);
  allowed.off_group = out.off_group + off_group(Slot::output, gauge);
  allowed.expected = expected.value;
  return judged(residual, allowed, gauge.defined() ? on_heads_back(wide, residual) : residual, a.value);
}

// Ψᵀ A_h Ψ = B_h: collapsed scores read the stream on both sides.
Finding HeadRelations::check_collapsed(const StreamMap& in) const {
  const TensorId id = weight_of(in_attention(block_, Slot::query_key));
  const auto scaled = [&](const ModelView& side) {
    return side.with_gain(transposed(side.with_gain(transposed(side.load(id)), input_)), input_);
  };
  const Rounded a = scaled(a_), b = scaled(b_);
  const Rounded twice = read_through(transposed(read_through(a, in)), in);
  const at::Tensor expected = twice.value.transpose(1, 2), residual = expected - b.value;
  at::Tensor lost = at::zeros({}, b.value.options());
  if (!in.is_identity()) {
    lost = solving_error(b.value, in, Role::reader) +
           solving_error(b.value.transpose(1, 2), in, Role::reader).transpose(1, 2);
    if (in.inverse.defined()) {  // each side loses what the other has left
      lost = lost * in.condition;
    }
  }
  const auto carried = [&](const Rounded& x) {
    return in.is_identity()
               ? x.rounding
               : at_least_usual(at_least_usual(x.rounding, in.units).transpose(1, 2), in.units).transpose(1, 2);
  };
  const at::Tensor units = unit([&](const ModelView& side) { return carried(scaled(side)); });
  Allowance allowed =
      allowance(twice.rounding.transpose(1, 2) + lost, carried(b), rigour(Slot::query_key, in, at::Tensor()),
                in.is_identity() || units.dim() == 0 ? units : units.amax());
  allowed.off_group = 2 * in.off_group;
  allowed.expected = expected;
  const auto back = [&](const at::Tensor& x) {
    return pulled_back(pulled_back(x, in).transpose(1, 2), in).transpose(1, 2);
  };
  return judged(residual, allowed, back(residual), in.absorbed ? back(expected) : a.value);
}

// All that the sublayer sees of a pair of factors is their product. Where two rows of a head are almost the same, a
// gauge is known so badly that relations of the factors allow too much to hold; what one rounding of each factor does
// to the product is no more than usual.
Finding HeadRelations::check_products(Slot first, const StreamMap& in, const StreamMap& out) const {
  const bool of_values = first == Slot::value;
  const int64_t k = spec(a_).head_width, heads = spec(a_).heads, share = heads / spec(a_).kv_heads;
  const Rounded left = projection(a_, first), left_read = projected(left, in);
  const Rounded right = of_values ? transposed(output(a_)) : projection(a_, Slot::key);
  const Rounded right_read = of_values ? right : projected(right, in);
  const auto read = [&](const Rounded& x) {
    return Rounded{x.value, usual_rounding(x.rounding, in, k, false) + solving_error_of(x.value, in)};
  };
  const auto factors = [&](const ModelView& side) {
    if (!of_values) {
      return std::pair(read(projection(side, first)), read(projection(side, Slot::key)));
    }
    const Rounded written = written_through(transposed(output(side)), out);
    const at::Tensor lost = solving_error(right_read.value, out, Role::writer);
    return std::pair(read(projection(side, first)), Rounded{written.value, written.rounding + lost});
  };
  const std::pair own_factors = factors(b_), wide_factors = b_.unit(parts()).mixed ? factors(wide_) : own_factors;
  const auto back = [&](const at::Tensor& x) {
    const at::Tensor half = projected_back(x.t(), in).t();
    return of_values ? half : projected_back(half, in);
  };
  Finding all;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t own = h * k, shared = (h / share) * k;
    const auto of = [&](const Rounded& x, const Rounded& y) {
      return std::pair(transposed(narrowed(x, 0, of_values ? shared : own, k)),
                       narrowed(y, 0, of_values ? own : shared, k));
    };
    const auto multiplied = [&](const std::pair<Rounded, Rounded>& both) {
      const auto [u, v] = of(both.first, both.second);
      return product(u, v);
    };
    const auto [x, y] = of(left_read, right_read);
    const Rounded expected = product(x, y), found = multiplied(own_factors);
    at::Tensor units =
        unit([&](const ModelView& side) { return multiplied(&side == &wide_ ? wide_factors : own_factors).rounding; });
    units = unit_in_heads(units.dim() == 0 ? units : units.t(), in, k, false);
    units = units.dim() == 0 ? units : of_values ? units.t() : unit_in_heads(units.t(), in, k, false);
    const at::Tensor sizes = at::matmul(x.value.abs(), y.value.abs()), residual = expected.value - found.value;
    const auto [p, q] = of(left, right);
    const at::Tensor whole = in.absorbed ? back(expected.value) : at::matmul(p.value, q.value);
    Allowance allowed = allowance(expected.rounding + sizes * lost_in_solving, found.rounding, Rigour::fitted, units);
    allowed.off_group = in.off_group + (of_values ? out : in).off_group;
    allowed.expected = expected.value;
    merge(all, judged(residual, allowed, back(residual), whole), 0);
  }
  return all;
}

std::vector<NamedFinding> HeadRelations::check(const StreamMap& in, const StreamMap& out, const Gauges& gauges) const {
  const Attention& t = spec(a_);
  std::vector<NamedFinding> found;
  const auto add = [&](Slot slot, const Finding& finding, const at::Tensor& gauge, const StreamMap& stream) {
    const ModuleId module = in_attention(block_, slot);
    const bool bias = !a_.stores(weight_of(module)) && a_.stores(bias_of(module));
    const How how = gauge.defined() ? How::gauge : stream.is_identity() ? How::same_up_to_rounding : How::basis;
    const bool in_table = tabled_ && slot != Slot::output;
    found.push_back({in_table ? first_table : bias ? bias_of(module) : weight_of(module), how, finding});
  };
  const auto add_pair = [&](Slot first, Finding one, Slot second, Finding other, const at::Tensor& gauge,
                            const StreamMap& stream) {
    const bool multiplies = gauge.defined() && group_of(first) == MapGroup::general && !tabled_;
    if (multiplies && !(one.holds() && other.holds())) {
      if (const Finding both = check_products(first, in, out); both.holds()) {
        one = other = both;
      }
    }
    add(first, one, gauge, in);
    add(second, other, gauge, stream);
  };
  if (t.scores == Form::collapsed) {
    found.push_back({weight_of(in_attention(block_, Slot::query_key)), How::basis, check_collapsed(in)});
  } else if (is<SameAsKey>(t.query) && !tabled_) {
    add(Slot::key, check_all(Slot::key, in, gauges.scores), gauges.scores, in);
  } else {
    add_pair(Slot::query, check_all(Slot::query, in, gauges.scores), Slot::key, check_all(Slot::key, in, gauges.scores),
             gauges.scores, in);
  }
  if (t.values == Form::factored) {
    add_pair(Slot::value, check_all(Slot::value, in, gauges.values), Slot::output, check_output(in, out, gauges.values),
             gauges.values, out);
  }
  for (const Slot slot : {Slot::key, Slot::value}) {
    if (is<Shrunk>(projection_in(t, slot)) && !tabled_) {
      for (const TensorKind kind : {TensorKind::weight, TensorKind::pivot}) {
        const TensorId id{in_attention(block_, slot), kind};
        const Rounded a = a_.load(id), b = b_.load(id);
        const at::Tensor residual = a.value - b.value;
        const at::Tensor units = unit([&](const ModelView& side) { return side.load(id).rounding; });
        found.push_back(
            {id, How::same_up_to_rounding, judged(residual, {b.rounding, one_rounding, units}, residual, a.value)});
      }
    }
  }
  return found;
}

}  // namespace pare
