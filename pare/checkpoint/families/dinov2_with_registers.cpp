// DINOv2 with learned tokens behind the class token, which join when all others have their positions.

#include "pare/checkpoint/families/shared/dinov2_like.h"

namespace pare {

const Family& family_dinov2_with_registers() {
  static const Field registers = field::whole([](Draft& d) -> int64_t& { return d.a.embedding.registers; }, most::rows);
  static const Family family = make_family(dinov2_like({.model_type = "dinov2_with_registers",
                                                        .classes = "Dinov2WithRegisters",
                                                        .base_prefix = "dinov2_with_registers.",
                                                        .model = {.embedding = {.registers = 1}},
                                                        .keys = {{"num_register_tokens", registers, 4}}},
                                                       /*patch=*/16));
  return family;
}

}  // namespace pare
