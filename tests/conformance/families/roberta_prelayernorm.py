from draws import bert_like
from transformers import (
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormForMaskedLM,
    RobertaPreLayerNormForQuestionAnswering,
    RobertaPreLayerNormForSequenceClassification,
    RobertaPreLayerNormForTokenClassification,
    RobertaPreLayerNormModel,
)

HEADS = [RobertaPreLayerNormForTokenClassification, RobertaPreLayerNormForQuestionAnswering]


def draw(rng, index):
    config = RobertaPreLayerNormConfig(**bert_like(rng, index), pad_token_id=rng.randint(0, 5))
    if index % 4 == 0:
        return config, RobertaPreLayerNormModel, {"add_pooling_layer": index % 8 == 0}
    return config, RobertaPreLayerNormForSequenceClassification if index % 4 == 1 else RobertaPreLayerNormForMaskedLM
