from draws import llama_like
from transformers import (
    EuroBertConfig,
    EuroBertForMaskedLM,
    EuroBertForTokenClassification,
    EuroBertModel,
)

HEADS = [EuroBertForTokenClassification]


def draw(rng, index):
    config = EuroBertConfig(**llama_like(rng, index), attention_bias=index % 2 == 0, mlp_bias=index % 3 == 0, pad_token_id=0)
    return config, EuroBertModel if index % 8 == 7 else EuroBertForMaskedLM
