#include "pare/probes/probe_batches.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "pare/support/error.h"
#include "pare/support/mapped.h"
#include "pare/support/progress.h"

namespace pare {

namespace {

constexpr int64_t numbers_at_once = 25'000'000, most_at_once = 16;
constexpr double steps_at_once = 3e10;

// How many multiplications a sequence takes, roughly: a layer's matrices, and singular values at half a dozen points.
double steps_of(int64_t n, const Architecture& a) {
  const double tokens = static_cast<double>(n), width = static_cast<double>(a.width);
  const double of_a_token = 12 * width * width + 50 * std::min(tokens, width) * width;
  return static_cast<double>(layer_blocks(a).size()) * tokens * of_a_token;
}

int64_t sequences_at_once(int64_t n, const Architecture& a) {
  int64_t most = 1;
  for (const Block& block : a.blocks) {
    most = std::max(most, n * (16 * a.width + block.attention.heads * (4 * n + 4 * block.attention.head_width)));
  }
  const int64_t quick = static_cast<int64_t>(std::min<double>(steps_at_once / steps_of(n, a), most_at_once));
  return std::clamp<int64_t>(numbers_at_once / most, 1, std::max<int64_t>(quick, 1));
}

Inputs without_padding(Inputs one) {
  if (!one.mask.defined()) {
    return one;
  }
  const at::Tensor places = at::nonzero(one.mask[0]).flatten();
  one.mask = at::Tensor();
  return each_of(one, [&places](const at::Tensor& x) { return x.index_select(1, places); });
}

Inputs joined(const std::vector<Inputs>& sequences) {
  const auto field = [&sequences](at::Tensor Inputs::*of) {
    const std::vector<at::Tensor> rows = mapped(sequences, [&](const Inputs& one) { return one.*of; });
    return rows.front().defined() ? at::cat(rows) : at::Tensor();
  };
  return {.ids = field(&Inputs::ids),
          .types = field(&Inputs::types),
          .positions = field(&Inputs::positions),
          .pixels = field(&Inputs::pixels)};
}

}  // namespace

int64_t tokens_of(const Inputs& inputs, const Architecture& a) {
  return inputs.pixels.defined() ? patch_positions(a) : inputs.ids.size(1);
}

std::vector<Inputs> probe_batches(std::span<const Inputs> inputs, const Architecture& a) {
  struct Waiting {
    std::vector<Inputs> sequences;
    int64_t since = 0;  // the number of the first
  };
  using Kind = std::tuple<int64_t, bool, bool>;  // tokens, and whether types and positions are given
  std::map<Kind, Waiting> by_kind;
  std::vector<Inputs> batches;
  int64_t number = 0;
  const auto end_batch = [&](std::map<Kind, Waiting>::iterator place) {
    batches.push_back(joined(place->second.sequences));
    by_kind.erase(place);
  };
  const auto oldest = [&] {
    return std::ranges::min_element(
        by_kind, [](const auto& one, const auto& two) { return one.second.since < two.second.since; });
  };
  for (const Inputs& input : inputs) {
    for (int64_t row = 0; row < batch_size(input); ++row, ++number) {
      Inputs one = without_padding(rows_of(input, row, 1));
      const int64_t tokens = tokens_of(one, a);
      const auto place =
          by_kind.try_emplace({tokens, one.types.defined(), one.positions.defined()}, Waiting{.since = number}).first;
      place->second.sequences.push_back(std::move(one));
      if (std::ssize(place->second.sequences) == sequences_at_once(tokens, a)) {
        end_batch(place);
      }
      if (!by_kind.empty() && oldest()->second.since + most_waiting <= number) {
        end_batch(oldest());
      }
    }
  }
  while (!by_kind.empty()) {
    end_batch(oldest());
  }
  return batches;
}

void measure_all(Probe& probe, std::span<const Inputs> batches, const std::string& label, const Communicator& ranks) {
  int64_t sequences = 0;
  for (const Inputs& batch : batches) {
    sequences += batch_size(batch);
  }
  Progress progress(label, static_cast<uint64_t>(sequences));
  const size_t size = static_cast<size_t>(ranks.size());
  uint64_t behind = 0;  // sequences that are done and not shown yet
  for (size_t first = 0; first < batches.size(); first += size) {
    const size_t own = first + static_cast<size_t>(ranks.rank());
    std::string part;
    bool interrupted = false;
    try {  // whatever happens, all ranks meet at the end of the turn
      progress.advance(behind);
      if (own < batches.size()) {
        const double rows = static_cast<double>(batch_size(batches[own]) * ranks.size());
        const auto shown = [&progress, rows](double share) { progress.within(share * rows); };
        ranks.alone() ? probe.measure(batches[own], shown) : void(part = probe.measured(batches[own], shown));
      }
    } catch (const Interrupted&) {
      if (ranks.alone()) {
        throw;
      }
      interrupted = true;
    }
    behind = 0;
    for (size_t batch = first; batch < std::min(first + size, batches.size()); ++batch) {
      behind += static_cast<uint64_t>(batch_size(batches[batch]));
    }
    if (ranks.alone()) {
      continue;
    }
    if (ranks.sum(interrupted ? 1 : 0) > 0) {
      interrupted = true;
    }
    for (const std::string& found : ranks.all_gather(part)) {
      if (!found.empty()) {
        probe.count(found);
      }
    }
    if (interrupted) {
      throw Interrupted();
    }
  }
  progress.advance(behind);
}

}  // namespace pare
