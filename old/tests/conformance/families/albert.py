from draws import bert_like
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)

HEADS = [AlbertForPreTraining, AlbertForTokenClassification, AlbertForQuestionAnswering]


def draw(rng, index):
    layers = rng.randint(3, 5)
    settings = bert_like(rng, index) | {"num_hidden_layers": layers}
    config = AlbertConfig(
        **settings,
        embedding_size=rng.choice([5, 9, settings["hidden_size"]]),
        # One group, several, and as many as layers: then nothing is shared.
        num_hidden_groups=[1, rng.randint(2, layers - 1), layers][index % 3],
        inner_group_num=rng.choice([1, 2, 3]),
    )
    if index % 4 == 0:
        return config, AlbertModel, {"add_pooling_layer": index % 8 == 0}
    return config, AlbertForSequenceClassification if index % 4 == 1 else AlbertForMaskedLM
