// RoBERTa: BERT with positions that leave out the padding token, and heads of other names.

#include "pare/checkpoint/families/shared/roberta_like.h"

namespace pare {

const Family& family_roberta() {
  static const Family family =
      make_family(roberta_like({.model_type = "roberta", .classes = "Roberta"}, /*vocabulary=*/50265));
  return family;
}

}  // namespace pare
