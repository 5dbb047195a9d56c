// OLMo 3: OLMo 2 with a window in three of four layers, which turn as if the context had not been stretched.

#include "pare/checkpoint/families/shared/needed_window.h"
#include "pare/checkpoint/families/shared/olmo2_like.h"

namespace pare {

const Family& family_olmo3() {
  using namespace field;
  static const Family family = make_family(olmo2_like({
      .model_type = "olmo3",
      .classes = "Olmo3",
      .keys =
          {
              {"sliding_window", needed_window, 4096},
              {"layer_types", layer_types([](int64_t layer) { return (layer + 1) % 4 != 0; })},
              // transformers has no older key for the base of layers with a window.
              {"rope_parameters",
               rope_by_type({.full = {.theta = 500000}, .sliding = {.theta = 500000, .theta_key = ""}})},
          },
  }));
  return family;
}

}  // namespace pare
