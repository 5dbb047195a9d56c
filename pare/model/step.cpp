#include "pare/model/step.h"

#include <ATen/ATen.h>

#include "pare/support/error.h"

namespace pare {

Step::Step(at::Tensor positions, at::Tensor mask, at::ScalarType dtype, Cache* cache, Taps* taps)
    : positions_(std::move(positions)), dtype_(dtype), cache_(cache), taps_(taps) {
  all_positions_ = positions_;
  all_mask_ = std::move(mask);
  if (cache_ && cache_->length > 0) {
    past_ = cache_->length;
    all_positions_ = at::cat({cache_->positions, positions_}, 1);
    if (all_mask_.defined() || cache_->mask.defined()) {
      const at::Tensor before = cache_->mask.defined() ? cache_->mask : at::ones_like(cache_->positions, at::kBool);
      const at::Tensor now = all_mask_.defined() ? all_mask_ : at::ones_like(positions_, at::kBool);
      all_mask_ = at::cat({before, now}, 1);
    }
  }
  if (cache_ && cache_->capacity < all_positions_.size(1)) {
    cache_->capacity = std::max(2 * cache_->capacity, all_positions_.size(1));
  }
}

const Visibility& Step::visibility(Mask mask, const std::optional<int64_t>& window) {
  const int64_t queries = positions_.size(1), keys = all_positions_.size(1);
  const bool windowed = window && *window < keys;
  const std::pair<Mask, int64_t> kind{mask, windowed ? *window : 0};
  if (const auto known = visibilities_.find(kind); known != visibilities_.end()) {
    return known->second;
  }
  Visibility& made = visibilities_[kind];
  const bool sees_all = mask == Mask::full || queries == 1;  // one query at the end sees whatever came before
  if (!windowed && !all_mask_.defined() && (sees_all || past_ == 0)) {
    made.causal_only = !sees_all;
    return made;
  }
  const at::TensorOptions options = positions_.options().dtype(at::kLong);
  const at::Tensor row = at::arange(past_, keys, options).unsqueeze(1), column = at::arange(keys, options).unsqueeze(0);
  at::Tensor allowed = mask == Mask::causal ? column <= row : at::ones({queries, keys}, options.dtype(at::kBool));
  allowed = allowed.unsqueeze(0);
  if (windowed) {  // in positions, not places: padding in between does not count
    allowed = allowed & ((positions_.unsqueeze(2) - all_positions_.unsqueeze(1)).abs() < *window);
  }
  if (all_mask_.defined()) {
    // A padded query sees itself: its answer means nothing, but it must not be NaN, which would spread.
    allowed = (allowed & all_mask_.unsqueeze(1)) | (row == column).unsqueeze(0);
  }
  made.allowed = allowed.unsqueeze(1);
  return made;
}

const Turn& Step::turn(const Rope& rope, bool all) {
  for (const Turned& known : turns_) {
    if (known.all == all && known.rope == rope) {
      return known.turn;
    }
  }
  if (longest_ == 0 && depends_on_length(rope)) {
    longest_ = all_positions_.max().item<int64_t>() + 1;
  }
  turns_.push_back({rope, all, turn_for(rope, all ? all_positions_ : positions_, longest_, dtype_)});
  return turns_.back().turn;
}

const at::Tensor& Step::gate_positions(int64_t width) {
  if (!gate_positions_.defined()) {
    gate_positions_ = sinusoidal_positions(positions_, width, dtype_);
  }
  return gate_positions_;
}

void Step::remember() {
  if (cache_) {
    cache_->length = all_positions_.size(1);
    cache_->positions = all_positions_;
    cache_->mask = all_mask_;
  }
}

}  // namespace pare
