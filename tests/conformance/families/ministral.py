from draws import layer_types, llama_like, window
from transformers import (
    MinistralConfig,
    MinistralForCausalLM,
    MinistralForQuestionAnswering,
    MinistralForSequenceClassification,
    MinistralForTokenClassification,
    MinistralModel,
)

HEADS = [MinistralForSequenceClassification, MinistralForTokenClassification, MinistralForQuestionAnswering]


def draw(rng, index):
    keys = llama_like(rng, index)
    listed = {"layer_types": layer_types(rng, keys["num_hidden_layers"])} if index % 3 else {}
    config = MinistralConfig(**keys, **listed, sliding_window=window(rng))
    return config, MinistralModel if index % 8 == 7 else MinistralForCausalLM
