#include "pare/verify/stored_tally.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>

#include "pare/proof/rounded.h"

namespace pare {

namespace {

// Of a number that a converter rounded to bfloat16 before it was quantised: one spacing.
constexpr double passed_bfloat16 = 1.0 / 256;
// Of the largest of a group, where somebody merged an adapter, in bfloat16 perhaps: its product, its scale and the sum
// of either neighbour were rounded.
constexpr double merged_bfloat16 = 8.0 / 256;

at::Tensor as_stored(const Weight& weight, const RowSlice& slice) {
  return (slice.whole ? weight.load() : weight.load_rows(slice.begin, slice.count)).contiguous();
}

at::Tensor loaded(const Weight& weight, const RowSlice& slice) {
  return as_stored(weight, slice).to(at::kDouble);
}

// The numbers of one slice of one side, and what its blocks allow; each [entries].
struct Numbers {
  at::Tensor value, step, low, high, within, outside, moved, group;
  bool in_blocks = false;
};

Numbers numbers_of(const StoredSide& side, const RowSlice& slice) {
  Numbers numbers;
  numbers.value = loaded(side.weight, slice).flatten();
  if (side.added != 0) {
    numbers.value = numbers.value + side.added;
  }
  if (!side.range) {
    return numbers;
  }
  const auto fact = [&](const Weights& weights) { return as_stored(weights.at(side.name), slice).flatten(); };
  numbers.group = fact(side.range->group);
  const int64_t entries = numbers.value.numel();
  // Elements that stand alone have groups of their own, so there are as many numbers as elements.
  numbers.in_blocks =
      entries > 1 && (numbers.group.max() - numbers.group.min()).item<double>() + 1 < static_cast<double>(entries);
  if (numbers.in_blocks) {
    const auto range = [&](const Weights& weights) { return fact(weights).to(at::kFloat); };
    numbers.step = range(side.range->step);
    numbers.low = range(side.range->low);
    numbers.high = range(side.range->high);
    numbers.within = range(side.range->within);
    numbers.outside = range(side.range->outside);
    numbers.moved = range(side.range->moved);
  }
  return numbers;
}

// What one entry of a group is stored as, and between which ends the number lies that it was made of.
struct Placed {
  double stored = 0, least = 0, most = 0;
  auto operator<=>(const Placed&) const = default;
};

// Sorted by what is stored, numbers must not decrease, by more than this slack.
bool keeps_order(std::vector<Placed>& entries, double slack) {
  std::ranges::sort(entries, [](const Placed& a, const Placed& b) { return a < b; });
  double before = -INFINITY;
  for (const Placed& entry : entries) {
    if (entry.most < before - slack) {
      return false;
    }
    before = std::max(before, entry.least);
  }
  return true;
}

// Where each run of equal numbers begins, and the end.
std::vector<int64_t> runs_of(const at::Tensor& group) {
  const double* const numbers = group.const_data_ptr<double>();
  std::vector<int64_t> runs;
  for (int64_t i = 0; i < group.numel(); ++i) {
    if (i == 0 || numbers[i] != numbers[i - 1]) {
      runs.push_back(i);
    }
  }
  runs.push_back(group.numel());
  return runs;
}

// What the blocks of one side say of one entry, in float64.
class Ranges {
 public:
  Ranges(const Numbers& numbers, double added)
      : step_(numbers.step.const_data_ptr<float>()),
        low_(numbers.low.const_data_ptr<float>()),
        high_(numbers.high.const_data_ptr<float>()),
        within_(numbers.within.const_data_ptr<float>()),
        outside_(numbers.outside.const_data_ptr<float>()),
        moved_(numbers.moved.const_data_ptr<float>()),
        added_(added) {}

  double step(int64_t i) const { return step_[i]; }
  double within(int64_t i) const { return within_[i]; }
  double outside(int64_t i) const { return outside_[i]; }
  double moved(int64_t i) const { return moved_[i]; }
  double farthest_end(int64_t i) const { return std::max(std::abs(low_[i] + added_), std::abs(high_[i] + added_)); }
  double width(int64_t i) const { return static_cast<double>(high_[i]) - low_[i]; }
  // How far a number lies beyond the ends; 0 between them.
  double beyond(int64_t i, double number) const {
    return std::max({low_[i] + added_ - number, number - (high_[i] + added_), 0.0});
  }
  // How far below what is stored, and how far above it, the number can have been: only what is stored as an end may
  // have been clipped.
  double below(int64_t i, double stored) const { return stored <= low_[i] + added_ ? outside_[i] : within_[i]; }
  double above(int64_t i, double stored) const { return stored >= high_[i] + added_ ? outside_[i] : within_[i]; }

