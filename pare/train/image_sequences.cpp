#include "pare/train/sequences.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "pare/data/image_set.h"
#include "pare/support/error.h"
#include "pare/support/mapped.h"
#include "pare/support/sha256.h"

namespace pare {

namespace {

ImageFormat image_format(DataFormat format) {
  switch (format) {
    case DataFormat::idx:
      return ImageFormat::idx;
    case DataFormat::cifar10:
      return ImageFormat::cifar10;
    case DataFormat::cifar100:
      return ImageFormat::cifar100;
    case DataFormat::folders:
      return ImageFormat::folders;
    default:
      PARE_UNREACHABLE("a format of text for images");
  }
}

template <class T>
std::string_view bytes_in(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType type) {
  const at::Tensor tensor = at::empty(shape, type);
  std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof(T));
  return tensor;
}

ImageData data_of(const ImageSet& set) {
  return {tensor_of(set.pixels, {set.size(), set.shape.channels, set.shape.side, set.shape.side}, at::kByte),
          tensor_of(set.labels, {set.size()}, at::kLong)};
}

nlohmann::ordered_json set_json(const ImageSet& set) {
  return mapped(set.files, [](const ImageFile& file) {
    return nlohmann::ordered_json{{"path", file.path}, {"images", file.images}, {"sha256", file.sha256}};
  });
}

// What is learned from, whatever it was stored in.
nlohmann::ordered_json image_contents(const ImageSet& set) {
  return {{"images", set.size()},
          {"sha256_of_pixels", sha256_of(bytes_in(set.pixels))},
          {"sha256_of_labels", sha256_of(bytes_in(set.labels))}};
}

// Every tenth image, for a share of 0.1: they often lie class by class, so that their end would be of one class.
struct SplitNumbers {
  std::vector<int64_t> training, validation;
};
SplitNumbers spread_apart(int64_t images, double share) {
  SplitNumbers split;
  for (int64_t i = 0; i < images; ++i) {
    const bool taken = std::floor(static_cast<double>(i + 1) * share) > std::floor(static_cast<double>(i) * share);
    (taken ? split.validation : split.training).push_back(i);
  }
  return split;
}

class ImageSequences : public Sequences {
 public:
  explicit ImageSequences(const TrainConfig& config) : mean_(config.data.mean), deviation_(config.data.deviation) {
    const Patch& patch = *config.architecture.embedding.patch;
    const ImageShape shape{patch.channels, patch.image};
    const ImageFormat format = image_format(config.data.format);
    const int64_t classes = config.architecture.head.classes.value_or(0);
    const ImageSet train = read_images(config.data.train, format, shape, classes);
    const ImageSet other = read_images(config.data.validation, format, shape, classes);
    refuse_if(!other.classes.empty() && other.classes != train.classes,
              "data.validation: its {} classes have other names than the {} of data.train", other.classes.size(),
              train.classes.size());
    manifest_ = {{"train", set_json(train)},
                 {"validation", set_json(other)},
                 {"contents", {{"train", image_contents(train)}, {"validation", image_contents(other)}}},
                 {"classes", train.classes},
                 {"mean", mean_},
                 {"deviation", deviation_}};
    train_ = data_of(train);
    validation_ = data_of(other);
    if (config.data.validation.empty()) {
      const SplitNumbers split = spread_apart(train.size(), config.data.validation_share);
      const ImageData all = train_;
      train_ = rows(all, split.training);
      validation_ = rows(all, split.validation);
      manifest_["validation_share"] = config.data.validation_share;
    }
    validation_ = shuffled(validation_);
    refuse_if(training() == 0 || validation() == 0,
              "the data: {} images are left for training and {} for validation: both need one", training(),
              validation());
  }

  int64_t training() const override { return train_.labels.size(0); }
  int64_t validation() const override { return validation_.labels.size(0); }

  TrainBatch batch(bool of_validation, const std::vector<int64_t>& numbers, int64_t) const override {
    const ImageData chosen = rows(of_validation ? validation_ : train_, numbers);
    return {{.pixels = normalised_pixels(chosen.pixels, mean_, deviation_)}, chosen.labels, true};
  }

  nlohmann::ordered_json manifest() const override { return manifest_; }

  const ImageData* images(bool of_validation) const override { return of_validation ? &validation_ : &train_; }

 private:
  static ImageData rows(const ImageData& all, const std::vector<int64_t>& numbers) {
    const at::Tensor chosen = at::tensor(numbers, at::kLong);
    return {all.pixels.index_select(0, chosen), all.labels.index_select(0, chosen)};
  }

  // The same order for every run: who measures on the first so many would else see the first classes alone.
  static ImageData shuffled(const ImageData& all) {
    const std::vector<int32_t> order = draw_order(all.labels.size(0), all.labels.size(0), /*seed=*/0);
    return rows(all, {order.begin(), order.end()});
  }

  std::vector<double> mean_, deviation_;
  ImageData train_, validation_;
  nlohmann::ordered_json manifest_;
};

}  // namespace

at::Tensor normalised_pixels(const at::Tensor& pixels, const std::vector<double>& mean,
                             const std::vector<double>& deviation) {
  const auto of_channels = [&](const std::vector<double>& values) {
    return at::tensor(values, at::kFloat).view({1, -1, 1, 1}).to(pixels.device());
  };
  return pixels.to(at::kFloat).div_(255).sub_(of_channels(mean)).div_(of_channels(deviation));
}

std::shared_ptr<const Sequences> image_sequences(const TrainConfig& config) {
  return std::make_shared<ImageSequences>(config);
}

}  // namespace pare
