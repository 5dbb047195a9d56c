#include "pare/export/gguf_encoding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

constexpr int64_t q8_elements = 32, q8_bytes = 34;  // a scale in float16, then a byte for each element

std::vector<std::byte> bytes_of_tensor(const at::Tensor& tensor) {
  const auto* const begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {begin, begin + tensor.nbytes()};
}

// The scale makes the largest of the 32 numbers 127. Levels are those of the scale before it is rounded.
void encode_q8_0(const float* numbers, std::byte* block) {
  float largest = 0;
  for (int64_t i = 0; i < q8_elements; ++i) {
    largest = std::max(largest, std::abs(numbers[i]));
  }
  // A scale so small that it has no inverse is stored as zero.
  const float scale = largest / 127, inverse = std::isfinite(1 / scale) ? 1 / scale : 0;
  const auto stored = static_cast<at::Half>(scale);
  std::memcpy(block, &stored, sizeof stored);
  for (int64_t i = 0; i < q8_elements; ++i) {
    block[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(numbers[i] * inverse)));
  }
}

}  // namespace

std::vector<std::byte> gguf_encoded(const at::Tensor& rows, GgufType type, const std::string& name) {
  const at::Tensor exact = rows.to(at::kFloat).contiguous();
  const auto refuse_beyond = [&](double largest, const char* what) {
    const double found = exact.numel() > 0 ? exact.abs().max().item<double>() : 0;
    refuse_if(!(found <= largest), "tensor {} holds {:.6g}, beyond the largest number of {}, {:.6g}: export it in {}",
              quote(name), found, what, largest, type == GgufType::f32 ? "nothing smaller" : "bfloat16 or float32");
  };
  switch (type) {
    case GgufType::f32:
      refuse_beyond(3.4028234663852886e38, "float32");
      return bytes_of_tensor(exact);
    case GgufType::f16:
      refuse_beyond(65519.99, "float16");  // what is nearer to 65504 than to the next that it would have
      return bytes_of_tensor(exact.to(at::kHalf));
    case GgufType::bf16:
      refuse_beyond(3.3961775292304e38, "bfloat16");
      return bytes_of_tensor(exact.to(at::kBFloat16));
    case GgufType::q8_0: {
      refuse_beyond(65519.99 * 127, "Q8_0");
      PARE_CHECK(exact.size(-1) % q8_elements == 0, "rows of tensor " + quote(name) + " are no whole blocks");
      const int64_t blocks = exact.numel() / q8_elements;
      std::vector<std::byte> bytes(static_cast<size_t>(blocks * q8_bytes));
      const float* const numbers = exact.const_data_ptr<float>();
      at::parallel_for(0, blocks, 1 << 12, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i) {
          encode_q8_0(numbers + i * q8_elements, bytes.data() + i * q8_bytes);
        }
      });
      return bytes;
    }
    default:
      PARE_UNREACHABLE("a type that nobody writes");
  }
}

}  // namespace pare
