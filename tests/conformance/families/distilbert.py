from draws import activation, bert_like
from transformers import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    DistilBertModel,
)

HEADS = [DistilBertForTokenClassification, DistilBertForQuestionAnswering]


def draw(rng, index):
    keys = bert_like(rng, index)
    config = DistilBertConfig(
        vocab_size=keys["vocab_size"], dim=keys["hidden_size"], n_layers=keys["num_hidden_layers"], n_heads=keys["num_attention_heads"],
        hidden_dim=keys["intermediate_size"], activation=activation(rng), max_position_embeddings=keys["max_position_embeddings"],
        tie_word_embeddings=keys["tie_word_embeddings"], sinusoidal_pos_embds=index % 3 == 2, num_labels=keys["num_labels"])
    return config, [DistilBertModel, DistilBertForSequenceClassification, DistilBertForMaskedLM, DistilBertForMaskedLM][index % 4]
