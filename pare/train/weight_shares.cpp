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

// What was there is gone; views of it look at the new memory.
void give_memory(const at::Tensor& flat, int64_t numbers) {
  const size_t bytes = static_cast<size_t>(numbers) * flat.element_size();
  flat.storage().set_data_ptr_noswap(flat.storage().allocator()->allocate(bytes));
  flat.storage().set_nbytes(bytes);
}

}  // namespace

size_t WeightShares::add(const Tensors& leaves, const Start& start, const FlatLayout& layout, Whole whole) {
  PARE_CHECK(leaves.size() == layout.places.size(), "a place for each leaf");
  const at::NoGradGuard no_grad;
  Set& set = sets_.emplace_back(Set{.layout = layout, .whole = whole});
  for (const FlatLayout::Bucket& bucket : layout.buckets) {
    set.weights.push_back(at::zeros({bucket.numbers}, leaves.begin()->second.options().requires_grad(false)));
    const at::Tensor part = layout.part(set.weights.back(), set.weights.size() - 1, ranks_.rank());
    const bool in_place = whole == Whole::always && part.scalar_type() == bucket.type;
    set.parts.push_back(in_place ? part : at::zeros_like(part, part.options().dtype(bucket.type)));
  }
  std::vector<std::string> names;
  for (auto [name, leaf] : leaves) {
    const at::Tensor place = layout.view(set.weights[layout.places[names.size()].bucket], names.size());
    place.copy_(leaf);
    leaf.set_data(place);
    places_[name] = {sets_.size() - 1, names.size()};
    names.push_back(name);
  }
  for (const FlatLayout::Piece& piece : layout.pieces(ranks_.rank())) {
    const std::string& name = names[piece.tensor];
    set.pieces[name] = piece;
    set.parts[layout.places[piece.tensor].bucket]
        .narrow(0, piece.place, piece.length)
        .copy_(start(name).flatten().narrow(0, piece.begin, piece.length));
  }
  const size_t number = sets_.size() - 1;
  if (whole == Whole::on_demand) {
    drop(number);
  }
  return number;
}

WeightShares::Tensors WeightShares::own() const {
  Tensors result;
  for (size_t number = 0; number < sets_.size(); ++number) {
    result.merge(own_of(number, sets_[number].parts));
  }
  return result;
}

WeightShares::Tensors WeightShares::own_of(size_t number, const std::vector<at::Tensor>& parts) const {
  Tensors result;
  for (const auto& [name, piece] : sets_[number].pieces) {
    result[name] = parts[sets_[number].layout.places[piece.tensor].bucket].narrow(0, piece.place, piece.length);
  }
  return result;
}

void WeightShares::gather(const Set& set) const {
  const at::NoGradGuard no_grad;
  for (size_t b = 0; b < set.weights.size(); ++b) {
    ranks_.all_gather(set.weights[b], set.parts[b].to(set.weights[b].scalar_type()));
  }
}

void WeightShares::spread() const {
  for (const Set& set : sets_) {
    if (set.whole == Whole::always) {
      gather(set);
    }
  }
}

void WeightShares::fetch(size_t number) const {
  const Set& set = sets_[number];
  for (size_t b = 0; b < set.weights.size(); ++b) {
    give_memory(set.weights[b], set.layout.buckets[b].numbers);
  }
  gather(set);
}

// The leaves are views of the buckets: they keep their shapes, and their memory goes.
void WeightShares::drop(size_t number) const {
  for (const at::Tensor& flat : sets_[number].weights) {
    give_memory(flat, 0);
  }
}

at::Tensor WeightShares::whole(const std::string& name, const at::Tensor& stretch) const {
  const Place& place = places_.at(name);
  const Set& set = sets_[place.set];
  const at::DimVector& shape = set.layout.shapes[place.tensor];
  const at::Tensor flat =
      at::zeros({c10::multiply_integers(shape)},
                at::TensorOptions().dtype(set.layout.buckets[set.layout.places[place.tensor].bucket].type));
  if (stretch.defined()) {
    const FlatLayout::Piece& piece = set.pieces.at(name);
    flat.narrow(0, piece.begin, piece.length).copy_(stretch);
  }
  ranks_.all_reduce(flat.view(bits_of(flat.scalar_type())));
  return flat.view(shape);
}

at::Tensor WeightShares::stretch(const std::string& name, const at::Tensor& whole) const {
  const std::map<std::string, FlatLayout::Piece>& pieces = sets_[places_.at(name).set].pieces;
  const auto piece = pieces.find(name);
  return piece == pieces.end() ? at::Tensor() : whole.flatten().narrow(0, piece->second.begin, piece->second.length);
}

}  // namespace pare
