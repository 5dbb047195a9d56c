from draws import epsilon, heads_and_width
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    BloomForQuestionAnswering,
    BloomForSequenceClassification,
    BloomForTokenClassification,
    BloomModel,
)

HEADS = [BloomForSequenceClassification, BloomForTokenClassification, BloomForQuestionAnswering]


def draw(rng, index):
    heads, width = heads_and_width(rng)
    config = BloomConfig(
        vocab_size=rng.randint(20, 60),
        hidden_size=width,
        n_layer=rng.randint(2, 3),
        n_head=heads,
        seq_length=rng.randint(20, 30),
        layer_norm_epsilon=epsilon(rng),
        tie_word_embeddings=index % 3 != 1,
        pretraining_tp=1 + index % 2,
        slow_but_exact=index % 4 == 2,
        bos_token_id=0,
        eos_token_id=0,
    )
    # The only one that transformers has for BLOOM.
    config._attn_implementation = "eager"
    return config, BloomModel if index % 8 == 4 else BloomForCausalLM
