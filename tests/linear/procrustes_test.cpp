// A rotation that is known.

#include "pare/linear/map_fit.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

using namespace pare;

TEST_CASE("procrustes finds a rotation") {
  at::manual_seed(2);
  const at::Tensor turn = std::get<0>(at::linalg_qr(at::randn({7, 7}, at::kDouble))),
                   rows = at::randn({30, 7}, at::kDouble);
  const at::Tensor found = procrustes(at::matmul(rows, turn.t()), rows, at::eye(7, at::kDouble));
  CHECK((found - turn).abs().max().item<double>() < 1e-13);
}
