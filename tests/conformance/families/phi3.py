from draws import llama_like, rope, window
from transformers import (
    Phi3Config,
    Phi3ForCausalLM,
    Phi3ForSequenceClassification,
    Phi3ForTokenClassification,
    Phi3Model,
)

HEADS = [Phi3ForSequenceClassification, Phi3ForTokenClassification]


def draw(rng, index):
    keys = llama_like(rng, index)
    del keys["head_dim"]
    head_width, context = keys["hidden_size"] // keys["num_attention_heads"], keys["max_position_embeddings"]
    keys["rope_parameters"] = rope(rng, 4 * (index % 2), head_width, context)  # default, longrope
    config = Phi3Config(**keys, sliding_window=None if index % 3 else window(rng), pad_token_id=0)
    return config, Phi3Model if index % 8 == 7 else Phi3ForCausalLM
