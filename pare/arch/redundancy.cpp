#include "pare/arch/redundancy.h"

#include <algorithm>

#include "pare/arch/head.h"
#include "pare/arch/redundancy_tally.h"
#include "pare/support/error.h"

namespace pare {

namespace {

const char* words_of(Symmetry symmetry) {
  switch (symmetry) {
    case Symmetry::stream_basis:
      return "any basis of a stream";
    case Symmetry::stream_rotation:
      return "rotation of a stream";
    case Symmetry::norm_gain:
      return "gain folds into readers";
    case Symmetry::norm_scale:
      return "scale before a DyT";
    case Symmetry::value_output:
      return "value-output gauge";
    case Symmetry::query_key:
      return "query-key gauge";
    case Symmetry::qk_norm_gain:
      return "gains of queries and keys";
    case Symmetry::mlp_scaling:
      return "scale of a neuron";
    case Symmetry::key_bias:
      return "key bias";
    case Symmetry::value_bias:
      return "value bias";
    case Symmetry::table_shift:
      return "constant between tables";
    case Symmetry::stream_shift:
      return "constant of a stream";
    case Symmetry::layer_norm_means:
      return "mean before a LayerNorm";
    case Symmetry::layer_norm_ones:
      return "mean after a LayerNorm";
    case Symmetry::unread_rows:
      return "rows nobody reads";
  }
  PARE_UNREACHABLE("a symmetry without a name");
}

// What sees so little that parameters are left which no symmetry explains.
void refuse_blindness(Tally& tally, const Architecture& a) {
  for (const Block& block : a.blocks) {
    if (block.attention.window == 1 || a.context == 1) {
      tally.cannot("a token that sees only itself: its query and key do nothing");
    }
    if (block.attention.mask == Mask::causal && a.head.pool == Pool::first && answers_sequences(a)) {
      tally.cannot("the first token answers, and sees only itself");
    }
  }
}

}  // namespace

Redundancy Tally::result() const {
  Redundancy found;
  for (const auto& [symmetry, counted] : counts_) {
    found.symmetries.push_back({words_of(symmetry), counted.places, counted.parameters});
    found.total += counted.parameters;
  }
  found.undetermined.assign(reasons_.begin(), reasons_.end());
  return found;
}

Redundancy redundancy(const Architecture& architecture) {
  Tally tally;
  const Places places = find_places(architecture);
  refuse_blindness(tally, architecture);
  count_bases(tally, architecture);
  count_heads(tally, architecture, places);
  count_mlps(tally, architecture);
  count_constants(tally, architecture, places);
  return tally.result();
}

}  // namespace pare
