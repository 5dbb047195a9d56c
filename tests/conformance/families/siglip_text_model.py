from draws import bert_like
from transformers import SiglipTextConfig, SiglipTextModel

HEADS = []  # it has one class


def draw(rng, index):
    settings = bert_like(rng, index)
    for name in ("type_vocab_size", "num_labels", "tie_word_embeddings"):
        del settings[name]
    width = settings["hidden_size"]
    config = SiglipTextConfig(**settings, pad_token_id=1, bos_token_id=0, eos_token_id=2, projection_size=rng.choice([5, width]))
    return config, SiglipTextModel
