from draws import llama_like
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForQuestionAnswering,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    LlamaModel,
)

HEADS = [LlamaForSequenceClassification, LlamaForTokenClassification, LlamaForQuestionAnswering]


def draw(rng, index):
    config = LlamaConfig(**llama_like(rng, index), attention_bias=index % 2 == 0, mlp_bias=index % 3 == 0)
    return config, LlamaModel if index % 8 == 7 else LlamaForCausalLM
