// GLM 4: GLM with a norm after each sublayer too.

#include "pare/checkpoint/families/shared/glm_like.h"

namespace pare {

const Family& family_glm4() {
  static const Family family =
      make_family(glm_like({.model_type = "glm4",
                            .classes = "Glm4",
                            .model = llama_model({.norm = rms_norm(), .output_norm = rms_norm()})}));
  return family;
}

}  // namespace pare
