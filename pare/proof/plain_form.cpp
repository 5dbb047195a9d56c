#include "pare/proof/plain_form.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/arch/norms.h"
#include "pare/arch/streams.h"
#include "pare/proof/model_view.h"
#include "pare/proof/proof.h"
#include "pare/proof/stream_map.h"

namespace pare {

namespace {

Attention& attention_of(PlainForm& form, int64_t block) {
  return form.architecture.blocks[block].attention;
}

Projection& projection_of(Attention& t, Slot slot) {
  return slot == Slot::key ? t.key : t.value;
}

// ---- a key or a value whose identity block is not stored

void write_out_shrunk(PlainForm& form, int64_t block, Slot slot) {
  Projection& projection = projection_of(attention_of(form, block), slot);
  if (!is<Shrunk>(projection)) {
    return;
  }
  projection = Dense{};
  const ModuleId module = in_attention(block, slot);
  const TensorId id = weight_of(module), pivot{module, TensorKind::pivot};
  const int64_t width = form.architecture.width;
  const LoadRounded rest_of = current(form, id), pivots_of = current(form, pivot);
  make(form, id, {id, pivot}, [=](const ModelView& side) {
    const Rounded rest = rest_of(side);                             // [heads, k, width - k], ascending
    const at::Tensor pivots = pivots_of(side).value.to(at::kLong);  // [heads, k]
    const int64_t heads = pivots.size(0), k = pivots.size(1);
    const at::Tensor is_pivot = at::zeros({heads, width}, pivots.options()).scatter(1, pivots, 1);
    const at::Tensor others = at::argsort(is_pivot, /*stable=*/true, /*dim=*/1).narrow(1, 0, width - k);
    const auto placed = [&](const at::Tensor& x) {
      return at::zeros({heads, k, width}, x.options()).scatter(2, others.unsqueeze(1).expand({heads, k, width - k}), x);
    };
    // What is not stored is not rounded; but a gauge that was found by the rest knows it no better than that.
    const at::Tensor at_pivots = pivots.unsqueeze(1).expand({heads, k, k});
    const at::Tensor eye = at::eye(k, rest.value.options()).expand({heads, k, k});
    const at::Tensor unit = at::full({heads, k, k}, side.roundoff(id), rest.value.options());
    const Rounded whole{placed(rest.value).scatter(2, at_pivots, eye),
                        placed(rest.rounding).scatter(2, at_pivots, unit)};
    return reshaped(whole, {heads * k, width});
  });
}

// ---- a value computed from the key, or a key from the value

bool is_computed(Attention& t, Slot slot) {
  return slot == Slot::key ? is<FromValue>(t.key) : is<FromKey>(t.value);
}

void write_out_computed(PlainForm& form, int64_t block, Slot slot) {
  Attention& t = attention_of(form, block);
  if (!is_computed(t, slot)) {
    return;
  }
  const bool is_value = slot == Slot::value;
  const TensorId id = weight_of(in_attention(block, slot));
  const TensorId map = weight_of(in_attention(block, is_value ? Slot::value_from_key : Slot::key_from_value));
  const TensorId from = weight_of(in_attention(block, is_value ? Slot::key : Slot::value));
  const bool passed_on = is<Identity>(is_value ? t.key : t.value);
  projection_of(t, slot) = Dense{};
  const LoadRounded matrix_of = current(form, map), other_of = current(form, from);
  make(form, id, passed_on ? std::vector{map} : std::vector{map, from}, [=](const ModelView& side) {
    const Rounded matrix = matrix_of(side);
    if (passed_on) {
      return matrix;
    }
    const Rounded other = other_of(side), both = product(matrix, other);
    const at::Tensor sizes = at::matmul(matrix.value.abs(), other.value.abs());
    return Rounded{both.value, both.rounding + sizes * (most_roundings * lost_in_solving)};
  });
}

// ---- two factors, and their product

// [heads, k, n]: those of a group's heads are the same.
Rounded by_heads(const Rounded& rows, int64_t groups, int64_t heads) {
  const int64_t k = rows.value.size(0) / groups;
  const auto spread = [&](const at::Tensor& x) {
    return x.reshape({groups, k, -1}).repeat_interleave(heads / groups, 0);
  };
  return {spread(rows.value), spread(rows.rounding)};
}

// Of a head's two factors. Somebody may have put them into another gauge before they were multiplied, and solved with
// it or cut it out of orthogonal factors: that loses a few roundings of what lengths allow, where little may be left of
// an entry.
Rounded product_of_factors(const Rounded& first, const Rounded& second) {
  const Rounded both = product(transposed(first), second);
  const at::Tensor lengths = at::matmul(first.value.norm(2, {1}).unsqueeze(2), second.value.norm(2, {1}).unsqueeze(1));
  return {both.value, both.rounding + lengths * lost_in_solving};
}

LoadRounded matrix_or_identity(const PlainForm& form, const ModuleId& module, const Projection& projection) {
  const LoadRounded stored = current(form, weight_of(module));
  const int64_t width = form.architecture.width;
  const bool identity = is<Identity>(projection);
  return [=](const ModelView& side) { return identity ? side.made(at::eye(width, at::kDouble)) : stored(side); };
}

// x W_q' W_k y' + y W_k' b_q, and what is the same for every key, which a softmax ignores where nothing else sees it.
bool scores_collapse(const Attention& t) {
  return t.scores == Form::factored && is_plain(t.query) && is_plain(t.key) && !is<FromKey>(t.value) && !t.rope &&
         !t.qk_norm && !(t.softcap && t.bias.key);
}

void collapse_scores(PlainForm& form, int64_t block) {
  Attention& t = attention_of(form, block);
  const ModuleId query = in_attention(block, Slot::query), key = in_attention(block, Slot::key);
  const ModuleId both = in_attention(block, Slot::query_key);
  const LoadRounded queries = matrix_or_identity(form, query, t.query), keys = matrix_or_identity(form, key, t.key);
  const LoadRounded bias = current(form, bias_of(query));
  const int64_t heads = t.heads, groups = t.kv_heads, width = form.architecture.width;
  const bool biased = t.bias.query;
  make(form, weight_of(both), those_there(form, {weight_of(query), weight_of(key), bias_of(key)}),
       [=](const ModelView& side) {
         return product_of_factors(by_heads(queries(side), heads, heads), by_heads(keys(side), groups, heads));
       });
  make(form, bias_of(both), those_there(form, {bias_of(query), weight_of(key)}), [=](const ModelView& side) {
    if (!biased) {
      return side.made(at::zeros({heads, width}, at::kDouble));
    }
    const Rounded one = reshaped(bias(side), {heads, -1, 1});
    return reshaped(product_of_factors(one, by_heads(keys(side), groups, heads)), {heads, width});
  });
  t.scores = Form::collapsed;
  t.query = t.key = Dense{};
  t.bias.query = true;
  t.bias.key = false;
}

// b_O + W_O b_V, where rows of attention sum to one.
bool values_collapse(const Attention& t) {
  return t.values == Form::factored && is_plain(t.value) && is_plain(t.output) && !is<FromValue>(t.key) &&
         (rows_sum_to_one(t) || !t.bias.value);
}

void collapse_values(PlainForm& form, int64_t block) {
  Attention& t = attention_of(form, block);
  const ModuleId value = in_attention(block, Slot::value), output = in_attention(block, Slot::output);
  const LoadRounded values = matrix_or_identity(form, value, t.value);
  const LoadRounded outputs = matrix_or_identity(form, output, t.output);
  const LoadRounded value_bias = current(form, bias_of(value)), output_bias = current(form, bias_of(output));
  const int64_t heads = t.heads, groups = t.kv_heads, width = form.architecture.width;
  const AttentionBias had = t.bias;
  const std::vector<TensorId> biases = those_there(form, {bias_of(output), bias_of(value), weight_of(output)});
  make(form, weight_of(in_attention(block, Slot::value_output)),
       those_there(form, {weight_of(value), weight_of(output)}), [=](const ModelView& side) {
         return product_of_factors(by_heads(values(side), groups, heads),
                                   by_heads(transposed(outputs(side)), heads, heads));
       });
  make(form, bias_of(output), biases, [=](const ModelView& side) {
    const Rounded own = had.output ? output_bias(side) : side.made(at::zeros({width}, at::kDouble));
    if (!had.value) {
      return own;
    }
    const Rounded all = reshaped(by_heads(reshaped(value_bias(side), {-1, 1}), groups, heads), {-1});
    return sum(own, times_vector(outputs(side), all));
  });
  t.values = Form::collapsed;
  t.value = t.output = Dense{};
  t.bias.value = false;
  t.bias.output = true;
}

void write_out_attention(PlainForms& forms, const Model& reference, const Model& candidate, int64_t block) {
  PlainForm &a = forms.reference, &b = forms.candidate;
  Attention &t = attention_of(a, block), &u = attention_of(b, block);
  t.remembered = u.remembered = Remembered::keys_values;  // what an engine keeps is no part of the function
  const auto computed_by_one = [&](Slot slot) { return is_computed(t, slot) != is_computed(u, slot); };
  const bool multiplied = computed_by_one(Slot::key) || computed_by_one(Slot::value);  // what is whole can be
  for (const Slot slot : {Slot::key, Slot::value}) {
    const bool both = is<Shrunk>(projection_of(t, slot)) && is<Shrunk>(projection_of(u, slot));
    if (!both || multiplied || !holds_same(reference, candidate, {in_attention(block, slot), TensorKind::pivot})) {
      write_out_shrunk(a, block, slot);
      write_out_shrunk(b, block, slot);
    }
  }
  for (const Slot slot : {Slot::key, Slot::value}) {
    if (computed_by_one(slot)) {
      write_out_computed(a, block, slot);
      write_out_computed(b, block, slot);
    }
  }
  if (t.heads != u.heads || t.kv_heads != u.kv_heads || t.head_width != u.head_width) {
    return;
  }
  if (t.scores != u.scores) {
    PlainForm& factored = t.scores == Form::factored ? a : b;
    if (scores_collapse(attention_of(factored, block))) {
      collapse_scores(factored, block);
    }
  }
  if (t.values != u.values) {
    PlainForm& factored = t.values == Form::factored ? a : b;
    if (values_collapse(attention_of(factored, block))) {
      collapse_values(factored, block);
    }
  }
}

// ---- LayerNorm and RMSNorm

// Everything that reads the stream is a norm, and everything that writes it can be centred: a LayerNorm there is an
// RMSNorm of what is written without its mean. Positions that are computed are rows like stored ones.
bool only_norms_read(const Stream& stream) {
  const auto norms = std::ranges::count(stream.touches, TouchKind::norm_reads, &Touch::kind);
  const auto computed = std::ranges::count(stream.touches, TouchKind::sinusoidal, &Touch::kind);
  const bool read = std::ranges::any_of(stream.ports, [](const Port& port) { return port.role == Role::reader; });
  return norms > 0 && norms + computed == std::ssize(stream.touches) && !read;
}

std::map<ModuleId, Norm*> norms_by_module(Architecture& architecture) {
  std::map<ModuleId, Norm*> found;
  for (const PlacedNorm& placed : norms_of(architecture)) {
    found[placed.module] = placed.norm;
  }
  return found;
}

void centre_stream(PlainForm& layered, size_t index, const Stream& stream, std::map<ModuleId, Norm*>& layer_norms,
                   const std::map<ModuleId, Norm*>& others) {
  const auto all_are = [&](const std::map<ModuleId, Norm*>& norms, NormKind kind) {
    return std::ranges::all_of(stream.touches, [&](const Touch& touch) {
      const auto norm = norms.find(touch.module);
      return touch.kind == TouchKind::sinusoidal || (norm != norms.end() && norm->second->kind == kind);
    });
  };
  if (!all_are(layer_norms, NormKind::layer) || !all_are(others, NormKind::rms)) {
    return;
  }
  for (const Touch& touch : stream.touches) {
    if (touch.kind == TouchKind::norm_reads) {
      layer_norms.at(touch.module)->kind = NormKind::rms;
    }
  }
  layered.centred.insert(index);
}

// The two have the same streams only where they are built alike; where they are not, nothing is proved anyway.
void centre(PlainForms& forms) {
  Architecture &a = forms.reference.architecture, &b = forms.candidate.architecture;
  const Streams first = find_streams(a), second = find_streams(b);
  if (first.all.size() != second.all.size()) {
    return;
  }
  std::map<ModuleId, Norm*> norms_a = norms_by_module(a), norms_b = norms_by_module(b);
  for (size_t i = 0; i < first.all.size(); ++i) {
    if (only_norms_read(first.all[i]) && only_norms_read(second.all[i])) {
      centre_stream(forms.reference, i, first.all[i], norms_a, norms_b);
      centre_stream(forms.candidate, i, second.all[i], norms_b, norms_a);
    }
  }
}

}  // namespace

std::vector<TensorId> those_there(const PlainForm& form, const std::vector<TensorId>& ids) {
  const TensorTable table = tensor_table(form.architecture);
  std::vector<TensorId> found;
  std::ranges::copy_if(ids, std::back_inserter(found), [&](const TensorId& id) { return table.contains(id); });
  return found;
}

bool holds_same(const Model& a, const Model& b, const TensorId& id) {
  const auto first = a.weights.find(name_of(id)), second = b.weights.find(name_of(id));
  if (first == a.weights.end() || second == b.weights.end()) {
    return first == a.weights.end() && second == b.weights.end();
  }
  return first->second.shape() == second->second.shape() && holds_same_numbers(first->second, second->second);
}

LoadRounded current(const PlainForm& form, const TensorId& id) {
  const auto made = form.made.find(id);
  return made != form.made.end() ? made->second.load : [id](const ModelView& side) { return side.load_source(id); };
}

std::vector<TensorId> sources_of(const PlainForm& form, const TensorId& id) {
  const auto made = form.made.find(id);
  return made != form.made.end() ? made->second.sources : std::vector{id};
}

void make(PlainForm& form, const TensorId& id, const std::vector<TensorId>& of, LoadRounded load) {
  std::vector<TensorId> sources;
  for (const TensorId& part : of) {
    const std::vector<TensorId> more = sources_of(form, part);
    sources.insert(sources.end(), more.begin(), more.end());
  }
  form.made[id] = {std::move(sources), std::move(load), {}};
}

PlainForms written_out(const Model& reference, const Model& candidate, at::Device device) {
  PlainForms forms{{reference.architecture, {}, {}}, {candidate.architecture, {}, {}}};
  if (reference.architecture.blocks.size() != candidate.architecture.blocks.size() ||
      reference.architecture.width != candidate.architecture.width) {
    return forms;
  }
  write_out_norms(forms, reference, candidate);
  for (int64_t n = 0; n < std::ssize(reference.architecture.blocks); ++n) {
    write_out_attention(forms, reference, candidate, n);
  }
  write_out_mlps(forms, reference, candidate, device);
  write_out_table(forms);
  centre(forms);
  return forms;
}

}  // namespace pare
