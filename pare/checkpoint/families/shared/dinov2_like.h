#pragma once
// What DINOv2 has with and without registers: ViT whose sublayers' outputs are scaled (LayerScale), and whose first
// token, behind the last norm, stands for the image.

#include "pare/checkpoint/families/shared/image_like.h"

namespace pare {

// Adds the model, the keys, the tensors and the heads to a table. `patch`: the default of patch_size.
FamilyTable dinov2_like(FamilyTable table, int64_t patch);

}  // namespace pare
