#pragma once
// One representative for all the heads that are the same function: of each head's two gauges, and of their order.
//
// A head's scores see its queries x̂ A and keys ŷ B, x̂ = [x, 1], only through A Bᵀ, its outputs see values x̂ A and the
// output matrix Bᵀ only through A Bᵀ. So A D and B D⁻ᵀ are as good for every invertible D, one for each key/value head.
// The representative is A = U √S, B = V √S of the singular value decomposition U S Vᵀ of A Bᵀ: both sides share the
// scale, and the columns of each are orthogonal, the longest first. It needs no inverse: A = Q_A R_A,
// B R_Aᵀ = Q P, P = V' S U'ᵀ, and then Q_A U' √S, Q V' √S; but where D is well conditioned A D and B D⁻ᵀ are taken,
// whose small rows are as good as the large ones. Signs: the largest entry of a column of A is positive.

#include <ATen/core/Tensor.h>

#include "pare/arch/attention.h"

namespace pare {

// The two sides of heads, [groups, rows, head_width]; several heads of a group, and biases, are more rows.
struct HeadSides {
  at::Tensor left, right;
};

// Which D leave scores as they are.
enum class ScoreGauge {
  general,     // any; with RoPE a scaled rotation of each plane that turns
  orthogonal,  // D D' = I: a query that is the key, or a norm of queries and keys; with RoPE a rotation of each plane
};

// Of values and outputs. A head whose product has not the rank of its width stays as it is.
HeadSides canonical_values(const HeadSides& sides);
// Of queries and keys. Without a left side the query is the key.
HeadSides canonical_scores(const Attention& attention, ScoreGauge gauge, const HeadSides& sides);

// The heads in their order, [heads] of int64: groups by the length (root of the sum of squares) of A Bᵀ of all their
// heads, the longest first, and likewise the heads of each group. Equal ones keep their order. Of canonical sides,
// where right has one part of as many rows for each head of the group.
at::Tensor canonical_order(const Attention& attention, const HeadSides& values);

// Matrices as they are stored, [heads * head_width, n], and a bias or none, as a side: [groups, heads of it * (n + 1),
// head_width]; and back: the matrix with the bias as its last column.
at::Tensor side_of(const Attention& attention, const at::Tensor& matrix, const at::Tensor& bias);
at::Tensor stored_of(const at::Tensor& side, int64_t columns);

}  // namespace pare
