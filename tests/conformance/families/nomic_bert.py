from draws import bert_like, rope
from transformers import (
    NomicBertConfig,
    NomicBertForMaskedLM,
    NomicBertForSequenceClassification,
    NomicBertForTokenClassification,
    NomicBertModel,
)

HEADS = [NomicBertForTokenClassification]


def draw(rng, index):
    settings = bert_like(rng, index)
    head_width = [None, 6][index % 2] or settings["hidden_size"] // settings["num_attention_heads"]
    settings["rope_parameters"] = rope(rng, index, head_width, settings["max_position_embeddings"])
    config = NomicBertConfig(**settings, head_dim=head_width)
    model_class = [NomicBertModel, NomicBertForSequenceClassification, NomicBertForMaskedLM, NomicBertForMaskedLM][index % 4]
    return config, model_class, {"add_pooling_layer": index % 8 == 0} if model_class is NomicBertModel else {}
