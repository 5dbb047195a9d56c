#include "pare/ranks/shares.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "pare/support/names.h"

namespace pare {

Share share_of(std::span<const double> costs, const Communicator& ranks) {
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  double before = 0;
  Share share;
  for (const double cost : costs) {
    const double middle = all > 0 ? (before + cost / 2) / all : 0;  // of the piece, in the whole
    const int owner = std::min(static_cast<int>(middle * ranks.size()), ranks.size() - 1);
    before += cost;
    share.first += owner < ranks.rank() ? 1 : 0;
    share.end += owner <= ranks.rank() ? 1 : 0;
  }
  return share;
}

void check_alike(const Communicator& ranks, const std::string& what, const std::string& text) {
  if (ranks.alone()) {
    return;
  }
  constexpr size_t most_shown = 300;
  const std::vector<std::string> texts = ranks.all_gather(text), names = ranks.all_gather(ranks.name());
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) {
      continue;
    }
    const bool is_short = std::max(texts[rank].size(), texts[0].size()) <= most_shown;
    throw InputError(fmt::format(
        "{} does not have the {} of rank 0{}: all ranks have to be started with the same words in the same folder, and "
        "see the same files there",
        names[rank], what, is_short ? fmt::format(", which is {}, but {}", quote(texts[0]), quote(texts[rank])) : ""));
  }
}

at::Tensor gathered_rows(const at::Tensor& own, const Communicator& ranks) {
  if (ranks.alone()) {
    return own;
  }
  const int64_t rows = own.size(0), width = c10::multiply_integers(own.sizes().slice(1));
  const at::Tensor flat = at::empty({3 * ranks.size()}, at::kLong), sizes = flat.view({-1, 3});
  ranks.all_gather(flat, at::tensor({rows, width, static_cast<int64_t>(own.scalar_type())}, at::kLong));
  if (!(sizes.narrow(1, 1, 2) == sizes[ranks.rank()].narrow(0, 1, 2)).all().item<bool>()) {
    throw IoError(
        fmt::format("{} has rows of {} numbers, and another rank has others: do all run the same program, on "
                    "the same files?",
                    ranks.name(), width));
  }
  const int64_t most = std::max<int64_t>(1, sizes.select(1, 0).max().item<int64_t>());
  std::vector<int64_t> shape = own.sizes().vec();
  shape[0] = most;
  const at::Tensor part = at::zeros(shape, own.options());
  part.narrow(0, 0, rows).copy_(own);
  shape[0] = most * ranks.size();
  const at::Tensor all = at::empty(shape, own.options());
  ranks.all_gather(all, part);
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    parts.push_back(all.narrow(0, rank * most, sizes[rank][0].item<int64_t>()));
  }
  return at::cat(parts);
}

}  // namespace pare
