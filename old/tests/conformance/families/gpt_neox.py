from draws import activation, epsilon, heads_and_width, partial_rope
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GPTNeoXForQuestionAnswering,
    GPTNeoXForSequenceClassification,
    GPTNeoXForTokenClassification,
    GPTNeoXModel,
)

HEADS = [GPTNeoXForSequenceClassification, GPTNeoXForTokenClassification, GPTNeoXForQuestionAnswering]

OLDER_ROPE_KEYS = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}


def draw(rng, index):
    heads, width = heads_and_width(rng)
    context = rng.choice([16, 20])
    config = GPTNeoXConfig(
        vocab_size=rng.randint(20, 60),
        hidden_size=width,
        num_hidden_layers=rng.randint(2, 3),
        num_attention_heads=heads,
        intermediate_size=rng.choice([28, 40]),
        hidden_act=activation(rng),
        max_position_embeddings=context,
        layer_norm_eps=epsilon(rng),
        use_parallel_residual=index % 2 == 0,
        attention_bias=index % 4 < 2,
        tie_word_embeddings=index % 3 == 1,
        rope_parameters=partial_rope(rng, index, width // heads, context),
        bos_token_id=0,
        eos_token_id=0,
    )
    return config, GPTNeoXModel if index % 8 == 5 else GPTNeoXForCausalLM
