#include "pare/train/gradient_buckets.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

namespace {

using namespace pare;

// Three layers, y = tanh(W x) each; autograd comes to them from the last.
struct Layers {
  std::vector<at::Tensor> leaves, like;
  at::Tensor x = at::randn({5, 8}, at::kDouble);

  explicit Layers(at::ScalarType type = at::kDouble) {
    for (int i = 0; i < 3; ++i) {
      leaves.push_back(at::randn({8, 8}, type).set_requires_grad(true));
      like.push_back(at::zeros({8, 8}, type == at::kDouble ? at::kDouble : at::kFloat));
    }
  }
  at::Tensor loss() const {
    at::Tensor y = x.to(leaves[0].scalar_type());
    for (const at::Tensor& leaf : leaves) {
      y = at::tanh(y.matmul(leaf));
    }
    return y.sum();
  }
  std::vector<at::Tensor> gradients() const {
    for (const at::Tensor& leaf : leaves) {
      leaf.mutable_grad().reset();
    }
    loss().backward();
    std::vector<at::Tensor> found;
    for (const at::Tensor& leaf : leaves) {
      found.push_back(leaf.grad().clone());
      leaf.mutable_grad().reset();
    }
    return found;
  }
};

const std::vector<int64_t> once_each = {1, 1, 1};

// Filled from the last layer.
FlatLayout layout_of(const Layers& layers, int64_t bytes = usual_bucket) {
  return FlatLayout(layers.like, {2, 1, 0}, bytes, 1);
}

TEST_CASE("gradients lie in buckets, summed over the passes of a step, and nothing of the step before stays") {
  at::manual_seed(0);
  for (const int64_t bytes : {int64_t{1}, int64_t{600}, int64_t{100'000}}) {
    const Layers layers;
    const std::vector<at::Tensor> once = layers.gradients();
    GradientBuckets buckets({}, layers.leaves, once_each, layout_of(layers, bytes));
    const int64_t expected = bytes == 1 ? 3 : bytes == 600 ? 2 : 1;
    CHECK(buckets.count() == expected);
    for (int step = 0; step < 2; ++step) {
      buckets.clear();
      layers.loss().backward();
      buckets.begin_last_pass({});
      layers.loss().backward();
      buckets.finish();
      for (size_t i = 0; i < once.size(); ++i) {
        CHECK(at::allclose(buckets.gradients()[i], 2 * once[i], 1e-14, 1e-14));
      }
    }
  }
}

TEST_CASE("the first bucket is on its way while the backward pass goes on") {
  const Layers layers;
  GradientBuckets buckets({}, layers.leaves, once_each, layout_of(layers, 1));
  int64_t sent_at_first_layer = -1;
  buckets.clear();
  const at::Tensor first = at::tanh(layers.x.matmul(layers.leaves[0]));
  first.register_hook([&](const at::Tensor&) { sent_at_first_layer = buckets.sent_early(); });
  buckets.begin_last_pass({});
  at::tanh(at::tanh(first.matmul(layers.leaves[1])).matmul(layers.leaves[2])).sum().backward();
  CHECK(sent_at_first_layer == 2);
  CHECK(buckets.sent_early() == 3);
  buckets.finish();
}

TEST_CASE("a pass that is not the last sends nothing; a leaf that the loss does not know is sent with the rest") {
  const Layers layers;
  GradientBuckets buckets({}, layers.leaves, once_each, layout_of(layers, 1));
  buckets.clear();
  layers.loss().backward();
  CHECK(buckets.sent_early() == 0);
  buckets.begin_last_pass({});
  layers.leaves[0].sum().backward();
  CHECK(buckets.sent_early() == 0);  // the order is that of all ranks, and the last layer's is not there
  buckets.finish();
  buckets.clear();
  buckets.begin_last_pass({2});  // as the loss fills an untied head
  CHECK(buckets.sent_early() == 1);
  buckets.finish();
}

TEST_CASE("a leaf that one pass fills twice, as a shared layer that is run again does, is sent when it is whole") {
  const Layers layers;
  GradientBuckets buckets({}, layers.leaves, {1, 1, 2}, layout_of(layers, 1));
  buckets.clear();
  buckets.begin_last_pass({});
  layers.loss().backward();
  CHECK(buckets.sent_early() == 0);
  layers.leaves[2].sum().backward();
  CHECK(buckets.sent_early() == 3);
  buckets.finish();
}

TEST_CASE("each rank's parts are as long as another's, and hold every number of every tensor once") {
  const std::vector<at::Tensor> like = {at::zeros({5, 3}), at::zeros({}), at::zeros({7}, at::kDouble),
                                        at::zeros({0, 4}), at::zeros({11})};
  for (const int ranks : {1, 2, 3, 8, 50}) {
    for (const int64_t bytes : {1, 70, 1000}) {
      CAPTURE(ranks);
      CAPTURE(bytes);
      const FlatLayout layout(like, {4, 2, 0, 3, 1}, bytes, ranks);
      std::vector<at::Tensor> whole = layout.zeros(at::kCPU), seen = layout.zeros(at::kCPU);
      for (size_t i = 0; i < like.size(); ++i) {
        layout.view(whole[layout.places[i].bucket], i)
            .copy_(at::arange(1, like[i].numel() + 1).view(like[i].sizes()) + 100 * static_cast<int64_t>(i));
      }
      std::vector<int64_t> numbers(like.size());
      for (int rank = 0; rank < ranks; ++rank) {
        for (const FlatLayout::Piece& piece : layout.pieces(rank)) {
          const size_t b = layout.places[piece.tensor].bucket;
          const at::Tensor part = layout.part(whole[b], b, rank).narrow(0, piece.place, piece.length);
          CHECK(at::equal(part, layout.view(whole[b], piece.tensor).flatten().narrow(0, piece.begin, piece.length)));
          layout.part(seen[b], b, rank).narrow(0, piece.place, piece.length).add_(1);
          numbers[piece.tensor] += piece.length;
        }
      }
      for (size_t i = 0; i < like.size(); ++i) {
        CHECK(numbers[i] == like[i].numel());
        CHECK(at::equal(layout.view(seen[layout.places[i].bucket], i), at::ones_like(like[i])));
      }
      for (const FlatLayout::Bucket& bucket : layout.buckets) {
        CHECK(bucket.numbers % ranks == 0);
      }
    }
  }
}

TEST_CASE("narrow leaves are added up in float32") {
  const Layers layers(at::kBFloat16);
  const std::vector<at::Tensor> once = layers.gradients();
  GradientBuckets buckets({}, layers.leaves, once_each, layout_of(layers));
  buckets.clear();
  for (int pass = 0; pass < 3; ++pass) {
    if (pass == 2) {
      buckets.begin_last_pass({});
    }
    layers.loss().backward();
  }
  buckets.finish();
  for (size_t i = 0; i < once.size(); ++i) {
    CHECK((buckets.gradients()[i].scalar_type() == at::kFloat));
    CHECK(at::allclose(buckets.gradients()[i], 3 * once[i].to(at::kFloat), 1e-6, 1e-6));
    CHECK_FALSE(layers.leaves[i].grad().defined());
  }
}

}  // namespace
