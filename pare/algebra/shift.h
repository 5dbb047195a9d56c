#pragma once
// A constant vector on a stream is a constant at each of its readers: W (x + c) = W x + W c. It moves into their
// biases.

#include <string>
#include <vector>

#include "pare/arch/streams.h"
#include "pare/arch/tensors.h"
#include "pare/checkpoint/model.h"

namespace pare {

// The readers that could not take a constant into a bias they have, each with the reason. `stored`: the table of the
// Architecture, which whoever asks about many streams makes once.
std::vector<std::string> readers_without_bias(const Architecture& architecture, const TensorTable& stored,
                                              const Stream& stream);

// Adds W c to the bias of every reader of the stream; a bias is created where there is none.
// `constant` is not looked at in a model without weights.
void shift_readers(Model& model, const Stream& stream, const Weight& constant);

}  // namespace pare