 private:
  const float *step_, *low_, *high_, *within_, *outside_, *moved_;
  double added_;
};

// The same numbers in another order.
Numbers ordered(const Numbers& numbers, const at::Tensor& order) {
  Numbers sorted = numbers;
  for (at::Tensor* fact : {&sorted.value, &sorted.step, &sorted.low, &sorted.high, &sorted.within, &sorted.outside,
                           &sorted.moved, &sorted.group}) {
    *fact = fact->index_select(0, order);
  }
  return sorted;
}

// Some neighbours, and whether what is stored of them is the numbers times 1: a mistake in few rows is lost in the sums
// of a tensor. What was clipped by more than half a step says nothing of that.
struct Stretch {
  static constexpr int64_t usual = 256;  // entries
  int64_t counted = 0;
  double numbers = 0, stored = 0, product = 0;  // sums of squares, and of products
  double steps = 0, halves = 0, moved = 0;      // squared steps; products with half a step; squared roundings of scales
  bool coarse = true;                           // four levels

  void add(const Ranges& blocks, int64_t i, double number, double value, double other_step, double other_moved) {
    if (blocks.beyond(i, number) > blocks.step(i) / 2) {
      return;
    }
    ++counted;
    const double step = blocks.step(i) + other_step, lost = blocks.moved(i) + other_moved;
    numbers += number * number, stored += value * value, product += number * value;
    steps += step * step, halves += std::abs(value) * step / 2, moved += lost * lost;
    constexpr double few_steps = 4;
    coarse = coarse && blocks.width(i) < few_steps * blocks.step(i);
  }

  // Quantisers of ggml that weigh entries as differently as can be were seen to reach 0.8 of either limit.
  bool is_other() const {
    constexpr int64_t enough = 64;
    constexpr double rounding = 1.0 / 512;
    const double difference = numbers - 2 * product + stored;
    if (counted < enough || difference <= moved || stored == 0) {
      return false;
    }
    const double across = std::max(0.0, numbers - product * product / stored);
    const double tangent = product > 0 ? std::sqrt(across * stored) / product : INFINITY;
    if (tangent > (coarse ? 3 : 1.5)) {
      return across > steps + moved;
    }
    const double by_angle = (coarse ? 1.5 : 3) * tangent, by_steps = halves / stored;
    return std::abs(std::log(product / stored)) > std::max(by_angle, by_steps) + rounding + std::sqrt(moved / stored);
  }
};

// What is asked of groups of neighbours, in the order of the file. Of an exact side whose numbers are in blocks too, it
// is only known between which ends they were.
class Groups {
 public:
  Groups(const StoredSide& exact_side, const Numbers& exact, const StoredSide& side, const Numbers& blocks)
      : numbers_(exact),
        blocks_(blocks),
        slack_(exact_side.merged ? merged_bfloat16 : 0),
        added_(side.added),
        exact_added_(exact_side.added) {
    runs_ = runs_of(blocks_.group);
    constexpr int64_t smallest_group = 16;
    if (std::ssize(runs_) - 1 > blocks_.group.numel() / smallest_group) {  // neighbours in the file are none here
      const at::Tensor order = blocks_.group.argsort(/*stable=*/true, 0, false);
      blocks_ = ordered(blocks_, order);
      if (numbers_.in_blocks) {
        numbers_ = ordered(numbers_, order);
      } else {
        numbers_.value = numbers_.value.index_select(0, order);
      }
      runs_ = runs_of(blocks_.group);
    }
  }

