// DINOv2: ViT with outputs that are scaled.

#include "pare/checkpoint/families/shared/dinov2_like.h"

namespace pare {

const Family& family_dinov2() {
  static const Family family =
      make_family(dinov2_like({.model_type = "dinov2", .classes = "Dinov2", .base_prefix = "dinov2."}, /*patch=*/14));
  return family;
}

}  // namespace pare
