from draws import llama_like, rope
from transformers import (
    HeliumConfig,
    HeliumForCausalLM,
    HeliumForSequenceClassification,
    HeliumForTokenClassification,
    HeliumModel,
)

HEADS = [HeliumForSequenceClassification, HeliumForTokenClassification]


def draw(rng, index):
    keys = llama_like(rng, index)
    keys["head_dim"] = keys["hidden_size"] // keys["num_attention_heads"]
    keys["rope_parameters"] = rope(rng, index, keys["head_dim"], keys["max_position_embeddings"])
    config = HeliumConfig(**keys, attention_bias=index % 2 == 0, mlp_bias=index % 3 == 0)
    return config, HeliumModel if index % 8 == 7 else HeliumForCausalLM