  // Whether levels keep the order of numbers, and whether there are numbers for them.
  void tally(StoredTally& tally) const {
    const Ranges ranges(blocks_, added_);
    const std::optional<Ranges> others =
        numbers_.in_blocks ? std::optional(Ranges(numbers_, exact_added_)) : std::nullopt;
    const double *const a = numbers_.value.const_data_ptr<double>(), *const b = blocks_.value.const_data_ptr<double>();
    std::atomic<int64_t> disordered = 0, wide = 0;
    at::parallel_for(0, std::ssize(runs_) - 1, 1 << 12, [&](int64_t begin, int64_t end) {
      constexpr double most_held = 4;  // times what is there
      std::vector<Placed> entries;
      int64_t found = 0, found_wide = 0;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = runs_[static_cast<size_t>(i)], last = runs_[static_cast<size_t>(i) + 1];
        double largest = 0;
        entries.clear();
        for (int64_t k = first; k < last; ++k) {
          entries.push_back(
              {b[k], a[k] - (others ? others->below(k, a[k]) : 0), a[k] + (others ? others->above(k, a[k]) : 0)});
          largest = std::max(largest, std::abs(a[k]));
        }
        found += keeps_order(entries, slack_ * largest) ? 0 : 1;
        found_wide += others || ranges.farthest_end(first) <= most_held * (largest + ranges.moved(first)) ? 0 : 1;
      }
      disordered += found;
      wide += found_wide;
    });
    tally.groups += std::ssize(runs_) - 1;
    tally.disordered += disordered;
    tally.wide += wide;
    tally_stretches(ranges, others ? &*others : nullptr, tally);
  }

 private:
  // Whole groups, until there are enough entries; what is left at the end belongs to the last stretch.
  std::vector<int64_t> ends_of_stretches() const {
    std::vector<int64_t> ends = {runs_.front()};
    for (size_t run = 1; run < runs_.size(); ++run) {
      const bool is_whole = runs_[run] - ends.back() >= Stretch::usual && runs_.back() - runs_[run] >= Stretch::usual;
      if (is_whole || run + 1 == runs_.size()) {
        ends.push_back(runs_[run]);
      }
    }
    return ends;
  }

  void tally_stretches(const Ranges& ranges, const Ranges* others, StoredTally& tally) const {
    const double *const a = numbers_.value.const_data_ptr<double>(), *const b = blocks_.value.const_data_ptr<double>();
    const std::vector<int64_t> ends = ends_of_stretches();
    std::atomic<int64_t> strange = 0;
    at::parallel_for(0, std::ssize(ends) - 1, 1 << 10, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Stretch stretch;
        for (int64_t k = ends[static_cast<size_t>(i)]; k < ends[static_cast<size_t>(i) + 1]; ++k) {
          stretch.add(ranges, k, a[k], b[k], others ? others->step(k) : 0, others ? others->moved(k) : 0);
        }
        strange += stretch.is_other() ? 1 : 0;
      }
    });
    tally.stretches += std::ssize(ends) - 1;
    tally.strange += strange;
  }

  Numbers numbers_, blocks_;
  std::vector<int64_t> runs_;
  double slack_, added_, exact_added_;
};

struct FarEntries {
  int64_t far = 0, clipped = 0;
  double error = 0, clip = 0;  // in steps
  double squares = 0, allowed_squares = 0, moved_squares = 0;

  FarEntries& operator+=(const FarEntries& other) {
    far += other.far;
    clipped += other.clipped;
    error = std::max(error, other.error);
    clip = std::max(clip, other.clip);
    squares += other.squares;
    allowed_squares += other.allowed_squares;
    moved_squares += other.moved_squares;
    return *this;
  }
  // `slack` comes to what the blocks allow, and `half` to half a step, for the root mean square.
  void add(const Ranges& blocks, int64_t i, double number, double stored, double slack, double half) {
    const double off = std::abs(number - stored), beyond = blocks.beyond(i, number), step = blocks.step(i);
    const bool is_clipped = beyond > 0;
    // Written so that what is not a number is far.
    const bool is_near = is_clipped ? beyond <= blocks.outside(i) + slack && off <= beyond + blocks.within(i) + slack
                                    : off <= blocks.within(i) + slack;
    far += is_near ? 0 : 1;
    clipped += is_clipped ? 1 : 0;
    double& largest = is_clipped ? clip : error;
    largest = step > 0 ? std::max(largest, (is_clipped ? beyond : off) / step) : largest;
    moved_squares += blocks.moved(i) * blocks.moved(i);
    if (!is_clipped) {
      const double allowed = step / 2 + blocks.moved(i) + half;
      squares += off * off;
      allowed_squares += allowed * allowed;
    }
  }
};

