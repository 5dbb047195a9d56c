from draws import bert_like
from transformers import (
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaForQuestionAnswering,
    XLMRobertaForSequenceClassification,
    XLMRobertaForTokenClassification,
    XLMRobertaModel,
)

HEADS = [XLMRobertaForTokenClassification, XLMRobertaForQuestionAnswering]


def draw(rng, index):
    config = XLMRobertaConfig(**bert_like(rng, index), pad_token_id=rng.randint(0, 5))
    if index % 4 == 0:
        return config, XLMRobertaModel, {"add_pooling_layer": index % 8 == 0}
    return config, XLMRobertaForSequenceClassification if index % 4 == 1 else XLMRobertaForMaskedLM
