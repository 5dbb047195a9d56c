from draws import epsilon, heads_and_width
from transformers import EsmConfig, EsmForMaskedLM, EsmForSequenceClassification, EsmForTokenClassification, EsmModel

HEADS = [EsmForTokenClassification]
NEEDED = {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}  # whose defaults no model runs with


def draw(rng, index):
    heads, width = heads_and_width(rng)
    vocab = rng.randint(20, 60)
    config = EsmConfig(
        vocab_size=vocab,
        hidden_size=width,
        num_hidden_layers=rng.randint(2, 3),
        num_attention_heads=heads,
        intermediate_size=rng.choice([28, 40]),
        max_position_embeddings=rng.randint(20, 30),
        layer_norm_eps=epsilon(rng),
        rope_theta=rng.choice([10000.0, 500.0]),
        position_embedding_type=["absolute", "rotary"][index % 2],
        emb_layer_norm_before=index % 3 == 1,
        token_dropout=index % 4 in (1, 2),
        mask_token_id=rng.randrange(5, vocab),
        pad_token_id=rng.randrange(5),
        tie_word_embeddings=index % 8 < 4,
        num_labels=rng.randint(2, 5),
    )
    return config, [EsmModel, EsmForMaskedLM, EsmForMaskedLM, EsmForSequenceClassification][(index + index // 4) % 4]
