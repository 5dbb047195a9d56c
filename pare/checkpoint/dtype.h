#pragma once
// The element types of the safetensors format, by the names the format gives them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pare {

// clang-format off
enum class Dtype {
  boolean, u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64, c64,
  f8_e4m3, f8_e5m2, f8_e8m0, f8_e4m3fnuz, f8_e5m2fnuz, f6_e2m3, f6_e3m2, f4,
};
// clang-format on

std::optional<Dtype> dtype_from_name(std::string_view name);  // "F32", "BF16", ...
std::string_view dtype_name(Dtype dtype);
int64_t dtype_bits(Dtype dtype);  // sub-byte types exist, so bits
const std::vector<std::string>& dtype_names();
int64_t bytes_of(int64_t elements, Dtype dtype);
double unit_roundoff(Dtype dtype);  // of a type of floats: half the distance from 1 to the next number
// Half the distance between its smallest numbers, where rounding is not relative; 0 where float64 has no number for it.
double smallest_rounding(Dtype dtype);

// The names of the command line and of config.json: float32, bfloat16, float16, float64. Empty for other types.
// Read, short ones mean the same: fp32, bf16, half, double, ...
std::optional<Dtype> float_dtype_from_word(std::string_view word);
std::string_view word(Dtype dtype);

}  // namespace pare
