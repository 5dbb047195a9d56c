#include "pare/arch/norms.h"

#include <utility>

#include "pare/support/error.h"

namespace pare {

// Every place that may have a norm.
static std::vector<std::pair<ModuleId, std::optional<Norm>*>> places_of(Architecture& a) {
  std::vector<std::pair<ModuleId, std::optional<Norm>*>> places;
  const auto add = [&places](const ModuleId& module, std::optional<Norm>& norm) { places.emplace_back(module, &norm); };
  add(in_embedding(Slot::norm), a.embedding.norm);
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    Block& block = a.blocks[n];
    add(in_attention(n, Slot::norm), block.attention.norm);
    add(in_attention(n, Slot::output_norm), block.attention.output_norm);
    if (block.mlp) {
      add(in_mlp(n, Slot::norm), block.mlp->norm);
      add(in_mlp(n, Slot::output_norm), block.mlp->output_norm);
    }
  }
  add(final_norm, a.final_norm);
  add(in_head(Slot::pool_norm), a.head.pool_norm);
  if (a.head.attention_pool) {
    add(in_head(Slot::pool_mlp_norm), a.head.attention_pool->norm);
  }
  if (a.head.transform) {
    add(in_head(Slot::transform_norm), a.head.transform->norm);
  }
  if (a.head.sequence && a.head.sequence->transform) {
    add(in_head(Slot::sequence_transform_norm), a.head.sequence->transform->norm);
  }
  return places;
}

std::vector<PlacedNorm> norms_of(Architecture& architecture) {
  std::vector<PlacedNorm> norms;
  for (const auto& [module, norm] : places_of(architecture)) {
    if (*norm) {
      norms.push_back({module, &**norm});
    }
  }
  return norms;
}

std::optional<Norm>& norm_place(Architecture& architecture, const ModuleId& module) {
  for (const auto& [place, norm] : places_of(architecture)) {
    if (place == module) {
      return *norm;
    }
  }
  PARE_UNREACHABLE("no norm stands at " + name_of(module));
}

}  // namespace pare
