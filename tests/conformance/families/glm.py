from draws import llama_like, partial_rope
from transformers import (
    GlmConfig,
    GlmForCausalLM,
    GlmForSequenceClassification,
    GlmForTokenClassification,
    GlmModel,
)

HEADS = [GlmForSequenceClassification, GlmForTokenClassification]


def draw(rng, index):
    keys = llama_like(rng, index)
    keys["rope_parameters"] = partial_rope(rng, index, keys["head_dim"], keys["max_position_embeddings"])
    config = GlmConfig(**keys, pad_token_id=0, attention_bias=index % 3 != 0)
    return config, GlmModel if index % 8 == 7 else GlmForCausalLM
