from draws import bert_like
from transformers import (
    CamembertConfig,
    CamembertForMaskedLM,
    CamembertForQuestionAnswering,
    CamembertForSequenceClassification,
    CamembertForTokenClassification,
    CamembertModel,
)

HEADS = [CamembertForTokenClassification, CamembertForQuestionAnswering]


def draw(rng, index):
    config = CamembertConfig(**bert_like(rng, index), pad_token_id=rng.randint(0, 5))
    if index % 4 == 0:
        return config, CamembertModel, {"add_pooling_layer": index % 8 == 0}
    return config, CamembertForSequenceClassification if index % 4 == 1 else CamembertForMaskedLM
