from draws import late_windows, llama_like
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForQuestionAnswering,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
    Qwen2Model,
)

HEADS = [Qwen2ForSequenceClassification, Qwen2ForTokenClassification, Qwen2ForQuestionAnswering]


def draw(rng, index):
    keys = llama_like(rng, index)
    if keys["head_dim"] == keys["hidden_size"] // keys["num_attention_heads"]:
        del keys["head_dim"]  # most files have none
    config = Qwen2Config(**keys, **late_windows(rng, index, keys["num_hidden_layers"]))
    return config, Qwen2Model if index % 8 == 7 else Qwen2ForCausalLM
