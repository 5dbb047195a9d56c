#pragma once
// Changes of basis: one invertible Θ for each stream that has one, applied to everything that writes or reads it.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>

#include "pare/algebra/recipes.h"
#include "pare/arch/streams.h"
#include "pare/checkpoint/model.h"

namespace pare {

// Θ, known by what it does to rows.
struct Basis {
  RowMap write;  // rows of a writer: M -> M Θ
  RowMap read;   // rows of a reader, stored [out, in]: M -> M Θ⁻ᵀ
};

// Solves are done with one LU factorisation per matrix, kept while its block is at hand. `key` names the matrix.
struct Factors {
  at::Tensor matrix, lu, pivots;
};
using FactorStore = std::shared_ptr<Kept<Factors>>;

// Θ is the square matrix that `make` computes; or its inverse.
Basis basis_of(const std::string& key, const std::function<at::Tensor()>& make, const FactorStore& store);
Basis inverse_basis_of(const std::string& key, const std::function<at::Tensor()>& make, const FactorStore& store);
// Θ⁻ᵀ: at the other end of a tied table, so that one table still serves both.
Basis dual(const Basis& basis);

// The model with these bases, by stream. Computed positions become a table. A tied table is transformed once: its two
// streams must have dual bases.
Model change_basis(const Model& model, const Streams& streams, const std::map<size_t, Basis>& bases);

// The head gets a matrix of its own.
Model untied(const Model& model);

double condition_number(const at::Tensor& matrix);  // in the 2-norm; infinite for a singular matrix

}  // namespace pare
