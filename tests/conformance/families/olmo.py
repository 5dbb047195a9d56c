from draws import llama_like, rope
from transformers import (
    OlmoConfig,
    OlmoForCausalLM,
    OlmoForSequenceClassification,
    OlmoModel,
)

HEADS = [OlmoForSequenceClassification]


def draw(rng, index):
    keys = llama_like(rng, index)
    del keys["head_dim"], keys["rms_norm_eps"]
    keys["rope_parameters"] = rope(rng, index, keys["hidden_size"] // keys["num_attention_heads"], keys["max_position_embeddings"])
    config = OlmoConfig(**keys, attention_bias=index % 2 == 0)
    return config, OlmoModel if index % 8 == 7 else OlmoForCausalLM
