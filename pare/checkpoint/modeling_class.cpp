#include "pare/checkpoint/modeling_code.h"

namespace pare {

ModelingClass modeling_class(const Architecture& architecture) {
  switch (architecture.task) {
    case Task::causal_lm:
      return {"PareForCausalLM", "AutoModelForCausalLM"};
    case Task::masked_lm:
      return architecture.head.sequence ? ModelingClass{"PareForPreTraining", "AutoModelForPreTraining"}
                                        : ModelingClass{"PareForMaskedLM", "AutoModelForMaskedLM"};
    case Task::classifier:
      return architecture.embedding.patch
                 ? ModelingClass{"PareForImageClassification", "AutoModelForImageClassification"}
                 : ModelingClass{"PareForSequenceClassification", "AutoModelForSequenceClassification"};
    case Task::token_classifier:
      return {"PareForTokenClassification", "AutoModelForTokenClassification"};
    case Task::question_answering:
      return {"PareForQuestionAnswering", "AutoModelForQuestionAnswering"};
    case Task::next_sentence:
      return {"PareForNextSentencePrediction", "AutoModelForNextSentencePrediction"};
    case Task::encoder:
      break;
  }
  return {"PareModel", "AutoModel"};
}

}  // namespace pare
