#include "pare/rewrite/compatible.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "pare/algebra/head_block.h"
#include "pare/algebra/operations.h"
#include "pare/arch/count.h"
#include "pare/arch/norm_exits.h"
#include "pare/arch/norms.h"
#include "pare/arch/tensors.h"
#include "pare/proof/norm_bounds.h"
#include "pare/rewrite/refusals.h"
#include "pare/support/error.h"

namespace pare {

namespace {

void restore(Projection& now, const Projection& source) {
  if (is<Identity>(now) || (is<Shrunk>(now) && is<Dense>(source))) {
    now = source;
  }
}

// Keys and values whose identity block is written out.
std::vector<ModuleId> unshrunk_modules(const Architecture& now, const Architecture& written) {
  std::vector<ModuleId> modules;
  for (size_t n = 0; n < now.blocks.size(); ++n) {
    const Attention &t = now.blocks[n].attention, &w = written.blocks[n].attention;
    for (const auto& [slot, kind, target] :
         {std::tuple(Slot::key, &t.key, &w.key), {Slot::value, &t.value, &w.value}}) {
      if (is<Shrunk>(*kind) && !is<Shrunk>(*target)) {
        modules.push_back(in_attention(static_cast<int64_t>(n), slot));
      }
    }
  }
  return modules;
}

// The ones and zeros of an identity block in each head, less those that the matrix had already.
int64_t new_in_block(const Attention& t, const Weight& matrix) {
  const at::Tensor stored = matrix.load();
  const int64_t already = ((stored == 0) | (stored == 1)).sum().item<int64_t>();
  return std::max<int64_t>(0, t.kv_heads * t.head_width * t.head_width - already);
}

// What the source had and the result does without is put back, as something that does nothing.
Architecture restored(Architecture now, Architecture source) {
  PARE_CHECK(now.blocks.size() == source.blocks.size(), "passes keep the blocks");
  for (size_t n = 0; n < now.blocks.size(); ++n) {
    Attention& t = now.blocks[n].attention;
    const Attention& s = source.blocks[n].attention;
    restore(t.query, s.query);
    restore(t.key, s.key);
    restore(t.value, s.value);
    restore(t.output, s.output);
    t.qk_norm = t.qk_norm ? t.qk_norm : s.qk_norm;
    t.qk_norm_over = s.qk_norm_over;
    t.bias.query |= s.bias.query;
    t.bias.key |= s.bias.key && t.scores == s.scores;  // collapsed ones have no place for it
    t.bias.value |= s.bias.value && t.values == s.values;
    t.bias.output |= s.bias.output;
  }
  for (const PlacedNorm& before : norms_of(source)) {
    std::optional<Norm>& norm = norm_place(now, before.module);
    norm = norm.value_or(*before.norm);
    norm->gain = before.norm->gain;
    norm->bias = before.norm->bias;
    norm->offset = before.norm->offset;
  }
  now.head.read_elsewhere = source.head.read_elsewhere;
  return now;
}

// Scales that a pass removed.
std::vector<PlacedNorm> scales_put_back(Architecture now, Architecture& written) {
  std::vector<PlacedNorm> found;
  for (const PlacedNorm& placed : norms_of(written)) {
    if (placed.norm->kind == NormKind::scale && !norm_place(now, placed.module)) {
      found.push_back(placed);
    }
  }
  return found;
}

// The gains of norms that a pass removed: with √ε in them, and an epsilon that dwarfs what it is added to, such a norm
// gives back what it is given, or that without its mean. That of a scale takes off its factor.
std::map<ModuleId, double> gains_put_back(const Architecture& now, const Architecture& written) {
  const std::map<ModuleId, double> left = large_epsilons(now);
  std::map<ModuleId, double> gains;
  for (const auto& [module, epsilon] : large_epsilons(written)) {
    if (!left.contains(module)) {
      gains[module] = std::sqrt(epsilon);
    }
  }
  Architecture copy = written;
  for (const PlacedNorm& scale : scales_put_back(now, copy)) {
    gains[scale.module] = 1 / scale.norm->factor;
  }
  return gains;
}

// A factor that no gain can take off is taken off by the matrices beside it.
void take_off_factors(Model& model, const Architecture& now) {
  Architecture copy = model.architecture;
  const Streams streams = find_streams(copy);
  for (const PlacedNorm& scale : scales_put_back(now, copy)) {
    const double factor = scale.norm->factor;
    if (scale.norm->gain || factor == 1) {
      continue;
    }
    std::optional<NormBetween> at = norm_between(copy, streams, scale.module);
    AffineExit exit;
    if (at) {
      at->norm.bias = false;  // which is zero
      exit = exit_of(copy, streams, *at);
    }
    if (exit.way == AffineExit::Way::none) {
      refuse_norm(scale.module, "nothing beside it can take its factor off");
    }
    const Stream& stream = streams.all[exit.way == AffineExit::Way::readers ? at->writes : at->reads];
    const Formula all = Formula::diagonal(Formula(fmt::format("repeated({}, {})", stream.width, 1 / factor)));
    for (const Port& port : stream.ports) {
      Weight& weight = model.weights.at(name_of(port.tensor));
      weight = mapped_along(weight, port, stream.width,
                            {all, {}, [factor](const at::Tensor& rows, const auto&) { return rows / factor; }});
    }
  }
}

// What the tensors that are written are where they do nothing.
std::vector<TensorSpec> neutral_specs(const Architecture& now, const Architecture& written) {
  const TensorTable table = tensor_table(written);
  std::vector<TensorSpec> specs(table.begin(), table.end());
  const std::map<ModuleId, double> gains = gains_put_back(now, written);
  for (TensorSpec& spec : specs) {
    if (const auto gain = gains.find(spec.id.module); gain != gains.end() && spec.id.kind == TensorKind::weight) {
      spec.initial += gain->second - 1;
    }
  }
  return specs;
}

// A LayerNorm takes the mean off: only what does not see it may read behind one.
void check_mean_unseen(const Model& model, const Streams& streams, const NormBetween& norm) {
  const Stream& stream = streams.all[norm.writes];
  if (stream.touches.size() != 1) {
    refuse_norm(norm.module, "more than matrices reads it");
  }
  for (const Port& port : stream.ports) {
    if (port.role == Role::writer || (model.architecture.head.tied && port.tensor == weight_of(token_table))) {
      refuse_norm(norm.module, "it would take the mean off the stream");
    }
    const at::Tensor rows = load_double(model.weights.at(name_of(port.tensor))).movedim(port.axis, -1);
    const at::Tensor read = rows.narrow(-1, port.begin, stream.width);
    constexpr double nothing = 1e-9;  // of a row: it was centred in float64
    if ((read.mean(-1).abs() > nothing * read.abs().amax(-1)).any().item<bool>()) {
      refuse_norm(norm.module, "it would take the mean off, which its readers see");
    }
  }
}

void check_put_back(const Model& model, const Architecture& now) {
  const std::map<ModuleId, double> gains = gains_put_back(now, model.architecture);
  const Streams streams = find_streams(model.architecture);
  for (const auto& [module, gain] : gains) {
    const bool of_heads = module.slot == Slot::query_norm || module.slot == Slot::key_norm;
    Architecture copy = model.architecture;
    const Norm norm = of_heads ? *copy.blocks[*module.block].attention.qk_norm : norm_place(copy, module).value();
    if (norm.kind == NormKind::scale) {
      continue;
    }
    if (!norm.gain) {
      refuse_norm(module, "it has no gain to make up for its epsilon");
    }
    if (norm.kind != NormKind::layer) {
      continue;
    }
    const std::optional<NormBetween> at = of_heads ? std::nullopt : norm_between(copy, streams, module);
    if (!at) {
      refuse_norm(module, "it would take the mean off each head");
    }
    check_mean_unseen(model, streams, *at);
  }
}

bool is_vector(const TensorSpec& spec) {
  return spec.part == Part::norm || spec.part == Part::bias;
}

at::Tensor neutral_value(const TensorSpec& spec) {
  return is_vector(spec) ? at::full(spec.shape, spec.initial, at::kDouble) : at::eye(spec.shape[0], at::kDouble);
}

bool is_neutral(const Weight& weight, const TensorSpec& spec) {
  const at::Tensor neutral = neutral_value(spec);
  // The first row of a large matrix nearly always decides.
  if (weight.can_load_rows() && !at::equal(weight.load_rows(0, 1).to(at::kDouble), neutral.narrow(0, 0, 1))) {
    return false;
  }
  return at::equal(load_double(weight), neutral);
}

}  // namespace

Model compatible(const Model& model, const Architecture& source) {
  Model result{.architecture = restored(model.architecture, source), .weights = model.weights};
  if (!model.has_weights()) {
    return result;
  }
  for (const ModuleId& module : unshrunk_modules(model.architecture, result.architecture)) {
    const std::string pivots = name_of(TensorId{module, TensorKind::pivot});
    Weight& weight = result.weights.at(name_of(weight_of(module)));
    weight = unshrunk(weight, result.weights.at(pivots));
    result.weights.erase(pivots);
  }
  for (const TensorSpec& spec : neutral_specs(model.architecture, result.architecture)) {
    if (result.weights.contains(spec.name)) {
      continue;
    }
    PARE_CHECK(is_vector(spec) || (spec.shape.size() == 2 && spec.shape[0] == spec.shape[1]),
               "only identities, gains and biases were removed, not " + spec.name);
    const Formula formula = is_vector(spec) ? fmt::format("{}", spec.initial) : "I";
    result.weights[spec.name] = computed(spec.shape, formula, {}, [=](const auto&) { return neutral_value(spec); });
  }
  take_off_factors(result, model.architecture);
  check_put_back(result, model.architecture);
  return result;
}

std::vector<StoredChange> compatible_changes(const Model& source, const Pipeline& pipeline) {
  std::vector<StoredChange> changes;
  std::set<std::string> neutral_already;
  int64_t stored = count(source.architecture).total;
  for (const PassStep& step : pipeline.steps) {
    const Architecture& now = step.proposal.after.architecture;
    const Architecture written = restored(now, source.architecture);
    const TensorTable present = tensor_table(now);
    StoredChange change{.saved = stored - count(written).total};
    for (const TensorSpec& spec : neutral_specs(now, written)) {
      if (!present.contains(spec.id) && neutral_already.insert(spec.name).second &&
          !is_neutral(source.weights.at(spec.name), spec)) {
        change.neutral += element_count(spec.shape);
      }
    }
    for (const ModuleId& module : unshrunk_modules(now, written)) {
      const std::string name = name_of(weight_of(module));
      if (neutral_already.insert(name).second) {
        change.neutral += new_in_block(now.blocks[*module.block].attention, source.weights.at(name));
      }
    }
    stored -= change.saved;
    changes.push_back(change);
  }
  return changes;
}

}  // namespace pare
