#include "pare/arch/norms.h"

namespace pare {

std::vector<PlacedNorm> norms_of(Architecture& a) {
  std::vector<PlacedNorm> norms;
  const auto add = [&norms](const ModuleId& module, std::optional<Norm>& norm) {
    if (norm) {
      norms.push_back({module, &*norm});
    }
  };
  add(in_embedding(Slot::norm), a.embedding.norm);
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    Block& block = a.blocks[static_cast<size_t>(n)];
    add(in_attention(n, Slot::norm), block.attention.norm);
    add(in_attention(n, Slot::output_norm), block.attention.output_norm);
    if (block.mlp) {
      add(in_mlp(n, Slot::norm), block.mlp->norm);
      add(in_mlp(n, Slot::output_norm), block.mlp->output_norm);
    }
  }
  add(final_norm, a.final_norm);
  if (a.head.transform) {
    add(in_head(Slot::transform_norm), a.head.transform->norm);
  }
  if (a.head.sequence && a.head.sequence->transform) {
    add(in_head(Slot::sequence_transform_norm), a.head.sequence->transform->norm);
  }
  return norms;
}

}  // namespace pare
