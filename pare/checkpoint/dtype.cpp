#include "pare/checkpoint/dtype.h"

#include <algorithm>
#include <array>

#include "pare/support/error.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

struct Row {
  Dtype dtype;
  std::string_view name;
  int64_t bits;
  std::string_view word;
  std::array<std::string_view, 3> synonyms = {};
  double roundoff = 0, smallest = 0;  // of what weights may be
};

constexpr std::array rows = {
    Row{Dtype::boolean, "BOOL", 8, ""},
    Row{Dtype::u8, "U8", 8, ""},
    Row{Dtype::i8, "I8", 8, ""},
    Row{Dtype::u16, "U16", 16, ""},
    Row{Dtype::i16, "I16", 16, ""},
    Row{Dtype::u32, "U32", 32, ""},
    Row{Dtype::i32, "I32", 32, ""},
    Row{Dtype::u64, "U64", 64, ""},
    Row{Dtype::i64, "I64", 64, ""},
    Row{Dtype::f16, "F16", 16, "float16", {"fp16", "f16", "half"}, 0x1p-11, 0x1p-25},
    Row{Dtype::bf16, "BF16", 16, "bfloat16", {"bf16"}, 0x1p-8, 0x1p-134},
    Row{Dtype::f32, "F32", 32, "float32", {"fp32", "f32", "float"}, 0x1p-24, 0x1p-150},
    Row{Dtype::f64, "F64", 64, "float64", {"fp64", "f64", "double"}, 0x1p-53, 0},
    Row{Dtype::c64, "C64", 64, ""},
    Row{Dtype::f8_e4m3, "F8_E4M3", 8, ""},
    Row{Dtype::f8_e5m2, "F8_E5M2", 8, ""},
    Row{Dtype::f8_e8m0, "F8_E8M0", 8, ""},
    Row{Dtype::f8_e4m3fnuz, "F8_E4M3FNUZ", 8, ""},
    Row{Dtype::f8_e5m2fnuz, "F8_E5M2FNUZ", 8, ""},
    Row{Dtype::f6_e2m3, "F6_E2M3", 6, ""},
    Row{Dtype::f6_e3m2, "F6_E3M2", 6, ""},
    Row{Dtype::f4, "F4", 4, ""},
};

const Row& row(Dtype dtype) {
  for (const Row& candidate : rows) {
    if (candidate.dtype == dtype) {
      return candidate;
    }
  }
  PARE_UNREACHABLE("a Dtype without a row in the table");
}

}  // namespace

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (const Row& candidate : rows) {
    if (candidate.name == name) {
      return candidate.dtype;
    }
  }
  return std::nullopt;
}

std::string_view dtype_name(Dtype dtype) {
  return row(dtype).name;
}

int64_t dtype_bits(Dtype dtype) {
  return row(dtype).bits;
}

const std::vector<std::string>& dtype_names() {
  static const std::vector<std::string> names =
      mapped(rows, [](const Row& candidate) { return std::string(candidate.name); });
  return names;
}

std::optional<Dtype> float_dtype_from_word(std::string_view word) {
  for (const Row& candidate : rows) {
    const auto& synonyms = candidate.synonyms;
    const bool named = candidate.word == word || std::ranges::find(synonyms, word) != synonyms.end();
    if (!word.empty() && named) {
      return candidate.dtype;
    }
  }
  return std::nullopt;
}

std::string_view word(Dtype dtype) {
  return row(dtype).word;
}

int64_t bytes_of(int64_t elements, Dtype dtype) {
  return elements * dtype_bits(dtype) / 8;
}

double unit_roundoff(Dtype dtype) {
  PARE_CHECK(row(dtype).roundoff > 0, "weights are floats");
  return row(dtype).roundoff;
}

double smallest_rounding(Dtype dtype) {
  PARE_CHECK(row(dtype).roundoff > 0, "weights are floats");
  return row(dtype).smallest;
}

}  // namespace pare
