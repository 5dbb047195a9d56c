#include "pare/model/inputs.h"

#include <ATen/ATen.h>

namespace pare {

Inputs each_of(Inputs inputs, const std::function<at::Tensor(const at::Tensor&)>& change) {
  for (at::Tensor Inputs::*field : {&Inputs::ids, &Inputs::mask, &Inputs::types, &Inputs::positions, &Inputs::pixels}) {
    if ((inputs.*field).defined()) {
      inputs.*field = change(inputs.*field);
    }
  }
  return inputs;
}

Inputs moved(const Inputs& inputs, at::Device device) {
  return each_of(inputs, [device](const at::Tensor& tensor) { return tensor.to(device); });
}

Inputs rows_of(const Inputs& inputs, int64_t first, int64_t count) {
  return each_of(inputs, [=](const at::Tensor& tensor) { return tensor.narrow(0, first, count); });
}

int64_t batch_size(const Inputs& inputs) {
  return (inputs.pixels.defined() ? inputs.pixels : inputs.ids).size(0);
}

}  // namespace pare
