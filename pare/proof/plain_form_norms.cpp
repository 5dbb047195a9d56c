// Norms that are none: an epsilon that dwarfs what they are given leaves x C diag(g) / √ε + c, an affine map, which the
// other model has in its matrices. A scale is one as it is: x diag(r g) + c.

#include "pare/proof/plain_form.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/arch/norm_exits.h"
#include "pare/arch/norms.h"
#include "pare/proof/model_view.h"
#include "pare/proof/norm_bounds.h"

namespace pare {

namespace {

// Rows [..., width] times a map.
using MapRows = std::function<Rounded(const Rounded& rows, const ModelView& side)>;

// (g + offset) / √ε, or r (g + offset). Whatever gain was chosen, the matrix is what was rounded.
LoadRounded factors_of(const PlainForm& form, const Norm& norm, const ModuleId& module, int64_t width) {
  const LoadRounded gain = current(form, weight_of(module));
  const double root = norm.kind == NormKind::scale ? norm.factor : 1 / std::sqrt(norm.epsilon);
  return [=](const ModelView& side) {
    const at::Tensor ones = at::ones({width}, at::kDouble);
    const at::Tensor stored = norm.gain ? gain(side).value + norm.offset : side.made(ones).value;
    return side.made(stored * root);
  };
}

// A reader W becomes C diag(s) W, and a writer W C diag(s): along the axis of each that lies on the stream.
MapRows read_by(const PlainForm& form, const Norm& norm, const ModuleId& module, int64_t width) {
  const LoadRounded factors = factors_of(form, norm, module, width);
  const bool centred = norm.kind == NormKind::layer;
  return [=](const Rounded& rows, const ModelView& side) {
    const Rounded scaled = scaled_columns(rows, factors(side));
    return centred ? without_mean(scaled) : scaled;
  };
}

MapRows written_by(const PlainForm& form, const Norm& norm, const ModuleId& module, int64_t width) {
  const LoadRounded factors = factors_of(form, norm, module, width);
  const bool centred = norm.kind == NormKind::layer;
  return [=](const Rounded& rows, const ModelView& side) {
    return scaled_columns(centred ? without_mean(rows) : rows, factors(side));
  };
}

Rounded moved_axis(const Rounded& tensor, int64_t from, int64_t to) {
  return {tensor.value.movedim(from, to), tensor.rounding.movedim(from, to)};
}

Rounded mapped_along(const Rounded& tensor, const Port& port, int64_t width, const MapRows& map,
                     const ModelView& side) {
  const Rounded last = moved_axis(tensor, port.axis, -1);
  const int64_t end = port.begin + width, size = last.value.size(-1);
  const Rounded changed = map(narrowed(last, -1, port.begin, width), side);
  const Rounded whole = joined({narrowed(last, -1, 0, port.begin), changed, narrowed(last, -1, end, size - end)}, -1);
  return moved_axis(whole, -1, port.axis);
}

using LoadRows = std::function<Rounded(const ModelView& side, int64_t begin, int64_t count)>;

// Some rows of a table, where they can be had.
LoadRows current_rows(const PlainForm& form, const TensorId& id) {
  if (const auto made = form.made.find(id); made != form.made.end()) {
    return made->second.rows;
  }
  return [id](const ModelView& side, int64_t begin, int64_t count) { return side.load_source_rows(id, begin, count); };
}

void map_port(PlainForm& form, const Port& port, int64_t width, const ModuleId& norm, const MapRows& map) {
  const LoadRounded old = current(form, port.tensor);
  const LoadRows old_rows = current_rows(form, port.tensor);
  const bool by_rows = old_rows && port.axis == 1 && tensor_table(form.architecture).at(port.tensor).shape.size() == 2;
  make(form, port.tensor, those_there(form, {port.tensor, weight_of(norm)}),
       [=](const ModelView& side) { return mapped_along(old(side), port, width, map, side); });
  if (by_rows) {
    form.made[port.tensor].rows = [=](const ModelView& side, int64_t begin, int64_t count) {
      return mapped_along(old_rows(side, begin, count), port, width, map, side);
    };
  }
}

// b + W c, with W as it is before the map; the last column of neuron heads is their bias.
void shift_reader(PlainForm& form, const Port& port, int64_t width, const ModuleId& norm) {
  const TensorId bias = bias_of(port.tensor.module);
  const TensorTable table = tensor_table(form.architecture);
  const LoadRounded matrix = current(form, port.tensor), constant = current(form, bias_of(norm));
  const auto added = [=](const ModelView& side) {
    return times_vector(narrowed(matrix(side), 1, 0, width), constant(side));
  };
  if (port.tensor.module.sublayer == Sublayer::mlp && table.at(port.tensor).shape.back() == width + 1) {
    make(form, port.tensor, {port.tensor, bias_of(norm)}, [=](const ModelView& side) {
      const Rounded whole = matrix(side), more = added(side);
      const Rounded last = sum(narrowed(whole, 1, width, 1), reshaped(more, {-1, 1}));
      return joined({narrowed(whole, 1, 0, width), last}, 1);
    });
    return;
  }
  const bool has = table.contains(bias);
  const LoadRounded own = current(form, bias);
  make(form, bias, those_there(form, {bias, bias_of(norm), port.tensor}),
       [=](const ModelView& side) { return has ? sum(own(side), added(side)) : added(side); });
}

void fold_into_readers(PlainForm& form, const Stream& stream, const NormBetween& at) {
  for (const Port& port : stream.ports) {
    if (at.norm.bias) {
      shift_reader(form, port, stream.width, at.module);
    }
  }
  const MapRows map = read_by(form, at.norm, at.module, stream.width);
  for (const Port& port : stream.ports) {
    map_port(form, port, stream.width, at.module, map);
  }
}

void add_constant(PlainForm& form, const TensorId& place, const TensorId& of, const LoadRounded& constant) {
  const double scale = place == weight_of(token_table) ? form.architecture.embedding.scale : 1;
  const bool has = tensor_table(form.architecture).contains(place);
  const LoadRounded own = current(form, place);
  const LoadRows own_rows = current_rows(form, place);
  const auto with = [=](const Rounded& rows, const ModelView& side) {
    const Rounded more = times(constant(side), 1 / scale);
    return Rounded{rows.value + more.value, rows.rounding + more.rounding};
  };
  make(form, place, those_there(form, {place, of}),
       [=](const ModelView& side) { return has ? with(own(side), side) : constant(side); });
  if (has && own_rows && place.kind == TensorKind::weight) {
    form.made[place].rows = [=](const ModelView& side, int64_t begin, int64_t count) {
      return with(own_rows(side, begin, count), side);
    };
  }
}

void fold_into_writers(PlainForm& form, const Stream& stream, const NormBetween& at, const AffineExit& exit) {
  const MapRows map = written_by(form, at.norm, at.module, stream.width);
  for (const Port& port : stream.ports) {
    map_port(form, port, stream.width, at.module, map);
  }
  if (exit.place) {
    add_constant(form, *exit.place, bias_of(at.module), current(form, bias_of(at.module)));
  }
}

// A table that is the head too, seen as two.
void untie(PlainForm& form) {
  const TensorId head = weight_of(head_matrix), table = weight_of(token_table);
  const LoadRows rows = current_rows(form, table);
  make(form, head, {table}, current(form, table));
  form.made[head].rows = rows;
  form.architecture.head.tied = false;
}

bool write_out_norm(PlainForm& form, const PlainForm& other, const ModuleId& module) {
  Streams streams = find_streams(form.architecture);
  std::optional<NormBetween> at = norm_between(form.architecture, streams, module);
  if (!at) {
    return false;
  }
  AffineExit exit = exit_of(form.architecture, streams, *at);
  if (exit.tied && !other.architecture.head.tied) {
    untie(form);
    streams = find_streams(form.architecture);
    at = norm_between(form.architecture, streams, module);
    exit = exit_of(form.architecture, streams, *at);
  }
  if (exit.way == AffineExit::Way::none) {
    return false;
  }
  exit.way == AffineExit::Way::readers ? fold_into_readers(form, streams.all[at->writes], *at)
                                       : fold_into_writers(form, streams.all[at->reads], *at, exit);
  take_out(form.architecture, streams, *at, exit);
  return true;
}

// A query's norm, or a key's, in the matrix and the bias that make it: each head is centred by itself, or all are as
// one, and row i is multiplied by the gain that is its own.
void fold_into_heads(PlainForm& form, const ModuleId& matrix, const ModuleId& norm, const Attention& t, int64_t heads) {
  const TensorId weight = weight_of(matrix), bias = bias_of(matrix);
  const Norm spec = *t.qk_norm;
  const int64_t rows = heads * t.head_width, parts = t.qk_norm_over == QkNormOver::layer ? 1 : heads;
  const int64_t times = t.qk_norm_over == QkNormOver::head ? heads : 1;  // that a vector is there
  const LoadRounded factors = factors_of(form, spec, norm, rows / times);
  for (const TensorId& id : those_there(form, {weight, bias})) {
    const LoadRounded old = current(form, id);
    make(form, id, those_there(form, {id, weight_of(norm)}), [=](const ModelView& side) {
      const Rounded stored = old(side), split = moved_axis(reshaped(stored, {parts, rows / parts, -1}), 1, -1);
      const Rounded centred = moved_axis(spec.kind == NormKind::layer ? without_mean(split) : split, -1, 1);
      const Rounded own = reshaped(factors(side), {-1});
      const Rounded all{own.value.repeat({rows / own.value.size(0)}), own.rounding.repeat({rows / own.value.size(0)})};
      const Rounded turned = transposed(reshaped(centred, {rows, -1}));
      return reshaped(transposed(scaled_columns(turned, all)), stored.value.sizes());
    });
  }
  if (spec.bias) {
    const LoadRounded constant = current(form, bias_of(norm));
    add_constant(form, bias, bias_of(norm), [=](const ModelView& side) {
      const Rounded one = reshaped(constant(side), {-1});
      return Rounded{one.value.repeat({times}), one.rounding.repeat({times})};
    });
  }
}

void write_out_head_norms(PlainForm& form, int64_t n, const std::set<ModuleId>& constant) {
  const ModuleId query = in_attention(n, Slot::query_norm), key = in_attention(n, Slot::key_norm);
  const Attention t = form.architecture.blocks[n].attention;
  if (!constant.contains(query) || !constant.contains(key) || !obstacle_of_head_norms(form.architecture, n).empty()) {
    return;
  }
  fold_into_heads(form, in_attention(n, Slot::query), query, t, t.heads);
  fold_into_heads(form, in_attention(n, Slot::key), key, t, t.kv_heads);
  take_out_head_norms(form.architecture, n);
}

bool has_norm(Architecture architecture, const ModuleId& module) {
  if (module.slot == Slot::query_norm || module.slot == Slot::key_norm) {
    return architecture.blocks[*module.block].attention.qk_norm.has_value();
  }
  const std::vector<PlacedNorm> norms = norms_of(architecture);
  return std::ranges::any_of(norms, [&](const PlacedNorm& placed) { return placed.module == module; });
}

// A norm that the other model does not have, or has with other numbers.
bool is_its_own(const Model& model, const Model& other, const ModuleId& module) {
  return !(has_norm(other.architecture, module) && holds_same(model, other, weight_of(module)) &&
           holds_same(model, other, bias_of(module)));
}

std::map<ModuleId, double> norms_of_its_own(const Model& model, const Model& other) {
  std::map<ModuleId, double> epsilons = large_epsilons(model.architecture);
  std::erase_if(epsilons, [&](const auto& entry) { return !is_its_own(model, other, entry.first); });
  return epsilons;
}

// Whether the matrices that a scale can go into are the same in both. Who took a factor in and off again rounded twice.
bool same_beside(const Model& model, const Model& other, const Streams& streams, const ModuleId& module) {
  const std::optional<NormBetween> at = norm_between(model.architecture, streams, module);
  const AffineExit exit = at ? exit_of(model.architecture, streams, *at) : AffineExit{};
  return exit.way == AffineExit::Way::none ||
         std::ranges::all_of(streams.all[exit.way == AffineExit::Way::readers ? at->writes : at->reads].ports,
                             [&](const Port& port) { return holds_same(model, other, port.tensor); });
}

// The same of scales, of which a factor is a number too.
std::set<ModuleId> scales_of_its_own(const Model& model, const Model& other) {
  Architecture copy = model.architecture, others = other.architecture;
  const Streams streams = find_streams(copy), of_other = find_streams(others);
  std::set<ModuleId> found;
  for (const PlacedNorm& placed : norms_of(copy)) {
    const bool in_table = has_norm(others, placed.module) && !norm_between(others, of_other, placed.module);
    if (placed.norm->kind != NormKind::scale || in_table) {  // a table is made of all that stands before it
      continue;
    }
    const bool same = !is_its_own(model, other, placed.module) && *norm_place(others, placed.module) == *placed.norm;
    const bool factor_alone = !placed.norm->gain && placed.norm->factor != 1;
    if (!same || (factor_alone && !same_beside(model, other, streams, placed.module))) {
      found.insert(placed.module);
    }
  }
  return found;
}

// Which of them are affine maps, for all inputs.
std::set<ModuleId> affine_ones(PlainForms& forms, const Model& model, const Model& other) {
  const std::map<ModuleId, double> own = norms_of_its_own(model, other);
  std::set<ModuleId> constant = scales_of_its_own(model, other);
  if (own.empty()) {
    return constant;
  }
  const double limit = unseen_share(finest_roundoff(model.weights));
  const std::map<ModuleId, double> shares = dominated_shares(model);
  for (const auto& [module, epsilon] : own) {
    if (const double share = shares.at(module); share <= limit) {
      constant.insert(module);
      forms.moved = std::max(forms.moved, share);
    } else if (!has_norm(other.architecture, module)) {
      forms.gaps.push_back(fmt::format("{}: nothing bounds its input for all inputs to what its epsilon of {:g} dwarfs",
                                       name_of(module), epsilon));
    }
  }
  return constant;
}

void write_out_side(PlainForm& form, const PlainForm& other, const std::set<ModuleId>& constant) {
  for (bool again = true; again;) {
    again = false;
    Architecture copy = form.architecture;
    for (const PlacedNorm& placed : norms_of(copy)) {
      again = (constant.contains(placed.module) && write_out_norm(form, other, placed.module)) || again;
    }
  }
  for (int64_t n = 0; n < std::ssize(form.architecture.blocks); ++n) {
    if (form.architecture.blocks[n].attention.qk_norm) {
      write_out_head_norms(form, n, constant);
    }
  }
}

}  // namespace

void write_out_norms(PlainForms& forms, const Model& reference, const Model& candidate) {
  std::set<ModuleId> a = affine_ones(forms, reference, candidate), b = affine_ones(forms, candidate, reference);
  // One that both have is seen as a map in both, or in neither.
  const auto only_in_one = [](const std::set<ModuleId>& others, const Architecture& other) {
    return [&others, &other](const ModuleId& module) { return has_norm(other, module) && !others.contains(module); };
  };
  std::erase_if(a, only_in_one(b, candidate.architecture));
  std::erase_if(b, only_in_one(a, reference.architecture));
  write_out_side(forms.reference, forms.candidate, a);
  write_out_side(forms.candidate, forms.reference, b);
}

}  // namespace pare
