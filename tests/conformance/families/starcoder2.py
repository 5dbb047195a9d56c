from draws import llama_like, window
from transformers import (
    Starcoder2Config,
    Starcoder2ForCausalLM,
    Starcoder2ForSequenceClassification,
    Starcoder2ForTokenClassification,
    Starcoder2Model,
)

HEADS = [Starcoder2ForSequenceClassification, Starcoder2ForTokenClassification]


def draw(rng, index):
    keys = llama_like(rng, index)
    keys["norm_epsilon"] = keys.pop("rms_norm_eps")
    config = Starcoder2Config(**keys, use_bias=index % 3 != 1, sliding_window=None if index % 4 == 2 else window(rng))
    return config, Starcoder2Model if index % 8 == 7 else Starcoder2ForCausalLM
