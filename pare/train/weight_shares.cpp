#include "pare/train/weight_shares.h"

#include <ATen/ATen.h>

#include "pare/support/error.h"

namespace pare {

namespace {

// Integers of the same width: whatever the bits are, a sum in which one rank alone has any is exact.
at::ScalarType bits_of(at::ScalarType type) {
  switch (c10::elementSize(type)) {
    case 8:
      return at::kLong;
    case 4:
      return at::kInt;
    default:
      PARE_UNREACHABLE("a type in which nothing is moved");
  }
}

}  // namespace

WeightShares::WeightShares(const Communicator& ranks, std::vector<std::string> names,
                           const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& start,
                           const FlatLayout& layout)
    : ranks_(ranks), layout_(layout) {
  const at::NoGradGuard no_grad;
  for (const FlatLayout::Bucket& bucket : layout_.buckets) {
    weights_.push_back(at::zeros({bucket.numbers}, leaves.front().options().requires_grad(false)));
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor place = layout_.view(weights_[layout_.places[i].bucket], i);
    place.copy_(leaves[i]);
    at::Tensor leaf = leaves[i];
    leaf.set_data(place);
    numbers_[names[i]] = i;
  }
  const bool in_place = leaves.front().scalar_type() == start.front().scalar_type();
  for (size_t b = 0; b < weights_.size(); ++b) {
    const at::Tensor part = layout_.part(weights_[b], b, ranks_.rank());
    parts_.push_back(in_place ? part : part.to(layout_.buckets[b].type));
  }
  for (const FlatLayout::Piece& piece : layout_.pieces(ranks_.rank())) {
    const std::string& name = names[piece.tensor];
    pieces_[name] = piece;
    own_[name] = parts_[layout_.places[piece.tensor].bucket].narrow(0, piece.place, piece.length);
    own_[name].copy_(start[piece.tensor].flatten().narrow(0, piece.begin, piece.length));
  }
}

std::vector<at::Tensor> WeightShares::own_of(const std::vector<at::Tensor>& buckets) const {
  std::vector<at::Tensor> result;
  for (const auto& [name, piece] : pieces_) {
    const size_t b = layout_.places[piece.tensor].bucket;
    result.push_back(layout_.part(buckets[b], b, ranks_.rank()).narrow(0, piece.place, piece.length));
  }
  return result;
}

void WeightShares::spread() const {
  const at::NoGradGuard no_grad;
  for (size_t b = 0; b < weights_.size(); ++b) {
    ranks_.all_gather(weights_[b], parts_[b].to(weights_[b].scalar_type()));
  }
}

at::Tensor WeightShares::whole(const std::string& name, const at::Tensor& stretch) const {
  const size_t number = numbers_.at(name);
  const at::Tensor flat = at::zeros({c10::multiply_integers(layout_.shapes[number])},
                                    at::TensorOptions().dtype(layout_.buckets[layout_.places[number].bucket].type));
  if (stretch.defined()) {
    const FlatLayout::Piece& piece = pieces_.at(name);
    flat.narrow(0, piece.begin, piece.length).copy_(stretch);
  }
  ranks_.all_reduce(flat.view(bits_of(flat.scalar_type())));
  return flat.view(layout_.shapes[number]);
}

at::Tensor WeightShares::stretch(const std::string& name, const at::Tensor& whole) const {
  const auto piece = pieces_.find(name);
  return piece == pieces_.end() ? at::Tensor() : whole.flatten().narrow(0, piece->second.begin, piece->second.length);
}

}  // namespace pare
