#include "pare/model/positions.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/support/error.h"

namespace pare {

namespace {

void check_last(const Architecture& a, int64_t last) {
  if (last >= a.context) {
    throw InputError(
        fmt::format("position {} is past the {} learned positions of the model: shorten the input", last, a.context));
  }
}

at::Tensor checked(const Architecture& a, const at::Tensor& positions) {
  if (a.embedding.position == Position::learned) {
    check_last(a, positions.max().item<int64_t>());
  }
  return positions;
}

}  // namespace

at::Tensor positions_for(const Architecture& a, const Inputs& inputs, const at::TensorOptions& options,
                         const Cache* cache) {
  if (inputs.positions.defined()) {
    return checked(a, inputs.positions);
  }
  const int64_t tokens = inputs.ids.defined() ? inputs.ids.size(1) : patch_positions(a);
  const std::optional<int64_t>& pad = a.embedding.position_pad;
  const bool continued = cache && cache->length > 0;
  if (!pad && !inputs.mask.defined() && !(continued && cache->mask.defined())) {
    const int64_t past = continued ? cache->length : 0;
    if (a.embedding.position == Position::learned) {
      check_last(a, past + tokens - 1);  // known: reading it back from a GPU would wait for all that is queued there
    }
    return at::arange(past, past + tokens, options).unsqueeze(0);
  }
  at::Tensor before = at::zeros({1, 1}, options);
  if (continued) {
    const at::Tensor counted = cache->positions >= 0;
    before = (cache->mask.defined() ? counted & cache->mask : counted).sum(1, true);
  }
  const at::Tensor mask =
      inputs.mask.defined() ? inputs.mask : at::ones({before.size(0), tokens}, options.dtype(at::kBool));
  if (!pad) {
    return checked(a, (mask.cumsum(1) + before - 1).clamp_min(0));
  }
  const at::Tensor pads = inputs.ids == *pad;
  return checked(a, ((mask & ~pads).cumsum(1) + before - 1).clamp_min(0).masked_fill(pads, -1));
}

}  // namespace pare
