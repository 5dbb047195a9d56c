#pragma once
// What may change places without anyone noticing: the neurons of an MLP, and the heads of attention with their keys and
// values. The candidate's are put into the reference's order before anything is compared, and then held to everything
// that others are: an order that is wrong explains nothing.

#include "pare/proof/side.h"

namespace pare {

// For each tensor of the candidate that is in another order, where the reference's entries are. Sides by value: what is
// asked for here is not explained by it.
std::map<TensorId, Order> find_orders(ProofSide reference, ProofSide candidate);

}  // namespace pare
