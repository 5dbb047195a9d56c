#include "pare/search/prove.h"

#include <ATen/ATen.h>

#include "pare/proof/prover.h"
#include "pare/search/basis_search.h"
#include "pare/search/order_search.h"

namespace pare {

Proof prove(const Model& reference, const Model& candidate, at::Device device) {
  const at::NoGradGuard no_grad;
  Prover prover(reference, candidate, device);
  if (prover.is_open()) {
    Relations& relations = prover.in_order(find_orders(prover.reference(), prover.candidate()));
    BasisSearch(relations, device).find();
  }
  return prover.verdict();
}

}  // namespace pare
