#include "pare/verify/layers.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "pare/verify/side_by_side.h"

namespace pare {

namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

at::Tensor real_tokens(const at::Tensor& stream, const Inputs& sequence) {
  return sequence.mask.defined() ? stream.index_select(1, at::nonzero(sequence.mask[0]).flatten()) : stream;
}

double stream_gap(const at::Tensor& one, const at::Tensor& other, const Inputs& sequence) {
  const at::Tensor first = real_tokens(one.to(at::kDouble), sequence);
  const at::Tensor second = real_tokens(other.to(at::kDouble), sequence);
  return ((first - second).norm() / first.norm()).item<double>();
}

void add_sequence(const ComparedModel& reference, const ComparedModel& other, const Inputs& sequence,
                  LayerGaps& result) {
  SideBySide both(reference, other, sequence);
  const int64_t ours = both.reference().layers(), theirs = both.other().layers(), layers = both.layers();
  if (ours != theirs) {
    result.note =
        fmt::format("the reference has {} layers, the other {}: only the first {} are compared", ours, theirs, layers);
  }
  result.layers.resize(static_cast<size_t>(layers));
  for (LayerGap& layer : result.layers) {
    const std::string tap = both.tap();
    const SideBySide::Attention attention = both.run_layer();
    const at::Tensor &stream = both.reference().streams().x[0], &other_stream = both.other().streams().x[0];
    const bool same_width = stream.sizes() == other_stream.sizes();
    layer.residual.push_back(same_width ? stream_gap(stream, other_stream, sequence) : unknown);
    if (!same_width) {
      result.note = fmt::format("the stream is {} wide in the reference, {} in the other", stream.size(-1),
                                other_stream.size(-1));
    }
    if (!attention.same_heads()) {
      const int64_t heads = attention.reference.size(1);
      result.note =
          fmt::format("{} has {} heads in the reference, {} in the other", tap, heads, attention.other.size(1));
      layer.attention.push_back(unknown);
      layer.heads.assign(static_cast<size_t>(heads), unknown);
      continue;
    }
    // By head: the largest over queries and keys.
    const at::Tensor heads = gap_of(attention, sequence).amax(at::IntArrayRef({0, 2, 3})).to(at::kCPU).contiguous();
    layer.heads.resize(static_cast<size_t>(heads.size(0)), 0);
    for (int64_t h = 0; h < heads.size(0); ++h) {
      double& most = layer.heads[static_cast<size_t>(h)];
      most = std::max(heads[h].item<double>(), most);
    }
    layer.attention.push_back(heads.max().item<double>());
  }
}

}  // namespace

LayerGaps layer_gaps(const ComparedModel& reference, const ComparedModel& other, std::span<const Inputs> sequences) {
  LayerGaps result;
  for (const Inputs& sequence : sequences) {
    add_sequence(reference, other, sequence, result);
  }
  return result;
}

}  // namespace pare
