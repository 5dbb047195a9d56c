#include "pare/checkpoint/weights.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <array>
#include <atomic>

#include "pare/checkpoint/safetensors.h"
#include "pare/checkpoint/shards.h"
#include "pare/support/error.h"
#include "pare/support/finite.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

// The eight-bit and smaller floats are left out on purpose: they are quantised, and mean nothing without their scales.
constexpr std::array<std::pair<Dtype, at::ScalarType>, 14> scalar_types = {{
    {Dtype::boolean, at::kBool},
    {Dtype::u8, at::kByte},
    {Dtype::i8, at::kChar},
    {Dtype::u16, at::kUInt16},
    {Dtype::i16, at::kShort},
    {Dtype::u32, at::kUInt32},
    {Dtype::i32, at::kInt},
    {Dtype::u64, at::kUInt64},
    {Dtype::i64, at::kLong},
    {Dtype::f16, at::kHalf},
    {Dtype::bf16, at::kBFloat16},
    {Dtype::f32, at::kFloat},
    {Dtype::f64, at::kDouble},
    {Dtype::c64, at::kComplexFloat},
}};

bool all_finite(at::ScalarType type, std::span<const std::byte> bytes) {
  switch (type) {
    case at::kHalf:
      return all_finite(bytes, FloatFormat::binary16);
    case at::kBFloat16:
      return all_finite(bytes, FloatFormat::bfloat16);
    case at::kFloat:
    case at::kComplexFloat:
      return all_finite(bytes, FloatFormat::binary32);
    case at::kDouble:
      return all_finite(bytes, FloatFormat::binary64);
    default:
      return true;
  }
}

[[noreturn]] void fail_not_finite(const at::Tensor& tensor, const std::string& name, const std::string& subject) {
  at::Tensor flat = (tensor.is_complex() ? at::view_as_real(tensor) : tensor).flatten();
  at::Tensor bad = at::isfinite(flat).logical_not().nonzero().flatten();
  int64_t first = bad[0].item<int64_t>();
  throw InputError(fmt::format("tensor {} of {} is not finite: element {} is {}, and {} of {} are infinite or NaN",
                               quote(name), subject, with_commas(first), flat[first].item<double>(),
                               with_commas(bad.numel()), with_commas(flat.numel())));
}

// `rows` entries of the first axis from `first_row` on.
at::Tensor load(const TensorFile& file, const std::string& name, int64_t first_row, int64_t rows) {
  check_interrupt();
  const StoredTensor& stored = file.tensors().at(name);
  std::string subject = quote(file.path().filename().string());
  at::ScalarType type;
  try {
    type = scalar_type(stored.dtype);
  } catch (const InputError& error) {
    throw InputError(fmt::format("tensor {} of {}: {}", quote(name), subject, error.what()));
  }
  Shape shape = stored.shape;
  if (!shape.empty()) {
    shape[0] = rows;
  }
  at::Tensor tensor = at::empty(shape, type);
  std::span<std::byte> bytes(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes());
  const int64_t skipped = rows == 0 ? 0 : first_row * (std::ssize(bytes) / rows);
  // A piece still lies in its core's cache when it is checked, and several cores copy faster than one.
  constexpr int64_t piece = 1 << 20;
  std::atomic<bool> finite = true;
  at::parallel_for(0, (std::ssize(bytes) + piece - 1) / piece, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::span<std::byte> part = bytes.subspan(i * piece, std::min<int64_t>(piece, std::ssize(bytes) - i * piece));
      file.read(name, static_cast<uint64_t>(skipped + i * piece), part);
      if (!all_finite(type, part)) {
        finite = false;
      }
    }
  });
  if (!finite) {
    fail_not_finite(tensor, name, subject);
  }
  return tensor;
}

}  // namespace

at::ScalarType scalar_type(Dtype dtype) {
  for (const auto& [ours, torchs] : scalar_types) {
    if (ours == dtype) {
      return torchs;
    }
  }
  throw InputError(
      fmt::format("{} is a quantised type that pare does not compute with: use a checkpoint in float16, "
                  "bfloat16, float32 or float64",
                  dtype_name(dtype)));
}

Dtype dtype_of(at::ScalarType type) {
  for (const auto& [ours, torchs] : scalar_types) {
    if (torchs == type) {
      return ours;
    }
  }
  PARE_UNREACHABLE(std::string("no stored type for ") + at::toString(type));
}

void check_finite(const at::Tensor& tensor, const std::string& name, const std::string& subject) {
  PARE_CHECK(tensor.is_cpu() && tensor.is_contiguous(), quote(name));
  std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
  if (!all_finite(tensor.scalar_type(), bytes)) {
    fail_not_finite(tensor, name, subject);
  }
}

Weights weights_of(const TensorFile& file) {
  Weights weights;
  for (const auto& [name, stored] : file.tensors()) {
    const int64_t all = stored.shape.empty() ? 1 : stored.shape[0];
    Weight::LoadRows rows = [file, name = name](int64_t begin, int64_t count) {
      return load(file, name, begin, count);
    };
    weights[name] = Weight::leaf(
        name, stored.dtype, stored.shape, [rows, all] { return rows(0, all); }, stored.shape.empty() ? nullptr : rows);
  }
  return weights;
}

Weights weights_of(std::span<const TensorFile> files) {
  Weights weights;
  for (const TensorFile& file : files) {
    weights.merge(weights_of(file));
  }
  return weights;
}

Weights open_weights(const std::filesystem::path& folder) {
  return weights_of(open_shards(folder).files);
}

}  // namespace pare
