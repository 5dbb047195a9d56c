#pragma once
// Which orders of units, and which factors of neurons, change no function; and what they do to each tensor. An order
// that is legal and wrong explains nothing: tensors in it are held to everything that others are.

#include <string>

#include "pare/proof/model_view.h"
#include "pare/proof/witness.h"

namespace pare {

// Along this axis of a tensor every neuron has its entry.
struct NeuronAxis {
  TensorId tensor;
  int64_t axis = 0;
};
// Of the MLP of a block whose neurons may change places; none where they may not.
std::vector<NeuronAxis> neuron_axes(const Architecture& architecture, int64_t block);

// What may be scaled of what each reads; none where they may not change places.
std::vector<FreeFactor> free_factors(const Architecture& architecture, int64_t block);

// Not where something tells heads apart.
bool heads_may_move(const ModelView& reference, const ModelView& candidate, int64_t block);
// Of heads that change places together, with their keys and values; as many as there are heads where products are
// stored.
int64_t groups_of_heads(const Attention& attention);

// For each tensor of the candidate that is in another order, where the reference's entries are. What is not legal
// becomes a gap, and no order.
std::map<TensorId, Order> orders_of_tensors(const ModelView& reference, const ModelView& candidate,
                                            const std::vector<BlockOrder>& blocks, std::vector<std::string>& gaps);

}  // namespace pare
