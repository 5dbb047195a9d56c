#include "pare/model/positions.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/model/cache.h"
#include "pare/model/executor.h"
#include "pare/model/tables.h"
#include "pare/support/error.h"

namespace pare {

namespace {

Positions checked(const Architecture& a, Positions positions) {
  if (a.embedding.position != Position::learned) {
    return positions;
  }
  const int64_t last = end_of(positions) - 1;
  if (last >= a.context) {
    throw InputError(
        fmt::format("position {} is past the {} learned positions of the model: shorten the input", last, a.context));
  }
  return positions;
}

// How many real tokens of each row are remembered: int64 [batch or 1, 1].
at::Tensor counted_before(const Cache& cache, const at::TensorOptions& options) {
  if (!cache.positions.defined()) {
    return at::full({1, 1}, cache.length, options);
  }
  const at::Tensor counted = cache.positions >= 0;
  return (cache.mask.defined() ? counted & cache.mask : counted).sum(1, true);
}

}  // namespace

int64_t end_of(const Positions& positions) {
  return positions.first ? *positions.first + positions.at.size(1) : positions.at.max().item<int64_t>() + 1;
}

Positions positions_for(const Architecture& a, const Inputs& inputs, const Tables& tables, const Cache* cache) {
  if (inputs.positions.defined()) {
    return checked(a, {inputs.positions, std::nullopt});
  }
  const int64_t tokens = inputs.ids.defined() ? inputs.ids.size(1) : patch_positions(a);
  const int64_t past = cache ? cache->length : 0;
  const std::optional<int64_t>& pad = a.embedding.position_pad;
  if (!pad && !inputs.mask.defined() && !(past > 0 && cache->mask.defined())) {
    return checked(a, tables.counted(past, tokens));
  }
  const at::TensorOptions integers = at::TensorOptions(at::kLong).device(tables.arithmetic().device);
  const at::Tensor before = past > 0 ? counted_before(*cache, integers) : at::zeros({1, 1}, integers);
  const at::Tensor mask =
      inputs.mask.defined() ? inputs.mask : at::ones({before.size(0), tokens}, integers.dtype(at::kBool));
  Positions counted;
  if (pad) {
    const at::Tensor pads = inputs.ids == *pad;
    counted.at = ((mask & ~pads).cumsum(1) + before - 1).clamp_min(0).masked_fill(pads, -1);
  } else {
    counted.at = (mask.cumsum(1) + before - 1).clamp_min(0);
  }
  // Nobody is counted further than there are tokens: most of the time the device need not be asked.
  return past + tokens <= a.context ? counted : checked(a, counted);
}

}  // namespace pare
