from draws import activation, epsilon, heads_and_width
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel


def draw(rng, index):
    heads, width = heads_and_width(rng)
    config = BertConfig(
        vocab_size=rng.randint(20, 60),
        hidden_size=width,
        num_hidden_layers=rng.randint(2, 3),
        num_attention_heads=heads,
        intermediate_size=rng.choice([28, 40]),
        hidden_act=activation(rng),
        max_position_embeddings=rng.randint(20, 30),
        type_vocab_size=rng.randint(1, 4),
        layer_norm_eps=epsilon(rng),
        tie_word_embeddings=index % 8 < 4,
        num_labels=rng.randint(2, 5),
    )
    if index % 4 == 0:
        return config, BertModel, {"add_pooling_layer": index % 8 == 0}
    return config, BertForSequenceClassification if index % 4 == 1 else BertForMaskedLM
