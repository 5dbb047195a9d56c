#pragma once
// What models of images share: how large images and patches are, and a stream that is as long as these say.

#include <string>

#include "pare/checkpoint/family_table.h"
#include "pare/checkpoint/fields.h"

namespace pare {

namespace field {

extern const Field image_side, patch_side;  // one side, or a list of two equal ones
extern const Field channels;
extern const Field pooler_activation;  // of a bare model, whose pooler keeps the width

}  // namespace field

// ViT's: a class token before patches, LayerNorm before each sublayer, full attention.
Architecture vit_model();
// The names of ViT's tensors.
std::vector<TensorRow> vit_tensors();

void count_positions(Config& config, Draft& draft);

// Under the key "architectures": says why a class of the family is not among those that are read.
Field refused_class(std::string name, std::string why);

}  // namespace pare
