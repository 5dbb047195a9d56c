#pragma once
// What a model is asked: a batch of token sequences, or of images.

#include <ATen/core/Tensor.h>

#include <functional>

namespace pare {

struct Inputs {
  at::Tensor ids;    // int64 [batch, tokens]; not with pixels
  at::Tensor mask;   // bool [batch, tokens]: true where there is a token; undefined: everywhere. Left or right padding.
  at::Tensor types;  // int64 [batch, tokens]; undefined: zeros
  at::Tensor positions;  // int64 [batch, tokens]; undefined: real tokens counted from 0, so padding changes no answer
  at::Tensor pixels;     // float [batch, channels, height, width]
};

// The same batch with every tensor that is there changed: moved to a device, some rows of it.
Inputs each_of(Inputs inputs, const std::function<at::Tensor(const at::Tensor&)>& change);
Inputs moved(const Inputs& inputs, at::Device device);
Inputs rows_of(const Inputs& inputs, int64_t first, int64_t count);

int64_t batch_size(const Inputs& inputs);

}  // namespace pare
