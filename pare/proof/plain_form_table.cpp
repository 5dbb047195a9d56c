// A first layer whose projections are rows of a table, one for each token: what the other side computes of its tokens.

#include "pare/proof/plain_form.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/model/activation.h"
#include "pare/proof/model_view.h"

namespace pare {

namespace {

// What float64 loses in a sum of a few hundred products is a few units of their sizes.
constexpr double lost_in_sums = 8 * 0x1p-53;

// x W' + b, and what float64 may lose in it.
Rounded linear(const Rounded& x, const at::Tensor& matrix, const at::Tensor& bias) {
  Rounded y{at::matmul(x.value, matrix.t()),
            at::matmul(x.rounding, matrix.abs().t()) + at::matmul(x.value.abs(), matrix.abs().t()) * lost_in_sums};
  return bias.defined() ? Rounded{y.value + bias, y.rounding + bias.abs() * lost_in_sums} : y;
}

struct PlainNorm {
  Norm spec;
  at::Tensor gain, bias, alpha;  // undefined: none
};

Rounded normalised(const PlainNorm& norm, const Rounded& x) {
  at::Tensor y;
  if (norm.spec.kind == NormKind::dyt) {
    y = at::tanh(norm.alpha * x.value);
  } else if (norm.spec.kind == NormKind::scale) {
    y = norm.spec.factor * x.value;
  } else {
    const at::Tensor centred = norm.spec.kind == NormKind::layer ? x.value - x.value.mean(-1, true) : x.value;
    y = centred * at::rsqrt(centred.square().mean(-1, true) + norm.spec.epsilon);
  }
  at::Tensor size = y.abs() + y.abs().amax(-1, true);
  if (norm.gain.defined()) {
    y = y * norm.gain;
    size = size * norm.gain.abs();
  }
  if (norm.bias.defined()) {
    y = y + norm.bias;
    size = size + norm.bias.abs();
  }
  return {y, size * lost_in_sums};
}

// All that stands between a token and the first projections, loaded once for each slice of rows.
class TokenRows {
 public:
  TokenRows(const Architecture& architecture, int64_t block)
      : a_(architecture), table_(tensor_table(architecture)), block_(block) {}

  std::vector<TensorId> sources() const {
    std::vector<TensorId> found;
    for (const TensorSpec& spec : table_) {
      const ModuleId& module = spec.id.module;
      const bool first = module.block == block_ && module.sublayer == Sublayer::attention &&
                         module.slot != Slot::output && module.slot != Slot::query_norm &&
                         module.slot != Slot::key_norm && module.slot != Slot::output_norm;
      if (module.sublayer == Sublayer::embedding || (first && !(module.slot == Slot::norm && is_post()))) {
        found.push_back(spec.id);
      }
    }
    return found;
  }

  Rounded operator()(const ModelView& side, int64_t begin, int64_t count) const {
    for (const TensorId& id : sources()) {
      side.use(id);
    }
    const Embedding& e = a_.embedding;
    Rounded x = times(side.load_source_rows(weight_of(token_table), begin, count), e.scale);
    if (e.factor && e.factor_scope == FactorScope::token) {
      x = projected(side, x);
    }
    if (e.norm) {
      x = normalised(norm(side, *e.norm, in_embedding(Slot::norm)), x);
    }
    if (e.factor && e.factor_scope == FactorScope::sum) {
      x = projected(side, x);
    }
    const Attention& t = a_.blocks[block_].attention;
    const Rounded in = t.norm && !is_post() ? normalised(norm(side, *t.norm, in_attention(block_, Slot::norm)), x) : x;
    const Rounded key = behind(side, in, Slot::key), value = behind(side, in, Slot::value);
    const Rounded query = is<SameAsKey>(t.query) ? key : behind(side, asked(side, in), Slot::query);
    return joined({x, query, key, value}, 1);
  }

