from draws import llama_like
from transformers import (
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Ernie4_5Model,
)

HEADS = []


def draw(rng, index):
    config = Ernie4_5Config(**llama_like(rng, index), use_bias=index % 2 == 0)
    return config, Ernie4_5Model if index % 8 == 7 else Ernie4_5ForCausalLM
