// XLM-RoBERTa: RoBERTa for a hundred languages.

#include "pare/checkpoint/families/shared/roberta_like.h"

namespace pare {

const Family& family_xlm_roberta() {
  static const Family family =
      make_family(roberta_like({.model_type = "xlm-roberta", .classes = "XLMRoberta"}, /*vocabulary=*/30522));
  return family;
}

}  // namespace pare
