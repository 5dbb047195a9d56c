#include "pare/decode/vectors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pare/decode/kernels_arm.h"
#include "pare/model/rope.h"
#include "pare/support/error.h"

namespace pare {

namespace {

Element element_of(at::ScalarType type) {
  PARE_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, "a matrix of 16 or 32 bits");
  return type == at::kFloat ? Element::float32 : type == at::kBFloat16 ? Element::bfloat16 : Element::float16;
}

std::vector<float> numbers_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  const at::Tensor floats = tensor.to(at::kFloat).contiguous();
  return {floats.const_data_ptr<float>(), floats.const_data_ptr<float>() + floats.numel()};
}

// In float64, and several at once, so that none waits for the one before.
template <class Term>
double summed(std::span<const float> x, const Term& term) {
  constexpr size_t lanes = 8;
  double sums[lanes] = {};
  size_t i = 0;
  for (; i + lanes <= x.size(); i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      sums[lane] += term(static_cast<double>(x[i + lane]));
    }
  }
  double sum = 0;
  for (; i < x.size(); ++i) {
    sum += term(static_cast<double>(x[i]));
  }
  for (const double part : sums) {
    sum += part;
  }
  return sum;
}

}  // namespace

Product::Product(const Linear& linear)
    : bias_(linear.bias.defined() ? linear.bias.tensor().contiguous() : at::Tensor()) {
  if (linear.weight.defined()) {
    weight_ = linear.weight.tensor().contiguous();
    view_ = {weight_.const_data_ptr(), element_of(weight_.scalar_type()), weight_.size(1)};
  }
  PARE_CHECK(!bias_.defined() || bias_.scalar_type() == at::kFloat, "a bias in float32");
}

void Product::rows(int64_t first, int64_t last, std::span<const float> x, std::span<float> scratch, float* y) const {
  if (weight_.defined()) {
    const auto multiply = multiplies_directly(view_) ? multiply_directly : multiply_rows;
    multiply(view_, first, last, x.data(), scratch.data(), y);
  } else {
    std::copy(x.begin() + first, x.begin() + last, y);
  }
  if (bias_.defined()) {
    const float* bias = bias_.const_data_ptr<float>() + first;
    std::transform(y, y + (last - first), bias, y, std::plus<>());
  }
}

std::optional<VectorNorm> vector_norm(const std::optional<NormLayer>& layer) {
  if (!layer) {
    return std::nullopt;
  }
  VectorNorm norm{.kind = layer->spec.kind, .place = layer->spec.place, .epsilon = layer->spec.epsilon};
  norm.gain = layer->gain.defined() ? numbers_of(layer->gain.tensor()) : std::vector<float>();
  norm.bias = numbers_of(layer->bias);
  norm.alpha = layer->alpha.defined() ? layer->alpha.item<float>() : 1;
  return norm;
}

void apply(const std::optional<VectorNorm>& norm, std::span<const float> x, std::span<float> y) {
  if (!norm) {
    return x.data() == y.data() ? void() : void(std::copy(x.begin(), x.end(), y.begin()));
  }
  const size_t n = x.size();
  const double count = static_cast<double>(n);
  const double mean = norm->kind == NormKind::layer ? summed(x, [](double one) { return one; }) / count : 0;
  const double squares = summed(x, [mean](double one) { return (one - mean) * (one - mean); });
  const float centre = static_cast<float>(mean);
  const float root = static_cast<float>(1 / std::sqrt(squares / count + norm->epsilon));
  for (size_t i = 0; i < n; ++i) {
    const float plain = norm->kind == NormKind::dyt ? std::tanh(norm->alpha * x[i]) : (x[i] - centre) * root;
    y[i] = plain * (norm->gain.empty() ? 1 : norm->gain[i]) + (norm->bias.empty() ? 0 : norm->bias[i]);
  }
}

Angles::Angles(const Rope& rope)
    : rope_(rope), frequencies_(rope_frequencies(rope, 0)), cosine_(frequencies_.size()), sine_(frequencies_.size()) {}

void Angles::stand_at(int64_t position) {
  const double factor = rope_.scaling ? rope_.scaling->attention_factor : 1;
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    cosine_[i] = static_cast<float>(std::cos(angle) * factor);
    sine_[i] = static_cast<float>(std::sin(angle) * factor);
  }
}

void Angles::turn(std::span<float> head) const {
  const size_t planes = cosine_.size();
  const bool halves = rope_.layout == RopeLayout::half;
  for (size_t i = 0; i < planes; ++i) {
    float& first = halves ? head[i] : head[2 * i];
    float& second = halves ? head[planes + i] : head[2 * i + 1];
    const float a = first * cosine_[i] - second * sine_[i], b = second * cosine_[i] + first * sine_[i];
    first = a;
    second = b;
  }
}

void activate(Activation activation, std::span<float> x) {
  const int64_t n = std::ssize(x);
  const auto each = [x](const auto& f) { std::transform(x.begin(), x.end(), x.begin(), f); };
  switch (activation) {
    case Activation::gelu:
      return each([](float one) { return 0.5f * one * (1 + std::erf(one * std::numbers::sqrt2_v<float> / 2)); });
    case Activation::gelu_tanh: {  // as in pare/model/activation.cpp
      constexpr float two_c = 1.5957691216057308f;
      return swish(x.data(), n, two_c, two_c * 0.044715f);
    }
    case Activation::gelu_bloom:
      return swish(x.data(), n, 2 * 0.79788456f, 2 * 0.79788456f * 0.044715f);
    case Activation::quick_gelu:
      return swish(x.data(), n, 1.702f, 0);
    case Activation::relu:
      return each([](float one) { return std::max(one, 0.0f); });
    case Activation::relu_squared:
      return each([](float one) { return std::max(one, 0.0f) * std::max(one, 0.0f); });
    case Activation::silu:
      return swish(x.data(), n, 1, 0);
    case Activation::sigmoid:
      return sigmoids(x.data(), n);
    case Activation::tanh:
      return each([](float one) { return std::tanh(one); });
    case Activation::identity:
      return;
    case Activation::xielu:  // the engine lacks it
      break;
  }
  PARE_UNREACHABLE("an activation nobody computes");
}

void softmax(std::span<float> scores) {
  const int64_t n = std::ssize(scores);
  const double sum = exponentials(scores.data(), n, largest(scores.data(), n), scores.data());
  const float factor = static_cast<float>(1 / sum);
  for (float& score : scores) {
    score *= factor;
  }
}

void add_row(const at::Tensor& table, int64_t row, int64_t begin, float factor, std::span<float> y) {
  const int64_t at = row * table.size(1) + begin;
  const auto add = [&](const auto* numbers) {
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] += factor * static_cast<float>(numbers[i]);
    }
  };
  switch (element_of(table.scalar_type())) {
    case Element::float32:
      return add(table.const_data_ptr<float>() + at);
    case Element::bfloat16:
      return add(table.const_data_ptr<at::BFloat16>() + at);
    case Element::float16:
      return add(table.const_data_ptr<at::Half>() + at);
  }
}

}  // namespace pare
