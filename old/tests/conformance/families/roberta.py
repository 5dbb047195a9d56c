from draws import bert_like
from transformers import (
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)

HEADS = [RobertaForTokenClassification, RobertaForQuestionAnswering]


def draw(rng, index):
    config = RobertaConfig(**bert_like(rng, index), pad_token_id=rng.randint(0, 5))
    if index % 4 == 0:
        return config, RobertaModel, {"add_pooling_layer": index % 8 == 0}
    return config, RobertaForSequenceClassification if index % 4 == 1 else RobertaForMaskedLM
