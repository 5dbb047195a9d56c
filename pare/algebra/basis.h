#pragma once
// Changes of basis: one invertible Θ for each stream that has one, applied to everything that writes or reads it.

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>

#include "pare/algebra/operations.h"
#include "pare/arch/streams.h"
#include "pare/checkpoint/model.h"

namespace pare {

// Θ, known by what it does to rows.
struct Basis {
  RowMap write;  // rows of a writer: M -> M Θ
  RowMap read;   // rows of a reader, stored [out, in]: M -> M Θ⁻ᵀ
};

// Where the matrices of one rewrite and their factors are held while their blocks are at hand.
struct Shelves {
  std::shared_ptr<Shelf> matrices = make_shelf(), factors = make_shelf(), gauges = make_shelf();
};

// Θ is the square matrix, [in, out], or its inverse. Solves are done with one LU factorisation.
Basis basis_of(const Weight& matrix, const Shelves& shelves);
Basis inverse_basis_of(const Weight& matrix, const Shelves& shelves);
// Θ⁻ᵀ: at the other end of a tied table, so that one table still serves both.
Basis dual(const Basis& basis);

// The model with these bases, by stream. Computed positions become a table. A tied table is transformed once: its two
// streams must have dual bases.
Model change_basis(const Model& model, const Streams& streams, const std::map<size_t, Basis>& bases);

// The head gets a matrix of its own.
Model untied(const Model& model);

at::Tensor singular_values(const at::Tensor& matrix);
double condition_of(const at::Tensor& singular_values);  // largest over smallest; infinite for a singular matrix
// The same in the mean of squares, |Θ| |Θ⁻¹| / n: what one random rounding in this basis grows to, when the others of a
// row are as random.
double usual_condition_of(const at::Tensor& singular_values);
double condition_number(const at::Tensor& matrix);

}  // namespace pare
