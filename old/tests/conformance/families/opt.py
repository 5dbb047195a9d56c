from draws import activation, heads_and_width
from transformers import (
    OPTConfig,
    OPTForCausalLM,
    OPTForQuestionAnswering,
    OPTForSequenceClassification,
    OPTModel,
)

HEADS = [OPTForSequenceClassification, OPTForQuestionAnswering]


def draw(rng, index):
    heads, width = heads_and_width(rng)
    config = OPTConfig(
        vocab_size=rng.randint(20, 60),
        hidden_size=width,
        word_embed_proj_dim=None if index % 3 == 0 else rng.choice([7, width + 3]),
        num_hidden_layers=rng.randint(2, 3),
        num_attention_heads=heads,
        ffn_dim=rng.choice([28, 40]),
        activation_function=activation(rng),
        max_position_embeddings=rng.randint(20, 30),
        do_layer_norm_before=index % 4 != 1,
        _remove_final_layer_norm=index % 5 == 2,
        layer_norm_elementwise_affine=index % 4 != 2,
        enable_bias=index % 2 == 0,
        tie_word_embeddings=index % 8 < 4,
        pad_token_id=rng.choice([0, 1, None]),
    )
    return config, OPTModel if index % 8 == 7 else OPTForCausalLM
