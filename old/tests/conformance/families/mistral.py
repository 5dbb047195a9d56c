from draws import llama_like, window
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    MistralForQuestionAnswering,
    MistralForSequenceClassification,
    MistralForTokenClassification,
    MistralModel,
)

HEADS = [MistralForSequenceClassification, MistralForTokenClassification, MistralForQuestionAnswering]


def draw(rng, index):
    config = MistralConfig(**llama_like(rng, index), sliding_window=None if index % 4 == 2 else window(rng))
    return config, MistralModel if index % 8 == 7 else MistralForCausalLM
