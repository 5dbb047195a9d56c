from draws import bert_like
from transformers import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraModel,
)

HEADS = [ElectraForTokenClassification, ElectraForQuestionAnswering]


def draw(rng, index):
    settings = bert_like(rng, index)
    config = ElectraConfig(**settings, embedding_size=rng.choice([5, 9]) if index % 3 else settings["hidden_size"])
    return config, [ElectraModel, ElectraForSequenceClassification, ElectraForMaskedLM, ElectraForMaskedLM][index % 4]
