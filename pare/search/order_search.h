#pragma once
// What may change places without anyone noticing: the neurons of an MLP, and the heads of attention with their keys and
// values. Which of the candidate's is which of the reference's is found here, by what each of them does.

#include "pare/proof/orders.h"

namespace pare {

// By block. Sides by value: what is asked for here is not explained by it.
std::vector<BlockOrder> find_orders(ModelView reference, ModelView candidate);

}  // namespace pare
