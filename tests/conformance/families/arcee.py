from draws import llama_like
from transformers import (
    ArceeConfig,
    ArceeForCausalLM,
    ArceeForQuestionAnswering,
    ArceeForSequenceClassification,
    ArceeForTokenClassification,
    ArceeModel,
)

HEADS = [ArceeForSequenceClassification, ArceeForTokenClassification, ArceeForQuestionAnswering]


def draw(rng, index):
    config = ArceeConfig(**llama_like(rng, index), attention_bias=index % 2 == 0, mlp_bias=index % 3 == 0)
    return config, ArceeModel if index % 8 == 7 else ArceeForCausalLM
