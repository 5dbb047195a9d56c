#pragma once
// The freedom inside a head: queries times D and keys times D⁻ᵀ give the same scores, values times D and outputs times
// D⁻¹ the same sum. Chosen well it makes the matrix whose inverse a rewrite needs far better conditioned.
//
// D = R⁻¹ with R from a thin QR of the matrix's columns in that head: its columns become orthonormal. One D for each
// key/value head, from the stacked columns of all query heads that share it. Where RoPE turns a plane only a scaled
// rotation commutes with it, and rotations change no condition number, so there D only evens out the scale. QK-norm
// sees the lengths and a query that is the key sees D twice: both leave D = I.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "pare/algebra/operations.h"
#include "pare/arch/tensor_id.h"
#include "pare/checkpoint/model.h"

namespace pare {

enum class Target { query, key, value, output };

ModuleId module_of(int64_t block, Target target);  // "blocks.3.attention.query"

// R of every key/value head, [kv_heads, k, k], for a target stored [heads * k, width]. Undefined where D must be I.
at::Tensor gauge_of(const Attention& attention, Target target, const at::Tensor& stored);

// Of each row of a target, a number that it shares with those which any D scales alike: the two of a plane that RoPE
// turns, in all heads that share a key/value head. All rows have the same where D must be I.
std::vector<int64_t> rows_scaled_alike(const Attention& attention, Target target);

// The target's rows times D: what its matrix becomes.
at::Tensor gauged_target(const at::Tensor& stored, const at::Tensor& gauge);

// All that the gauge of a matrix depends on besides its numbers, in words.
std::string gauge_key(const Attention& attention, Target target);

// Puts target and partner of one block into that gauge.
void apply_gauge(Model& model, int64_t block, Target target, const std::shared_ptr<Shelf>& shelf);

}  // namespace pare
