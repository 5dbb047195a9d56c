#pragma once
// New weights of old ones: each operation with its formula, in float64, evaluated when somebody writes or runs it.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "pare/arch/streams.h"
#include "pare/checkpoint/weights.h"

namespace pare {

at::Tensor load_double(const Weight& weight);

// A new tensor, of inputs in float64. It is float64 itself, and rounded once, when it is written.
Weight computed(Shape shape, Formula formula, std::vector<Weight> inputs, Weight::Operation make,
                Weight::Rows rows = Weight::Rows::all);

// Rows times a square matrix: [n, width] in, the same out, each row by itself. `inputs` in float64 is what it takes.
struct RowMap {
  Formula matrix;
  std::vector<Weight> inputs;
  std::function<at::Tensor(const at::Tensor& rows, const std::vector<at::Tensor>& inputs)> apply;
};

// The weight, of the port's name, with `map` applied along the port: to `width` entries of its axis. Along the last
// axis of a matrix rows stay what they are, so a table can still be had a few rows at a time.
Weight mapped_along(const Weight& weight, const Port& port, int64_t width, const RowMap& map);

// The table of the token embeddings, as the head's matrix: the same numbers.
Weight as_head(const Weight& table);

Weight rounded(const Weight& weight, Dtype dtype);

// The numbers that several weights are made with (a matrix, its factors, a gauge). Those asked for last are held, the
// others are had again: a block reads one stream and writes the next, so two of each kind are enough.
class Shelf;
std::shared_ptr<Shelf> make_shelf();
// The same weight, on a shelf. What it loads is shared, and must not be overwritten.
Weight held(const Weight& weight, const std::shared_ptr<Shelf>& shelf);

// The LU factors of a square matrix, [n, n + 1]: the pivots are the last column, which float64 holds exactly.
Weight factored(const Weight& square);
// X with X A = rows, or with X Aᵀ = rows.
at::Tensor solved(const at::Tensor& rows, const at::Tensor& factors, bool transposed);

}  // namespace pare
