from draws import layer_types, llama_like, rope_by_type, window
from transformers import Olmo3Config, Olmo3ForCausalLM, Olmo3ForSequenceClassification, Olmo3Model

HEADS = [Olmo3ForSequenceClassification]
OLDER_ROPE_KEYS = {"sliding_theta": None}  # older files cannot say it


def draw(rng, index):
    keys = llama_like(rng, index)
    keys["rope_parameters"] = rope_by_type(rng, index, keys["head_dim"], keys["max_position_embeddings"])
    config = Olmo3Config(
        **keys,
        attention_bias=index % 2 == 0,
        sliding_window=window(rng),
        layer_types=layer_types(rng, keys["num_hidden_layers"]) if index % 2 else None,
    )
    return config, Olmo3Model if index % 8 == 7 else Olmo3ForCausalLM