 private:
  bool is_post() const {
    const std::optional<Norm>& norm = a_.blocks[block_].attention.norm;
    return norm && norm->place == NormPlace::post;
  }
  at::Tensor value(const ModelView& side, const TensorId& id) const {
    return table_.contains(id) ? side.load_source(id).value : at::Tensor();
  }
  PlainNorm norm(const ModelView& side, const Norm& spec, const ModuleId& module) const {
    const at::Tensor gain = value(side, weight_of(module));
    return {spec, gain.defined() ? gain + spec.offset : gain, value(side, bias_of(module)),
            value(side, {module, TensorKind::alpha})};
  }
  Rounded projected(const ModelView& side, const Rounded& x) const {
    const ModuleId module = in_embedding(Slot::projection);
    return linear(x, value(side, weight_of(module)), value(side, bias_of(module)));
  }
  Rounded behind(const ModelView& side, const Rounded& x, Slot slot) const {
    const ModuleId module = in_attention(block_, slot);
    const at::Tensor matrix = value(side, weight_of(module)), bias = value(side, bias_of(module));
    if (matrix.defined()) {
      return linear(x, matrix, bias);
    }
    return bias.defined() ? Rounded{x.value + bias, x.rounding} : x;
  }
  Rounded asked(const ModelView& side, const Rounded& x) const {
    const Nonlinear* nonlinear = std::get_if<Nonlinear>(&a_.blocks[block_].attention.query);
    if (!nonlinear) {
      return x;
    }
    Rounded hidden = linear(x, value(side, weight_of(in_attention(block_, Slot::query_up))), {});
    hidden.value = activate(nonlinear->activation, hidden.value);
    const Rounded more = linear(hidden, value(side, weight_of(in_attention(block_, Slot::query_down))), {});
    return sum(x, more);
  }

  Architecture a_;
  TensorTable table_;
  int64_t block_;
};

bool can_be_tabled(const Architecture& a, int64_t block) {
  const Block& first = a.blocks[block];
  const Attention& t = first.attention;
  return a.embedding.position == Position::none && a.embedding.types == 0 && !a.embedding.patch &&
         !a.embedding.masked && runs_of(a, block) == 1 && first.wiring == Wiring::serial && !t.gate &&
         has_plain_keys_and_values(t);
}

}  // namespace

void write_out_table(PlainForms& forms) {
  Architecture &a = forms.reference.architecture, &b = forms.candidate.architecture;
  if (a.first_layer == b.first_layer || a.blocks.empty()) {
    return;
  }
  PlainForm& form = a.first_layer == FirstLayer::table ? forms.candidate : forms.reference;
  PlainForm& tabled = a.first_layer == FirstLayer::table ? forms.reference : forms.candidate;
  const int64_t block = layer_blocks(form.architecture).front();
  if (!form.made.empty() && std::ranges::any_of(form.made, [&](const auto& entry) {
        return entry.first.module.block == block && entry.first.module.sublayer == Sublayer::attention;
      })) {
    return;
  }
  if (layer_blocks(tabled.architecture).front() != block || !can_be_tabled(form.architecture, block)) {
    return;
  }
  const TokenRows rows(form.architecture, block);
  const int64_t vocab = form.architecture.vocab;
  form.made[weight_of(in_embedding(Slot::table))] = {
      rows.sources(), [=](const ModelView& side) { return rows(side, 0, vocab); },
      [=](const ModelView& side, int64_t begin, int64_t count) { return rows(side, begin, count); }};
  // What stands before the first projections is in the table.
  const Architecture stored = tabled.architecture;
  form.architecture.first_layer = FirstLayer::table;
  form.architecture.embedding = stored.embedding;
  Attention& t = form.architecture.blocks[block].attention;
  const Attention& u = stored.blocks[block].attention;
  t.query = u.query;
  t.key = u.key;
  t.value = u.value;
  t.bias = {.query = u.bias.query, .key = u.bias.key, .value = u.bias.value, .output = t.bias.output};
  const auto is_post = [](const std::optional<Norm>& norm) { return norm && norm->place == NormPlace::post; };
  if (!is_post(t.norm) && !is_post(u.norm)) {
    t.norm = u.norm;
  }
}

}  // namespace pare
