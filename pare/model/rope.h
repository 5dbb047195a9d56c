#pragma once
// Rotary positions: angles in float64, rounded once to the dtype that runs.

#include <ATen/core/Tensor.h>

#include <vector>

#include "pare/arch/architecture.h"

namespace pare {

struct Turn {  // cosines and sines, [batch or 1, 1, tokens, width / 2]
  at::Tensor cosine, sine;
};

// How far each plane turns per position. `length`: the longest sequence, which some scalings look at.
std::vector<double> rope_frequencies(const Rope& rope, int64_t length);

// Whether a longer sequence changes the angles of earlier tokens, and with them everything computed from those.
bool depends_on_length(const Rope& rope);

// `frequencies`: those above, on the device of the positions [batch or 1, tokens].
Turn turn_at(const Rope& rope, const at::Tensor& frequencies, const at::Tensor& positions, at::ScalarType dtype);

// Turns the first rope.width dimensions of x [batch, heads, tokens, head_width].
at::Tensor turned(const Rope& rope, const Turn& turn, const at::Tensor& x);

// Fixed positions: [batch, tokens, width], sines and cosines in turn (Vaswani), or all sines before all cosines.
at::Tensor sinusoidal_positions(const at::Tensor& positions, int64_t width, at::ScalarType dtype,
                                Position kind = Position::sinusoidal);
// The same in two steps, the first of which need not be repeated.
std::vector<double> sinusoidal_frequencies(int64_t width, Position kind = Position::sinusoidal);
at::Tensor sinusoidal_at(const at::Tensor& frequencies, const at::Tensor& positions, int64_t width,
                         at::ScalarType dtype, Position kind = Position::sinusoidal);

}  // namespace pare
