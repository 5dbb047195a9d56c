#include "pare/verify/quantised.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/model/blockwise.h"
#include "pare/proof/settings.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/progress.h"
#include "pare/verify/stored_tally.h"

namespace pare {

namespace {

constexpr int64_t slice_entries = 1 << 22;

// How much larger the reference is than what is stored, on average; by more than the quantisers of ggml were seen to
// make it, whatever they weighed, it is too much.
struct Growth {
  double factor = 1, allowed = 0;
  bool is_too_much() const { return std::abs(factor - 1) > allowed; }
};

Growth growth_of(const StoredTally& tally) {
  if (tally.stored == 0) {
    return {};
  }
  constexpr double most = 0.25;  // with three levels a group, of sparse weights, 0.16 was seen
  const double distortion = tally.difference / tally.stored;
  return {tally.product / tally.stored, std::min(2 * distortion + std::sqrt(distortion) / 2 + 1.0 / 1024, most)};
}

std::string reason_of(const StoredTally& tally) {
  if (!tally.in_blocks) {
    return tally.far == 0 ? "" : fmt::format("{} of {} entries differ by more than rounding", tally.far, tally.entries);
  }
  if (tally.far > 0) {
    return fmt::format("{} of {} entries are further from the reference's than the steps of their blocks allow",
                       tally.far, tally.entries);
  }
  if (tally.disordered > 0) {
    return fmt::format("in {} of {} groups of neighbours a larger weight of the reference is stored as a smaller one",
                       tally.disordered, tally.groups);
  }
  if (tally.wide > 0) {
    return fmt::format("in {} of {} groups the scale is for weights more than four times as large as the reference's",
                       tally.wide, tally.groups);
  }
  if (tally.squares > tally.allowed_squares) {
    return fmt::format("weights are {:.2f} times as far off as half a step, in the root mean square",
                       std::sqrt(tally.squares / tally.allowed_squares));
  }
  // With three levels a group 0.47 was seen. Numbers may be so small that their scale is lost, and all of them with it.
  constexpr double most_lost = 0.6;
  const double lost = tally.reference > 0 ? std::sqrt(tally.difference / tally.reference) : 0;
  if (lost > most_lost && tally.difference > tally.moved_squares) {
    return fmt::format("{:.0f} % of its length is lost", 100 * lost);
  }
  const Growth growth = growth_of(tally);
  if (growth.is_too_much()) {
    return fmt::format("the reference's is {:.4f} times as large", growth.factor);
  }
  return tally.strange == 0
             ? ""
             : fmt::format("in {} of {} stretches of some 256 neighbours the reference's is not once what is stored",
                           tally.strange, tally.stretches);
}

ComparedTensor finding_of(const std::string& name, const StoredTally& tally) {
  ComparedTensor found{.tensor = name,
                       .entries = tally.entries,
                       .wrong = tally.far + tally.disordered + tally.wide + tally.strange,
                       .clipped = tally.clipped,
                       .largest_error = tally.largest_error,
                       .largest_clip = tally.largest_clip};
  found.relative_error = tally.reference > 0 ? std::sqrt(tally.difference / tally.reference) : 0;
  if (!tally.all_same) {
    found.reason = reason_of(tally);
    found.how = !found.reason.empty() ? StoredAs::other : tally.in_blocks ? StoredAs::quantised : StoredAs::rounded;
  }
  return found;
}

ComparedTensor judge_tensor(const std::string& name, const StoredSide& reference, const StoredSide& candidate) {
  StoredTally tally;
  const Shape& shape = reference.weight.shape();
  const auto by_rows = [](const StoredSide& side) {
    return side.weight.can_load_rows() && (!side.range || side.range->group.at(side.name).can_load_rows());
  };
  if (shape.empty() || element_count(shape) == 0 || !by_rows(reference) || !by_rows(candidate)) {
    tally_slice(reference, candidate, {}, tally);
    return finding_of(name, tally);
  }
  const int64_t rows = std::max<int64_t>(1, slice_entries * shape.front() / element_count(shape));
  for (int64_t begin = 0; begin < shape.front(); begin += rows) {
    check_interrupt();
    tally_slice(reference, candidate, {begin, std::min(rows, shape.front() - begin), false}, tally);
  }
  return finding_of(name, tally);
}

// A tensor that only one side stores must say nothing: a bias of zeros, a gain of ones.
ComparedTensor judge_alone(const TensorSpec& spec, const StoredSide& side, const char* other) {
  ComparedTensor found{.tensor = spec.name, .entries = element_count(spec.shape)};
  const bool says_nothing = spec.part == Part::norm || spec.id.kind == TensorKind::bias;
  if (!says_nothing || (side.weight.load().to(at::kDouble) != spec.initial).any().item<bool>()) {
    found.how = StoredAs::other;
    found.wrong = found.entries;
    found.reason = fmt::format("the {} has no such tensor", other);
  }
  return found;
}

class Stored {
 public:
  explicit Stored(const ModelFolder& folder)
      : folder_(folder), table_(tensor_table(folder.model.architecture)), range_(quantisation_of(folder)) {}

