#include "pare/probes/folded.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/arch/norms.h"
#include "pare/arch/streams.h"
#include "pare/arch/tensors.h"

namespace pare {

namespace {

// The matrices that read a norm, where nothing else does.
std::vector<Port> readers_of(const std::vector<Stream>& streams, const ModuleId& norm, bool tied) {
  const auto stream = std::ranges::find_if(streams, [&](const Stream& s) {
    return s.touches.size() == 1 && s.touches[0].kind == TouchKind::norm_writes && s.touches[0].module == norm;
  });
  const auto reads = [&](const Port& p) { return p.role == Role::reader && !(tied && p.tensor.module == token_table); };
  const bool folds = stream != streams.end() && std::ranges::all_of(stream->ports, reads);
  return folds ? stream->ports : std::vector<Port>();
}

// W (g x + b) = (W g) x + W b, with the W of before.
void fold_shift(Numbers& numbers, const TensorId& shift, const std::vector<Port>& readers) {
  const auto found = numbers.find(shift);
  const bool folds = found != numbers.end() && !readers.empty() && std::ranges::all_of(readers, [&](const Port& port) {
                       const at::Tensor& matrix = numbers.at(port.tensor);
                       return numbers.contains(bias_of(port.tensor.module)) && matrix.dim() == 2 && port.axis == 1 &&
                              matrix.size(1) == found->second.size(0);
                     });
  if (!folds) {
    return;
  }
  for (const Port& port : readers) {
    at::Tensor& bias = numbers.at(bias_of(port.tensor.module));
    bias = bias + at::mv(numbers.at(port.tensor), found->second);
  }
  numbers.erase(found);
}

void fold_gain(Numbers& numbers, const PlacedNorm& placed, const std::vector<Port>& readers) {
  const auto gain = numbers.find(weight_of(placed.module));
  if (gain == numbers.end() || readers.empty()) {
    return;
  }
  for (const Port& port : readers) {
    at::Tensor& matrix = numbers.at(port.tensor);
    std::vector<int64_t> shape(static_cast<size_t>(matrix.dim()), 1);
    shape[port.axis] = gain->second.size(0);
    if (matrix.size(port.axis) == gain->second.size(0)) {
      matrix = matrix * (gain->second + placed.norm->offset).view(shape);
    }
  }
  numbers.erase(gain);
}

// Rows of attention sum to one, and softmax ignores what is the same for every key.
void fold_attention(Numbers& numbers, const Attention& t, int64_t n) {
  const TensorId value = bias_of(in_attention(n, Slot::value)), output = bias_of(in_attention(n, Slot::output));
  if (!has_dense_projections(t) || !is<Dense>(t.output)) {
    return;
  }
  if (numbers.contains(value) && numbers.contains(output) && rows_sum_to_one(t)) {
    const at::Tensor seen = numbers.at(value)
                                .view({t.kv_heads, 1, t.head_width})
                                .expand({t.kv_heads, t.heads / t.kv_heads, t.head_width})
                                .reshape({-1});
    numbers.at(output) = numbers.at(output) + at::mv(numbers.at(weight_of(in_attention(n, Slot::output))), seen);
    numbers.erase(value);
  }
  if (!t.rope && !t.qk_norm && !t.softcap) {
    numbers.erase(bias_of(in_attention(n, Slot::key)));
  }
}

}  // namespace

Numbers folded_numbers(const Model& model, at::Device device) {
  Numbers numbers;
  for (const TensorSpec& spec : tensor_table(model.architecture)) {
    numbers[spec.id] = model.weights.at(spec.name).load().to(device, at::kDouble);
  }
  Architecture copy = model.architecture;
  const std::vector<Stream> streams = find_streams(copy).all;
  for (const PlacedNorm& placed : norms_of(copy)) {
    const std::vector<Port> readers = readers_of(streams, placed.module, copy.head.tied);
    fold_shift(numbers, bias_of(placed.module), readers);
    fold_gain(numbers, placed, readers);
  }
  for (int64_t n = 0; n < std::ssize(copy.blocks); ++n) {
    if (!is_tabled(copy, n)) {
      fold_attention(numbers, copy.blocks[n].attention, n);
    }
  }
  return numbers;
}

}  // namespace pare
