// The order of the passes. A pass is found by its file; its place in this list is where it loses nothing.

#include "pare/passes/pass.h"
#include "pare/support/error.h"

namespace pare {

namespace {

struct Place {
  std::string_view id, reason;
};

constexpr Place order[] = {
    {"fold_norm_gain", "while the biases that take a norm's are there"},
    {"drop_key_bias", "after a norm's bias was folded into it"},
    {"fold_value_bias", "while the output matrix is there"},
    {"merge_skipless", "takes pairs of matrices, of which the next would take one"},
    {"eliminate_projection", "takes what merge_skipless leaves"},
};

const Pass& pass_at(const Place& place) {
  for (const Pass* pass : passes_by_file()) {
    if (pass->id == place.id) {
      return *pass;
    }
  }
  PARE_UNREACHABLE("the order names a pass that has no file: " + std::string(place.id));
}

std::vector<const Pass*> in_order() {
  std::vector<const Pass*> passes;
  for (const Place& place : order) {
    passes.push_back(&pass_at(place));
  }
  PARE_CHECK(passes.size() == passes_by_file().size(), "every file of pare/passes has a place in the order");
  return passes;
}

}  // namespace

const std::vector<const Pass*>& all_passes() {
  static const std::vector<const Pass*> passes = in_order();
  return passes;
}

}  // namespace pare
