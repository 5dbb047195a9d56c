from draws import bert_like
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

HEADS = [BertForPreTraining, BertForNextSentencePrediction, BertForTokenClassification, BertForQuestionAnswering]


def draw(rng, index):
    config = BertConfig(**bert_like(rng, index))
    if index % 4 == 0:
        return config, BertModel, {"add_pooling_layer": index % 8 == 0}
    return config, BertForSequenceClassification if index % 4 == 1 else BertForMaskedLM