// Numbers of which one side is stored in blocks, or both.
void tally_blocks(const StoredSide& a, const Numbers& reference, const StoredSide& b, const Numbers& candidate,
                  StoredTally& tally) {
  const bool of_candidate = candidate.in_blocks, both = reference.in_blocks && of_candidate;
  const Numbers &blocks = of_candidate ? candidate : reference, &exact = of_candidate ? reference : candidate;
  const Ranges ranges(blocks, of_candidate ? b.added : a.added);
  const std::optional<Ranges> others = both ? std::optional(Ranges(exact, a.added)) : std::nullopt;
  const double *const x = exact.value.const_data_ptr<double>(), *const v = blocks.value.const_data_ptr<double>();
  std::mutex mutex;
  FarEntries all;
  at::parallel_for(0, exact.value.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
    FarEntries found;
    for (int64_t i = begin; i < end; ++i) {
      const double passed = std::abs(x[i]) * passed_bfloat16;
      // Both: as far as either may be from what both were made of.
      const double slack = others ? std::max(others->below(i, x[i]), others->above(i, x[i])) : 0;
      const double half = others ? others->step(i) / 2 + others->moved(i) : 0;
      found.add(ranges, i, x[i], v[i], passed + slack, passed + half);
    }
    const std::lock_guard lock(mutex);
    all += found;
  });
  tally.far += all.far;
  tally.clipped += all.clipped;
  tally.largest_error = std::max(tally.largest_error, all.error);
  tally.largest_clip = std::max(tally.largest_clip, all.clip);
  tally.squares += all.squares;
  tally.allowed_squares += all.allowed_squares;
  tally.moved_squares += all.moved_squares;
  if (of_candidate) {
    Groups(a, reference, b, candidate).tally(tally);
  } else {
    Groups(b, candidate, a, reference).tally(tally);
  }
}

// The type that numbers may have gone through before they were stored wider.
Dtype coarsest_holding(const at::Tensor& values, Dtype stored) {
  for (const auto& [type, dtype] : {std::pair(at::kBFloat16, Dtype::bf16), {at::kHalf, Dtype::f16}}) {
    if (values.to(type).to(at::kDouble).equal(values)) {
      return dtype;
    }
  }
  return stored;
}

// Numbers that both store one by one.
void tally_rounded(const StoredSide& a, const Numbers& reference, const StoredSide& b, const Numbers& candidate,
                   StoredTally& tally) {
  const at::Tensor raw = b.added == 0 ? candidate.value : candidate.value - b.added;
  at::Tensor allowed = 2 * half_spacing(raw, coarsest_holding(raw, b.stored)) + half_spacing(reference.value, a.stored);
  if (a.added != 0 || b.added != 0) {  // with its offset it was rounded once more
    allowed = allowed + 2 * half_spacing(candidate.value, Dtype::f32);
  }
  const at::Tensor error = (reference.value - candidate.value).abs();
  tally.far += (error > allowed).sum().item<int64_t>();
}

}  // namespace

void tally_slice(const StoredSide& a, const StoredSide& b, const RowSlice& slice, StoredTally& tally) {
  const Numbers reference = numbers_of(a, slice), candidate = numbers_of(b, slice);
  const at::Tensor &x = reference.value, &v = candidate.value;
  tally.entries += x.numel();
  tally.in_blocks = tally.in_blocks || reference.in_blocks || candidate.in_blocks;
  if (x.equal(v)) {
    const double squares = x.dot(x).item<double>();
    tally.reference += squares, tally.stored += squares, tally.product += squares;
    return;
  }
  tally.all_same = false;
  tally.reference += x.dot(x).item<double>();
  tally.stored += v.dot(v).item<double>();
  tally.product += x.dot(v).item<double>();
  tally.difference += at::pow(at::norm(x - v), 2).item<double>();
  if (reference.in_blocks || candidate.in_blocks) {
    tally_blocks(a, reference, b, candidate, tally);
  } else {
    tally_rounded(a, reference, b, candidate, tally);
  }
}

}  // namespace pare
