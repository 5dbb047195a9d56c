#include "pare/verify/affordable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/arch/count.h"
#include "pare/arch/head.h"

namespace pare {

namespace {

constexpr double most_score_bytes = 0x1p31, most_score_operations = 0x1p37, most_alone_operations = 0x1p40;

// Two for each weight of a matrix; and what is compared of a logit costs as much as sixteen entries of the head.
double operations_per_token(const Architecture& a) {
  double weights = static_cast<double>(head_size(a)) * static_cast<double>(a.width + 16);
  for (const int64_t block : layer_blocks(a)) {
    weights += static_cast<double>(count_block(a, block).total);
  }
  return 2 * weights;
}

// Attention that is fused keeps no scores; what it may see is a table of bytes. Explicit attention holds its scores
// three times over: as they are, masked, and as probabilities. Of float64 a GPU has no fused one.
double score_bytes(const Attention& t, at::Device device) {
  const bool is_explicit = t.softcap || t.alibi || t.scores == Form::collapsed || t.values == Form::collapsed;
  return is_explicit || device.is_cuda() ? 1 + 3 * 8 * static_cast<double>(t.heads) : 1;
}

// For each pair of tokens: two products over a head's width, and an exponential, which costs as much as eight entries.
double score_operations(const Architecture& a) {
  double sum = 0;
  for (const int64_t block : layer_blocks(a)) {
    const Attention& t = a.blocks[static_cast<size_t>(block)].attention;
    sum += 4 * static_cast<double>(t.heads) * static_cast<double>(t.head_width + 8);
  }
  return sum;
}

double dearer(const Architecture& reference, const Architecture& candidate) {
  return std::max(operations_per_token(reference), operations_per_token(candidate));
}

}  // namespace

LongestSequence longest_affordable(const Architecture& reference, const Architecture& candidate, int64_t budget,
                                   at::Device device) {
  double bytes = 0;
  for (const Architecture* a : {&reference, &candidate}) {
    for (const Block& block : a->blocks) {
      bytes = std::max(bytes, score_bytes(block.attention, device));
    }
  }
  const double operations = std::max(score_operations(reference), score_operations(candidate));
  const double most_operations =
      std::max(most_score_operations, static_cast<double>(budget) * dearer(reference, candidate));
  LongestSequence longest{reference.context, ""};
  const auto at_most = [&longest](double tokens, std::string bound) {
    if (tokens < static_cast<double>(longest.tokens)) {
      longest = {std::max<int64_t>(1, static_cast<int64_t>(tokens)), std::move(bound)};
    }
  };
  const double context = static_cast<double>(reference.context);
  at_most(static_cast<double>(budget) / 2, fmt::format("--budget {} would ask it", 2 * reference.context));
  at_most(std::sqrt(most_score_bytes / bytes),
          fmt::format("its scores would take {:.3g} GB", bytes * context * context / 1e9));
  at_most(std::sqrt(most_operations / operations),
          fmt::format("its scores would take {:.2g} operations", operations * context * context));
  return longest;
}

bool can_hold_attention(const Architecture& architecture, int64_t tokens) {
  constexpr double most_bytes = 0x1p29;
  const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens);
  return std::all_of(architecture.blocks.begin(), architecture.blocks.end(), [pairs](const Block& block) {
    return 8 * pairs * static_cast<double>(block.attention.heads) <= most_bytes;
  });
}

int64_t affordable_alone(const Architecture& reference, const Architecture& candidate, int64_t budget) {
  const double cheap = most_alone_operations / std::max(1.0, dearer(reference, candidate));
  return std::max(budget / 2, static_cast<int64_t>(std::min(cheap, 1e12)));
}

}  // namespace pare
