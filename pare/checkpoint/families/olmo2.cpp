// OLMo 2: Llama with RMSNorms behind the sublayers alone, and over all queries and all keys of a layer.

#include "pare/checkpoint/families/shared/olmo2_like.h"

namespace pare {

const Family& family_olmo2() {
  using namespace field;
  static const Family family = make_family(olmo2_like({
      .model_type = "olmo2",
      .classes = "Olmo2",
      .keys = {{"rope_parameters", rope()}},
  }));
  return family;
}

}  // namespace pare
