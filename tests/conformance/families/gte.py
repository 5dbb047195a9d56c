from draws import bert_like, rope
from transformers import GteConfig, GteForMaskedLM, GteForSequenceClassification, GteForTokenClassification, GteModel

HEADS = [GteForTokenClassification]


def draw(rng, index):
    settings = bert_like(rng, index)
    settings["type_vocab_size"] = [1, 0, 3][index % 3]
    head_width = settings["hidden_size"] // settings["num_attention_heads"]
    settings["rope_parameters"] = rope(rng, index, head_width, settings["max_position_embeddings"])
    config = GteConfig(**settings, pad_token_id=rng.randrange(5))
    model_class = [GteModel, GteForSequenceClassification, GteForMaskedLM, GteForMaskedLM][index % 4]
    return config, model_class, {"add_pooling_layer": index % 8 == 0} if model_class is GteModel else {}
