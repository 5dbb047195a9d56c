#pragma once
// Newer ARM machines multiply numbers of 16 bits and add in float32 by one instruction, where Highway's loops must
// first make float32 of them. x comes in parts of 16 bits, so that no more of it is lost than float32 itself loses.

#include "pare/decode/kernels.h"

namespace pare {

// Whether this machine has them, and they are the faster way to multiply such a matrix.
bool multiplies_directly(const MatrixView& matrix);

// As multiply_rows.
void multiply_directly(const MatrixView& matrix, int64_t first, int64_t last, const float* x, float* scratch, float* y);

}  // namespace pare
