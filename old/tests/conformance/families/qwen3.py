from draws import late_windows, llama_like
from transformers import (
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForQuestionAnswering,
    Qwen3ForSequenceClassification,
    Qwen3ForTokenClassification,
    Qwen3Model,
)

HEADS = [Qwen3ForSequenceClassification, Qwen3ForTokenClassification, Qwen3ForQuestionAnswering]


def draw(rng, index):
    keys = llama_like(rng, index)
    windows = late_windows(rng, index, keys["num_hidden_layers"])
    config = Qwen3Config(**keys, **windows, attention_bias=index % 3 == 1)
    return config, Qwen3Model if index % 8 == 7 else Qwen3ForCausalLM
