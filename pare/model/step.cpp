#include "pare/model/step.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/support/error.h"

namespace pare {

Step::Step(Positions positions, at::Tensor mask, const Tables& tables, Cache* cache, Taps* taps)
    : positions_(std::move(positions)), all_mask_(std::move(mask)), tables_(&tables), cache_(cache), taps_(taps) {
  all_positions_ = positions_;
  if (!cache_) {
    return;
  }
  if (placed()) {
    PARE_CHECK(positions_.at.size(1) == 1 && !all_mask_.defined() && !cache_->mask.defined(), "one token, no padding");
    all_positions_ = tables.counted(0, cache_->capacity);
    return;
  }
  past_ = cache_->length;
  const int64_t tokens = positions_.at.size(1), all = past_ + tokens;
  if (past_ > 0) {
    const Positions before = cache_->positions.defined() ? Positions{cache_->positions, {}} : tables.counted(0, past_);
    const bool plain = before.first && positions_.first == past_;
    all_positions_ = plain ? tables.counted(0, all) : Positions{joined(before.at, positions_.at), {}};
    if (all_mask_.defined() || cache_->mask.defined()) {
      all_mask_ = joined(cache_->mask.defined() ? cache_->mask : at::ones_like(before.at, at::kBool),
                         all_mask_.defined() ? all_mask_ : at::ones_like(positions_.at, at::kBool));
    }
  }
  if (cache_->capacity < all) {
    cache_->capacity = std::max(2 * cache_->capacity, all);
  }
}

at::Tensor Step::extended(at::Tensor& stored, const at::Tensor& fresh) const {
  if (!placed()) {
    return append(stored, fresh, past_, cache_->capacity);
  }
  PARE_CHECK(stored.defined() && stored.size(2) == cache_->capacity, "room for all tokens");
  return stored.index_copy_(2, cache_->place, fresh);
}

at::Tensor Step::at_hand(const at::Tensor& all) const {
  return placed() ? all.index_select(2, cache_->place) : all.narrow(2, past_, positions_.at.size(1));
}

const Visibility& Step::visibility(Mask mask, const std::optional<int64_t>& window) {
  const int64_t queries = positions_.at.size(1), keys = placed() ? cache_->capacity : past_ + queries;
  const bool windowed = window && *window < keys;
  const std::pair<Mask, int64_t> kind{mask, windowed ? *window : 0};
  if (const auto known = visibilities_.find(kind); known != visibilities_.end()) {
    return known->second;
  }
  Visibility& made = visibilities_[kind];
  if (placed()) {
    const at::Tensor behind = positions_.at - all_positions_.at;  // [1, keys]
    made.allowed = (windowed ? (behind >= 0) & (behind < *window) : behind >= 0).view({1, 1, 1, keys});
    return made;
  }
  const bool sees_all = mask == Mask::full || queries == 1;  // one query at the end sees whatever came before
  if (!windowed && !all_mask_.defined() && (sees_all || past_ == 0)) {
    made.causal_only = !sees_all;
    return made;
  }
  const at::Tensor row = tables_->counted(past_, queries).at.t(), column = tables_->counted(0, keys).at;
  at::Tensor allowed = mask == Mask::causal ? column <= row : column >= 0;
  allowed = allowed.unsqueeze(0);
  if (windowed) {  // in positions, not places: padding in between does not count
    allowed = allowed & ((positions_.at.unsqueeze(2) - all_positions_.at.unsqueeze(1)).abs() < *window);
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
    longest_ = end_of(all_positions_);
  }
  turns_.push_back({rope, all, tables_->turn(rope, all ? all_positions_ : positions_, longest_)});
  return turns_.back().turn;
}

const at::Tensor& Step::gate_positions(int64_t width) {
  if (!gate_positions_.defined()) {
    gate_positions_ = tables_->sinusoidal(positions_, width);
  }
  return gate_positions_;
}

const at::Tensor& Step::distances(at::ScalarType dtype) {
  if (!distances_.defined()) {
    distances_ = (all_positions_.at.unsqueeze(1) - positions_.at.unsqueeze(2)).unsqueeze(1).to(dtype);
  }
  return distances_;
}

void Step::remember() {
  if (placed()) {
    cache_->place.add_(1);
  } else if (cache_) {
    cache_->length = all_positions_.at.size(1);
    cache_->positions = all_positions_.first ? at::Tensor() : all_positions_.at;
    cache_->mask = all_mask_;
  }
}

}  // namespace pare
