// GLM: Llama whose heads turn by half, with fused gates.

#include "pare/checkpoint/families/shared/glm_like.h"

namespace pare {

const Family& family_glm() {
  static const Family family = make_family(glm_like({.model_type = "glm", .classes = "Glm"}));
  return family;
}

}  // namespace pare
