from draws import bert_like
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

HEADS = []  # both of its classes are drawn below


def draw(rng, index):
    settings = bert_like(rng, index)
    for name in ("type_vocab_size", "num_labels", "tie_word_embeddings"):
        del settings[name]
    width = settings["hidden_size"]
    # 2 is what older files say: the highest id then ends the text.
    last = 2 if index % 3 == 1 else rng.randrange(3, settings["vocab_size"])
    config = CLIPTextConfig(**settings, eos_token_id=last, pad_token_id=1, bos_token_id=0, projection_dim=rng.choice([5, width]))
    return config, [CLIPTextModel, CLIPTextModelWithProjection][index % 2]
