// CamemBERT: RoBERTa for French.

#include "pare/checkpoint/families/shared/roberta_like.h"

namespace pare {

const Family& family_camembert() {
  static const Family family =
      make_family(roberta_like({.model_type = "camembert", .classes = "Camembert"}, /*vocabulary=*/30522));
  return family;
}

}  // namespace pare
