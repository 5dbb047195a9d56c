#include "pare/verify/layers.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace pare {

namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

at::Tensor real_tokens(const at::Tensor& value, const Inputs& sequence, int64_t dimension) {
  return sequence.mask.defined() ? value.index_select(dimension, at::nonzero(sequence.mask[0]).flatten()) : value;
}

// By head: the largest over queries and keys.
at::Tensor attention_gap(const at::Tensor& one, const at::Tensor& other, const Inputs& sequence) {
  const at::Tensor gap = (one.to(at::kDouble) - other.to(at::kDouble)).abs();
  return real_tokens(gap, sequence, 2).amax(at::IntArrayRef({0, 2, 3})).to(at::kCPU).contiguous();
}

double stream_gap(const at::Tensor& one, const at::Tensor& other, const Inputs& sequence) {
  const at::Tensor first = real_tokens(one.to(at::kDouble), sequence, 1);
  const at::Tensor second = real_tokens(other.to(at::kDouble), sequence, 1);
  return ((first - second).norm() / first.norm()).item<double>();
}

void add_sequence(const ComparedModel& reference, const ComparedModel& other, const Inputs& sequence,
                  LayerGaps& result) {
  const std::vector<Inputs> alone = {sequence};
  Taps first_taps, second_taps;
  first_taps.record("blocks.*.attention.probabilities");
  second_taps.record("blocks.*.attention.probabilities");
  BlockwiseRun first(reference.model, reference.arithmetic, alone, &first_taps);
  BlockwiseRun second(other.model, other.arithmetic, alone, &second_taps);
  const int64_t layers = std::min(first.layers(), second.layers());
  if (first.layers() != second.layers()) {
    result.note = fmt::format("the reference has {} layers, the other {}: only the first {} are compared",
                              first.layers(), second.layers(), layers);
  }
  result.layers.resize(static_cast<size_t>(layers));
  for (LayerGap& layer : result.layers) {
    const std::string tap = fmt::format("blocks.{}.attention.probabilities", first.done());
    first.run_layer();
    second.run_layer();
    const at::Tensor one = first_taps.recorded().at(tap), two = second_taps.recorded().at(tap);
    first_taps.clear();
    second_taps.clear();
    const at::Tensor &stream = first.streams().x[0], &other_stream = second.streams().x[0];
    const bool same_width = stream.sizes() == other_stream.sizes();
    layer.residual.push_back(same_width ? stream_gap(stream, other_stream, sequence) : unknown);
    if (!same_width) {
      result.note = fmt::format("the stream is {} wide in the reference, {} in the other", stream.size(-1),
                                other_stream.size(-1));
    }
    if (one.sizes() != two.sizes()) {
      result.note = fmt::format("{} has {} heads in the reference, {} in the other", tap, one.size(1), two.size(1));
      layer.attention.push_back(unknown);
      layer.heads.assign(static_cast<size_t>(one.size(1)), unknown);
      continue;
    }
    const at::Tensor heads = attention_gap(one, two, sequence);
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
