#include "pare/train/flat_layout.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/support/error.h"

namespace pare {

FlatLayout::FlatLayout(const std::vector<at::Tensor>& like, const std::vector<size_t>& order, int64_t bytes, int ranks)
    : places(like.size()), ranks(ranks) {
  PARE_CHECK(like.size() == order.size() && ranks > 0, "a place for each tensor");
  for (const at::Tensor& tensor : like) {
    shapes.emplace_back(tensor.sizes());
  }
  for (size_t next = 0; next < order.size();) {
    Bucket bucket{.type = like[order[next]].scalar_type()};
    const auto full = [&] { return bucket.numbers * static_cast<int64_t>(c10::elementSize(bucket.type)) >= bytes; };
    for (; next < order.size() && !full() && like[order[next]].scalar_type() == bucket.type; ++next) {
      places[order[next]] = {buckets.size(), bucket.numbers};
      bucket.numbers += like[order[next]].numel();
      ++bucket.tensors;
    }
    bucket.numbers = (bucket.numbers + ranks - 1) / ranks * ranks;
    buckets.push_back(bucket);
  }
}

std::vector<at::Tensor> FlatLayout::zeros(at::Device device) const {
  std::vector<at::Tensor> result;
  for (const Bucket& bucket : buckets) {
    result.push_back(at::zeros({bucket.numbers}, at::TensorOptions(device).dtype(bucket.type)));
  }
  return result;
}

at::Tensor FlatLayout::view(const at::Tensor& bucket, size_t tensor) const {
  const at::DimVector& shape = shapes[tensor];
  return bucket.narrow(0, places[tensor].begin, c10::multiply_integers(shape)).view(shape);
}

at::Tensor FlatLayout::part(const at::Tensor& bucket, size_t number, int rank) const {
  const int64_t length = buckets[number].numbers / ranks;
  return bucket.narrow(0, rank * length, length);
}

std::vector<FlatLayout::Piece> FlatLayout::pieces(int rank) const {
  std::vector<Piece> result;
  for (size_t tensor = 0; tensor < places.size(); ++tensor) {
    const Place& place = places[tensor];
    const int64_t length = buckets[place.bucket].numbers / ranks, first = rank * length;
    const int64_t begin = std::max(place.begin, first);
    const int64_t end = std::min(place.begin + c10::multiply_integers(shapes[tensor]), first + length);
    if (begin < end) {
      result.push_back({tensor, begin - place.begin, end - begin, begin - first});
    }
  }
  return result;
}

}  // namespace pare
