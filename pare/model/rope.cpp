#include "pare/model/rope.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pare {

namespace {

std::vector<double> plain_frequencies(double theta, int64_t width) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < width; i += 2) {
    frequencies.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(width)));
  }
  return frequencies;
}

// Yarn: fast planes keep their frequency, slow ones are divided by the factor, a ramp in between.
void scale_yarn(const Rope& rope, std::vector<double>& frequencies) {
  const RopeScaling& s = *rope.scaling;
  const double width = static_cast<double>(rope.width);
  const auto plane_of = [&](double turns) {
    return width * std::log(s.original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = plane_of(s.beta_fast), high = plane_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high) {
    high += 0.001;  // as Hugging Face does, against a division by zero
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double slow = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / s.factor * slow + frequencies[i] * (1 - slow);
  }
}

void scale_llama3(const RopeScaling& s, std::vector<double>& frequencies) {
  const double longest = s.original_context / s.low_frequency, shortest = s.original_context / s.high_frequency;
  for (double& frequency : frequencies) {
    const double wave = 2 * std::numbers::pi / frequency;
    if (wave > longest) {
      frequency /= s.factor;
    } else if (wave >= shortest) {
      const double smooth = (s.original_context / wave - s.low_frequency) / (s.high_frequency - s.low_frequency);
      frequency = (1 - smooth) * frequency / s.factor + smooth * frequency;
    }
  }
}

}  // namespace

std::vector<double> rope_frequencies(const Rope& rope, int64_t length) {
  std::vector<double> frequencies = plain_frequencies(rope.theta, rope.width);
  if (!rope.scaling) {
    return frequencies;
  }
  const RopeScaling& s = *rope.scaling;
  const double tokens = static_cast<double>(length);
  switch (s.kind) {
    case RopeScalingKind::linear:
      for (double& frequency : frequencies) {
        frequency /= s.factor;
      }
      break;
    case RopeScalingKind::dynamic:
      if (tokens > s.original_context) {
        const double stretch = s.factor * tokens / s.original_context - (s.factor - 1);
        const double width = static_cast<double>(rope.width);
        frequencies = plain_frequencies(rope.theta * std::pow(stretch, width / (width - 2)), rope.width);
      }
      break;
    case RopeScalingKind::yarn:
      scale_yarn(rope, frequencies);
      break;
    case RopeScalingKind::longrope: {
      const std::vector<double>& factors = tokens > s.original_context ? s.long_factor : s.short_factor;
      for (size_t i = 0; i < frequencies.size(); ++i) {
        frequencies[i] /= factors[i];
      }
      break;
    }
    case RopeScalingKind::llama3:
      scale_llama3(s, frequencies);
      break;
  }
  return frequencies;
}

bool depends_on_length(const Rope& rope) {
  return rope.scaling &&
         (rope.scaling->kind == RopeScalingKind::dynamic || rope.scaling->kind == RopeScalingKind::longrope);
}

Turn turn_at(const Rope& rope, const at::Tensor& frequencies, const at::Tensor& positions, at::ScalarType dtype) {
  const at::Tensor angles = positions.to(at::kDouble).unsqueeze(-1) * frequencies;
  const double factor = rope.scaling ? rope.scaling->attention_factor : 1;
  return {(angles.cos() * factor).to(dtype).unsqueeze(1), (angles.sin() * factor).to(dtype).unsqueeze(1)};
}

at::Tensor turned(const Rope& rope, const Turn& turn, const at::Tensor& x) {
  const int64_t half = rope.width / 2;
  const bool halves = rope.layout == RopeLayout::half;
  const at::Tensor first = halves ? x.narrow(-1, 0, half) : x.narrow(-1, 0, rope.width).unfold(-1, 1, 2).squeeze(-1);
  const at::Tensor second =
      halves ? x.narrow(-1, half, half) : x.narrow(-1, 1, rope.width - 1).unfold(-1, 1, 2).squeeze(-1);
  const at::Tensor a = first * turn.cosine - second * turn.sine;
  const at::Tensor b = second * turn.cosine + first * turn.sine;
  const at::Tensor rest = x.narrow(-1, rope.width, x.size(-1) - rope.width);
  return halves ? at::cat({a, b, rest}, -1) : at::cat({at::stack({a, b}, -1).flatten(-2), rest}, -1);
}

at::Tensor sinusoidal_positions(const at::Tensor& positions, int64_t width, at::ScalarType dtype, Position kind) {
  const at::Tensor frequencies = at::tensor(sinusoidal_frequencies(width, kind), at::kDouble).to(positions.device());
  return sinusoidal_at(frequencies, positions, width, dtype, kind);
}

std::vector<double> sinusoidal_frequencies(int64_t width, Position kind) {
  if (kind == Position::sinusoidal) {
    return plain_frequencies(10000, width);
  }
  const int64_t half = width / 2;  // as tensor2tensor has them: the last is 1/10000 itself
  std::vector<double> frequencies;
  for (int64_t i = 0; i < half; ++i) {
    frequencies.push_back(
        std::pow(10000, -static_cast<double>(i) / static_cast<double>(std::max<int64_t>(1, half - 1))));
  }
  return frequencies;
}

at::Tensor sinusoidal_at(const at::Tensor& frequencies, const at::Tensor& positions, int64_t width,
                         at::ScalarType dtype, Position kind) {
  const at::Tensor angles = positions.to(at::kDouble).unsqueeze(-1) * frequencies;
  if (kind == Position::sinusoidal) {
    return at::stack({angles.sin(), angles.cos()}, -1).flatten(-2).narrow(-1, 0, width).to(dtype);
  }
  const at::Tensor both = at::cat({angles.sin(), angles.cos()}, -1);
  return at::constant_pad_nd(both, {0, width - both.size(-1)}).to(dtype);
}

}  // namespace pare
