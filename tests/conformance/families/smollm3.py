from draws import layer_types, llama_like, rope, window
from transformers import (
    SmolLM3Config,
    SmolLM3ForCausalLM,
    SmolLM3ForQuestionAnswering,
    SmolLM3ForSequenceClassification,
    SmolLM3ForTokenClassification,
    SmolLM3Model,
)

HEADS = [SmolLM3ForSequenceClassification, SmolLM3ForTokenClassification, SmolLM3ForQuestionAnswering]


def draw(rng, index):
    keys = llama_like(rng, index)
    del keys["head_dim"]
    keys["rope_parameters"] = rope(rng, index, keys["hidden_size"] // keys["num_attention_heads"], keys["max_position_embeddings"])
    layers = keys["num_hidden_layers"]
    turning = [{}, {"no_rope_layers": [rng.choice([0, 1]) for _ in range(layers)]}, {"no_rope_layer_interval": rng.randint(1, 3)}][index % 3]
    sliding = [{}, {"use_sliding_window": True, "sliding_window": window(rng)},
               {"use_sliding_window": True, "sliding_window": window(rng), "layer_types": layer_types(rng, layers)}][index % 7 % 3]
    config = SmolLM3Config(**keys, pad_token_id=0, **turning, **sliding, attention_bias=index % 3 == 1, mlp_bias=index % 4 == 2)
    return config, SmolLM3Model if index % 8 == 7 else SmolLM3ForCausalLM
