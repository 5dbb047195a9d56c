#include "pare/model/positions.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/support/error.h"

namespace pare {

at::Tensor positions_for(const Architecture& a, const Inputs& inputs, const at::TensorOptions& options,
                         const Cache* cache) {
  if (inputs.positions.defined()) {
    return inputs.positions;
  }
  const int64_t tokens = inputs.ids.defined() ? inputs.ids.size(1) : patch_positions(a);
  const std::optional<int64_t>& pad = a.embedding.position_pad;
  const bool continued = cache && cache->length > 0;
  if (!pad && !inputs.mask.defined() && !(continued && cache->mask.defined())) {
    const int64_t past = continued ? cache->length : 0;
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
    return (mask.cumsum(1) + before - 1).clamp_min(0);
  }
  const at::Tensor pads = inputs.ids == *pad;
  return ((mask & ~pads).cumsum(1) + before - 1).clamp_min(0).masked_fill(pads, -1);
}

void check_positions(const Architecture& a, const at::Tensor& positions) {
  if (a.embedding.position != Position::learned) {
    return;
  }
  const int64_t last = positions.max().item<int64_t>();
  if (last >= a.context) {
    throw InputError(
        fmt::format("position {} is past the {} learned positions of the model: shorten the input", last, a.context));
  }
}

}  // namespace pare
