#include "pare/model/tables.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pare/model/cache.h"
#include "pare/model/executor.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// Whoever asks first may be in inference mode, and whoever asks next may be training.
struct MakingConstants {
  c10::InferenceMode off{false};
  at::NoGradGuard no_grad;
};

// How long a table becomes that is too short for `needed`: doubling makes growing cheap, however far one counts.
int64_t grown(const at::Tensor& table, int64_t dimension, int64_t needed) {
  constexpr int64_t smallest = 64;
  return std::max({needed, smallest, table.defined() ? 2 * table.size(dimension) : 0});
}

bool too_short(const at::Tensor& table, int64_t dimension, int64_t needed) {
  return !table.defined() || table.size(dimension) < needed;
}

// Press et al.: a geometric series over the next lower power of two, and every second one of the next for the rest.
std::vector<double> slopes_of(int64_t heads, double steepest) {
  const int64_t power = int64_t{1} << static_cast<int64_t>(std::floor(std::log2(static_cast<double>(heads))));
  const double base = std::exp2(-steepest / static_cast<double>(power));
  const double finer = std::exp2(-steepest / 2 / static_cast<double>(power));
  std::vector<double> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    slopes.push_back(h < power ? std::pow(base, static_cast<double>(h + 1))
                               : std::pow(finer, static_cast<double>(2 * (h - power) + 1)));
  }
  return slopes;
}

at::Tensor moved(const std::vector<double>& values, at::Device device) {
  return at::tensor(values, at::kDouble).to(device);
}

at::Tensor numbers_below(int64_t end, at::Device device) {  // int64 [1, end]
  return at::arange(end, at::TensorOptions(at::kLong).device(device)).unsqueeze(0);
}

Positions checked(const Architecture& a, Positions positions) {
  if (a.embedding.position != Position::learned) {
    return positions;
  }
  const int64_t last = end_of(positions) - 1;
  refuse_if(last >= a.context, "position {} is past the {} learned positions of the model: shorten the input", last,
            a.context);
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
  if (cache && cache->place.defined()) {
    return {cache->place.view({1, 1}), std::nullopt};
  }
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

Positions Tables::counted(int64_t first, int64_t count) const {
  const std::lock_guard lock(growing_);
  const MakingConstants making;
  if (too_short(counted_, 1, first + count)) {
    counted_ = numbers_below(grown(counted_, 1, first + count), arithmetic_.device);
  }
  return {counted_.narrow(1, first, count), first};
}

at::Tensor Tables::triangle(int64_t size) const {
  const std::lock_guard lock(growing_);
  const MakingConstants making;
  if (too_short(triangle_, 0, size)) {  // to the size asked for: doubled, it would take four times the memory
    triangle_ = at::ones({size, size}, at::TensorOptions(at::kBool).device(arithmetic_.device)).tril();
  }
  return triangle_.narrow(0, 0, size).narrow(1, 0, size);
}

at::Tensor Tables::alibi_slopes(int64_t heads, double steepest) const {
  const std::lock_guard lock(growing_);
  const MakingConstants making;
  at::Tensor& slopes = slopes_[{heads, steepest}];
  if (!slopes.defined()) {
    const bool narrow = arithmetic_.dtype == at::kHalf || arithmetic_.dtype == at::kBFloat16;
    slopes = moved(slopes_of(heads, steepest), arithmetic_.device).to(narrow ? at::kFloat : arithmetic_.dtype);
    slopes = slopes.view({1, heads, 1, 1});
  }
  return slopes;
}

Tables::Angles& Tables::angles_of(const Rope& rope, int64_t length) const {
  auto found = std::ranges::find(angles_, rope, &Angles::rope);
  if (found != angles_.end() && !depends_on_length(rope)) {
    return *found;
  }
  std::vector<double> frequencies = rope_frequencies(rope, length);
  if (found == angles_.end()) {
    found = angles_.insert(angles_.end(), Angles{.rope = rope});
  }
  if (found->frequencies != frequencies) {
    found->on_device = moved(frequencies, arithmetic_.device);
    found->frequencies = std::move(frequencies);
    found->table = {};
  }
  return *found;
}

Turn Tables::turn(const Rope& rope, const Positions& positions, int64_t length) const {
  const std::lock_guard lock(growing_);
  const MakingConstants making;
  Angles& angles = angles_of(rope, length);
  if (!positions.first) {
    return turn_at(rope, angles.on_device, positions.at, arithmetic_.dtype);
  }
  const int64_t tokens = positions.at.size(1), end = *positions.first + tokens;
  if (too_short(angles.table.cosine, 2, end)) {
    const at::Tensor all = numbers_below(grown(angles.table.cosine, 2, end), arithmetic_.device);
    angles.table = turn_at(rope, angles.on_device, all, arithmetic_.dtype);
  }
  return {angles.table.cosine.narrow(2, *positions.first, tokens),
          angles.table.sine.narrow(2, *positions.first, tokens)};
}

at::Tensor Tables::sinusoidal(const Positions& positions, int64_t width, Position kind) const {
  const std::lock_guard lock(growing_);
  const MakingConstants making;
  Waves& waves = waves_[{width, kind}];
  if (!waves.frequencies.defined()) {
    waves.frequencies = moved(sinusoidal_frequencies(width, kind), arithmetic_.device);
  }
  if (!positions.first) {
    return sinusoidal_at(waves.frequencies, positions.at, width, arithmetic_.dtype, kind);
  }
  const int64_t tokens = positions.at.size(1), end = *positions.first + tokens;
  if (too_short(waves.table, 1, end)) {
    const at::Tensor all = numbers_below(grown(waves.table, 1, end), arithmetic_.device);
    waves.table = sinusoidal_at(waves.frequencies, all, width, arithmetic_.dtype, kind);
  }
  return waves.table.narrow(1, *positions.first, tokens);
}

}  // namespace pare
