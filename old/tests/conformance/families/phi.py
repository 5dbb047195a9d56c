from draws import activation, epsilon, heads_and_width, partial_rope
from transformers import (
    PhiConfig,
    PhiForCausalLM,
    PhiForSequenceClassification,
    PhiForTokenClassification,
    PhiModel,
)

HEADS = [PhiForSequenceClassification, PhiForTokenClassification]


def draw(rng, index):
    heads, width = heads_and_width(rng, least_heads=2)
    context = rng.choice([16, 20])
    head_width = width // heads
    qk_norm = index % 2 == 0
    options = {}
    if not qk_norm and rng.random() < 0.5:
        # transformers gives the norm of the heads the width that they would have without this key.
        head_width = options["head_dim"] = rng.choice([6, 12])
    config = PhiConfig(
        vocab_size=rng.randint(20, 60),
        hidden_size=width,
        intermediate_size=rng.choice([28, 40]),
        num_hidden_layers=rng.randint(2, 3),
        num_attention_heads=heads,
        num_key_value_heads=rng.choice([None] + [n for n in range(1, heads + 1) if heads % n == 0]),
        hidden_act=activation(rng),
        max_position_embeddings=context,
        layer_norm_eps=epsilon(rng),
        qk_layernorm=qk_norm,
        tie_word_embeddings=index % 4 == 1,
        rope_parameters=partial_rope(rng, index, head_width, context),
        bos_token_id=0,
        eos_token_id=0,
        **options,
    )
    return config, PhiModel if index % 8 == 6 else PhiForCausalLM
