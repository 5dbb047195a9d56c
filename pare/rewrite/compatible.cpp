#include "pare/rewrite/compatible.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <set>

#include "pare/algebra/operations.h"
#include "pare/arch/count.h"
#include "pare/arch/tensors.h"
#include "pare/support/error.h"

namespace pare {

namespace {

void restore(Projection& now, const Projection& source) {
  if (now.kind == ProjectionKind::identity) {
    now = source;
  }
}

void restore(std::optional<Norm>& now, const std::optional<Norm>& source) {
  if (now && source) {
    now->gain = source->gain;
    now->bias = source->bias;
    now->offset = source->offset;
  }
}

// What the source had and the result does without is put back, as something that does nothing.
Architecture restored(Architecture now, const Architecture& source) {
  std::vector<Block> blocks = expanded_blocks(now);
  const std::vector<Block> before = expanded_blocks(source);
  PARE_CHECK(blocks.size() == before.size(), "passes keep the blocks");
  for (size_t n = 0; n < blocks.size(); ++n) {
    Attention& t = blocks[n].attention;
    const Attention& s = before[n].attention;
    restore(t.query, s.query);
    restore(t.key, s.key);
    restore(t.value, s.value);
    restore(t.output, s.output);
    t.bias.query |= s.bias.query;
    t.bias.key |= s.bias.key;
    t.bias.value |= s.bias.value;
    t.bias.output |= s.bias.output;
    restore(t.norm, s.norm);
    restore(t.output_norm, s.output_norm);
    if (blocks[n].mlp) {
      restore(blocks[n].mlp->norm, before[n].mlp->norm);
      restore(blocks[n].mlp->output_norm, before[n].mlp->output_norm);
    }
  }
  // A family may read more from how the source lists its blocks than how many there are (ALBERT's groups).
  const bool alike = folded_blocks(blocks) == folded_blocks(before);
  now.blocks = alike ? source.blocks : folded_blocks(blocks);
  restore(now.embedding.norm, source.embedding.norm);
  restore(now.final_norm, source.final_norm);
  if (now.head.transform) {
    restore(now.head.transform->norm, source.head.transform->norm);
  }
  if (now.head.sequence && now.head.sequence->transform) {
    restore(now.head.sequence->transform->norm, source.head.sequence->transform->norm);
  }
  return now;
}

bool is_vector(const TensorSpec& spec) {
  return spec.part == Part::norm || spec.part == Part::bias;
}

at::Tensor neutral_value(const TensorSpec& spec) {
  return is_vector(spec) ? at::full(spec.shape, spec.rest, at::kDouble) : at::eye(spec.shape[0], at::kDouble);
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
  for (const TensorSpec& spec : tensor_table(result.architecture)) {
    if (result.weights.contains(spec.name)) {
      continue;
    }
    PARE_CHECK(is_vector(spec) || (spec.shape.size() == 2 && spec.shape[0] == spec.shape[1]),
               "only identities, gains and biases were removed, not " + spec.name);
    const Formula formula = is_vector(spec) ? fmt::format("{}", spec.rest) : "I";
    result.weights[spec.name] = computed(spec.shape, formula, {}, [=](const auto&) { return neutral_value(spec); });
  }
  return result;
}

std::vector<StoredChange> compatible_changes(const Model& source, const Pipeline& pipeline) {
  std::vector<StoredChange> changes;
  std::set<std::string> neutral_already;
  int64_t stored = count(source.architecture).total;
  for (const PassStep& step : pipeline.steps) {
    const Architecture& now = step.proposal.after.architecture;
    const Architecture written = restored(now, source.architecture);
    std::set<std::string> present;
    for (const TensorSpec& spec : tensor_table(now)) {
      present.insert(spec.name);
    }
    StoredChange change{.saved = stored - count(written).total};
    for (const TensorSpec& spec : tensor_table(written)) {
      if (!present.contains(spec.name) && neutral_already.insert(spec.name).second &&
          !is_neutral(source.weights.at(spec.name), spec)) {
        change.neutral += element_count(spec.shape);
      }
    }
    stored -= change.saved;
    changes.push_back(change);
  }
  return changes;
}

}  // namespace pare
