from draws import activation, epsilon, heads_and_width
from transformers import (
    GPT2Config,
    GPT2ForQuestionAnswering,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
)

HEADS = [GPT2ForSequenceClassification, GPT2ForTokenClassification, GPT2ForQuestionAnswering]


def draw(rng, index):
    heads, width = heads_and_width(rng)
    config = GPT2Config(
        vocab_size=rng.randint(20, 60),
        n_positions=rng.randint(20, 30),
        n_embd=width,
        n_head=heads,
        n_layer=rng.randint(2, 3),
        n_inner=rng.choice([None, 2 * width, 36]),
        activation_function=activation(rng),
        layer_norm_epsilon=epsilon(rng),
        scale_attn_weights=index % 3 != 1,
        scale_attn_by_inverse_layer_idx=index % 4 == 2,
        tie_word_embeddings=index % 2 == 0,
        bos_token_id=0,
        eos_token_id=0,
    )
    if index % 4 == 3:
        # Only the explicit path reorders, and it insists on float32.
        config.reorder_and_upcast_attn = True
        config._attn_implementation = "sdpa"
    return config, GPT2Model if index % 8 == 6 else GPT2LMHeadModel
