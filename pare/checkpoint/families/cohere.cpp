// Cohere's Command R, Command R+ and Aya: attention and MLP side by side behind one LayerNorm without a bias; the large
// ones with norms of queries and keys, whose gains each head has of its own.

#include "pare/checkpoint/families/shared/cohere_like.h"

namespace pare {

static const Field norm_of_each_head = field::flag([](const Draft& d) { return d.block.attention.qk_norm.has_value(); },
                                                   [](Draft& d, bool value) {
                                                     Attention& attention = d.block.attention;
                                                     attention.qk_norm = value ? attention.norm : std::nullopt;
                                                     attention.qk_norm_over =
                                                         value ? QkNormOver::each_head : QkNormOver::head;
                                                   });

const Family& family_cohere() {
  using namespace field;
  static const Family family = make_family(cohere_like({
      .model_type = "cohere",
      .classes = "Cohere",
      .keys = {{"use_qk_norm", norm_of_each_head, false}, {"auto_map", own_classes("Cohere")}},
  }));
  return family;
}

}  // namespace pare
