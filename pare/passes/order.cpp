// The order of the passes. A pass is found by its file; its place in this list is where it loses nothing.

#include <algorithm>

#include "pare/passes/pass.h"
#include "pare/support/error.h"

namespace pare {

namespace {

struct Place {
  std::string_view id, reason;
};

constexpr Place order[] = {
    {"fold_constant_norm", "what is no norm is in nobody's way, and its readers have their biases still"},
    {"fold_norm_gain", "while the biases that take a norm's are there"},
    {"center_layer_norm", "after gains and biases of both kinds of norms are gone, before what needs RMSNorms"},
    {"drop_key_bias", "after a norm's bias was folded into it"},
    {"fold_value_bias", "while the output matrix is there"},
    {"absorb_skip", "frees streams for the next two"},
    {"merge_skipless", "takes pairs of matrices, of which the next would take one"},
    {"eliminate_projection", "takes what merge_skipless leaves"},
    {"collapse_heads", "takes more of a pair than shrink_head_pairs, where it saves"},
    {"rotate_residual", "before shrunk matrices, which have no other basis"},
    {"shrink_head_pairs", "leaves matrices that have no other basis, so after all that change one"},
    {"cache_keys_only", "saves no parameter, so what does goes first"},
    {"gauge_heads", "after everything that changes a head: what is canonical should stay so"},
    {"lower_mlp_to_heads", "after all that changes dense MLPs"},
    {"precompute_first_layer", "last: nothing folds into what a table holds"},
};

std::vector<const Pass*> in_order() {
  std::vector<const Pass*> passes, found = passes_by_file();
  for (const Place& place : order) {
    const auto pass = std::ranges::find_if(found, [&](const Pass* p) { return p->id == place.id; });
    PARE_CHECK(pass != found.end(),
               "no file of pare/passes is left for this line of the order: " + std::string(place.id));
    passes.push_back(*pass);
    found.erase(pass);
  }
  PARE_CHECK(found.empty(), "a pass without a place in the order: " + std::string(found.front()->id));
  return passes;
}

}  // namespace

const std::vector<const Pass*>& all_passes() {
  static const std::vector<const Pass*> passes = in_order();
  return passes;
}

}  // namespace pare
