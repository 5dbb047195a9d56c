#pragma once
// What the towers of CLIP and SigLIP share: the names of their layers, a LayerNorm before each sublayer, biases in all
// of them.

#include "pare/checkpoint/families/shared/image_like.h"

namespace pare {

// Of a layer; the norms within it are where the model says.
Block clip_block(Mask mask);
std::vector<TensorRow> clip_layers();

// What is projected of the token that stands for the sequence: by a matrix, with a bias or not.
HeadTransform projection(bool bias);
// How wide it becomes, where it is there; nullptr for a default: the width of the stream.
extern const Field projection_width;

}  // namespace pare
