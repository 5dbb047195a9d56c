#pragma once
// Images to learn from, as bytes: one tensor that fits where the model is, and a batch is some rows of it, made numbers
// there.

#include <ATen/core/Tensor.h>

#include <vector>

#include "pare/train/config.h"

namespace pare {

struct ImageData {
  at::Tensor pixels;  // uint8 [images, channels, side, side]
  at::Tensor labels;  // int64 [images]
};

// (byte / 255 - mean) / deviation, in float32 on the device of the pixels. One number, or one for each channel.
at::Tensor normalised_pixels(const at::Tensor& pixels, const std::vector<double>& mean,
                             const std::vector<double>& deviation);

}  // namespace pare
