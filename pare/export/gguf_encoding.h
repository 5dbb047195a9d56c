#pragma once
// Numbers as the types of GGUF hold them: the same bits as ggml's converter writes.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "pare/support/gguf.h"

namespace pare {

// Whole rows, of any type of floats, as float32, float16, bfloat16 or Q8_0. `name` is for messages: InputError for a
// number that the type does not have.
std::vector<std::byte> gguf_encoded(const at::Tensor& rows, GgufType type, const std::string& name);

}  // namespace pare
