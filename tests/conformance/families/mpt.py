from draws import epsilon, heads_and_width
from transformers import (
    MptConfig,
    MptForCausalLM,
    MptForQuestionAnswering,
    MptForSequenceClassification,
    MptForTokenClassification,
    MptModel,
)

HEADS = [MptForSequenceClassification, MptForTokenClassification, MptForQuestionAnswering]


def draw(rng, index):
    heads, width = heads_and_width(rng)
    config = MptConfig(
        vocab_size=rng.randint(20, 60),
        d_model=width,
        n_layers=rng.randint(2, 3),
        n_heads=heads,
        max_seq_len=rng.randint(40, 50),
        layer_norm_epsilon=epsilon(rng),
        attn_config={"softmax_scale": rng.choice([None, 0.1, 0.6])},
        tie_word_embeddings=index % 3 != 1,
        bos_token_id=0,
        eos_token_id=0,
    )
    # The only one that transformers has for MPT.
    config._attn_implementation = "eager"
    return config, MptModel if index % 8 == 4 else MptForCausalLM