  const TensorTable& table() const { return table_; }
  bool has_blocks() const { return range_.has_value(); }

  StoredSide side(const TensorId& id) const {
    const Architecture& a = folder_.model.architecture;
    const TensorSpec* spec = table_.find(id);
    if (!spec && id == weight_of(head_matrix)) {
      spec = table_.find(head_matrix_name(a));  // tied
    }
    if (!spec) {
      return {};
    }
    const bool is_gain = spec->part == Part::norm && spec->id.kind == TensorKind::weight;
    // What an adapter was added to is in no blocks any more.
    const bool merged = folder_.adapter && folder_.adapted.contains(spec->name);
    return {.weight = folder_.model.weights.at(spec->name),
            .stored = folder_.stored_dtype(spec->name),
            .added = is_gain ? 1 - spec->initial : 0,
            .merged = merged,
            .range = range_ && !merged ? &*range_ : nullptr,
            .name = spec->name};
  }

 private:
  const ModelFolder& folder_;
  TensorTable table_;
  std::optional<QuantisedRange> range_;
};

// The reference's tensors, and those that only the candidate has: a head of its own, a bias.
std::vector<TensorSpec> either_table(const TensorTable& reference, const TensorTable& candidate) {
  std::vector<TensorSpec> all(reference.begin(), reference.end());
  std::ranges::copy_if(candidate, std::back_inserter(all),
                       [&](const TensorSpec& spec) { return !reference.contains(spec.id); });
  return all;
}

}  // namespace

const char* word(StoredAs how) {
  switch (how) {
    case StoredAs::same:
      return "same";
    case StoredAs::rounded:
      return "rounded";
    case StoredAs::quantised:
      return "quantised";
    case StoredAs::other:
      return "other";
  }
  PARE_UNREACHABLE("no such way to store");
}

std::vector<const ComparedTensor*> others_of(const std::vector<ComparedTensor>& tensors) {
  std::vector<const ComparedTensor*> found;
  for (const ComparedTensor& tensor : tensors) {
    if (tensor.how == StoredAs::other) {
      found.push_back(&tensor);
    }
  }
  std::ranges::stable_sort(found, std::greater(), &ComparedTensor::relative_error);
  return found;
}

std::vector<ComparedTensor> compare_stored(const ModelFolder& reference, const ModelFolder& candidate) {
  const Stored a(reference), b(candidate);
  std::vector<ComparedTensor> tensors;
  for (const TensorSpec& spec : either_table(a.table(), b.table())) {
    const StoredSide first = a.side(spec.id), second = b.side(spec.id);
    if (!spec.index && first.is_there() && second.is_there() && first.weight.shape() == second.weight.shape()) {
      tensors.push_back(judge_tensor(spec.name, first, second));
    }
  }
  return tensors;
}

std::optional<Quantisation> judge_quantisation(const ModelFolder& reference, const ModelFolder& candidate) {
  const Stored a(reference), b(candidate);
  if (!a.has_blocks() && !b.has_blocks()) {
    return std::nullopt;
  }
  Quantisation result;
  result.types = types_of_gguf(b.has_blocks() ? candidate : reference);
  result.settings = differing_settings(reference.model.architecture, candidate.model.architecture);
  const std::vector<TensorSpec> all = either_table(a.table(), b.table());
  Progress progress("comparing tensors", all.size());
  for (const TensorSpec& spec : all) {
    progress.advance();
    const StoredSide first = a.side(spec.id), second = b.side(spec.id);
    if (!first.is_there() || !second.is_there()) {
      result.tensors.push_back(first.is_there() ? judge_alone(spec, first, "candidate")
                                                : judge_alone(spec, second, "reference"));
    } else if (first.weight.shape() == second.weight.shape()) {
      result.tensors.push_back(judge_tensor(spec.name, first, second));
    } else {
      result.tensors.push_back({.tensor = spec.name, .how = StoredAs::other, .reason = "its shape is another"});
    }
  }
  const bool all_same =
      std::ranges::all_of(result.tensors, [](const ComparedTensor& t) { return t.how == StoredAs::same; });
  if (all_same) {
    return std::nullopt;
  }
  return result;
}

}  // namespace pare
