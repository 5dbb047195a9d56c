from draws import activation, epsilon, heads_and_width
from transformers import (
    GPTJConfig,
    GPTJForCausalLM,
    GPTJForQuestionAnswering,
    GPTJForSequenceClassification,
    GPTJModel,
)

HEADS = [GPTJForSequenceClassification, GPTJForQuestionAnswering]


def draw(rng, index):
    heads, width = heads_and_width(rng)
    config = GPTJConfig(
        vocab_size=rng.randint(20, 60),
        n_positions=rng.randint(20, 30),
        n_embd=width,
        n_layer=rng.randint(2, 3),
        n_head=heads,
        rotary_dim=rng.randrange(2, width // heads + 1, 2),
        n_inner=rng.choice([None, 2 * width, 36]),
        activation_function=activation(rng),
        layer_norm_epsilon=epsilon(rng),
        tie_word_embeddings=index % 2 == 1,
        bos_token_id=0,
        eos_token_id=0,
    )
    # The only one that transformers has for GPT-J and this machine.
    config._attn_implementation = "eager"
    return config, GPTJModel if index % 8 == 6 else GPTJForCausalLM
