from draws import llama_like
from transformers import (
    SeedOssConfig,
    SeedOssForCausalLM,
    SeedOssForQuestionAnswering,
    SeedOssForSequenceClassification,
    SeedOssForTokenClassification,
    SeedOssModel,
)

HEADS = [SeedOssForSequenceClassification, SeedOssForTokenClassification, SeedOssForQuestionAnswering]


def draw(rng, index):
    config = SeedOssConfig(**llama_like(rng, index), attention_bias=index % 2 == 0, attention_out_bias=index % 3 == 0, mlp_bias=index % 5 == 0)
    return config, SeedOssModel if index % 8 == 7 else SeedOssForCausalLM
