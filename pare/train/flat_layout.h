#pragma once
// Tensors laid end to end in a few flat ones, the buckets. Each bucket is as long as several ranks can share equally,
// so that a rank's part of it is the same stretch of numbers for whoever asks: gradients, weights, moments.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace pare {

constexpr int64_t usual_bucket = int64_t{25} << 20;  // bytes: a message long enough to be sent at the network's speed

struct FlatLayout {
  struct Place {
    size_t bucket = 0;
    int64_t begin = 0;  // in the bucket
  };
  struct Bucket {
    at::ScalarType type = at::kFloat;
    int64_t numbers = 0;  // with what fills up the last part
    size_t tensors = 0;
  };
  // What a rank's part of a bucket has of one tensor, which is flat there.
  struct Piece {
    size_t tensor = 0;
    int64_t begin = 0, length = 0;  // of the tensor
    int64_t place = 0;              // in the part
  };

  FlatLayout() = default;
  // `order`: which tensor comes first, the same on all ranks. `bytes`: how much a bucket has at least.
  FlatLayout(const std::vector<at::Tensor>& like, const std::vector<size_t>& order, int64_t bytes, int ranks);

  std::vector<at::Tensor> zeros(at::Device device) const;                    // the buckets
  at::Tensor view(const at::Tensor& bucket, size_t tensor) const;            // of the tensor's shape
  at::Tensor part(const at::Tensor& bucket, size_t number, int rank) const;  // of bucket `number`
  std::vector<Piece> pieces(int rank) const;                                 // in the order of tensors

  std::vector<at::DimVector> shapes;  // of each tensor
  std::vector<Place> places;
  std::vector<Bucket> buckets;
  int ranks = 1;
};

}  // namespace pare
