from draws import llama_like, partial_rope
from transformers import (
    Glm4Config,
    Glm4ForCausalLM,
    Glm4ForSequenceClassification,
    Glm4ForTokenClassification,
    Glm4Model,
)

HEADS = [Glm4ForSequenceClassification, Glm4ForTokenClassification]


def draw(rng, index):
    keys = llama_like(rng, index)
    keys["rope_parameters"] = partial_rope(rng, index, keys["head_dim"], keys["max_position_embeddings"])
    config = Glm4Config(**keys, pad_token_id=0, attention_bias=index % 3 != 0)
    return config, Glm4Model if index % 8 == 7 else Glm4ForCausalLM
