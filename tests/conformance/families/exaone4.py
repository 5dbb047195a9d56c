from draws import layer_types, llama_like, rope, window
from transformers import (
    Exaone4Config,
    Exaone4ForCausalLM,
    Exaone4ForQuestionAnswering,
    Exaone4ForSequenceClassification,
    Exaone4ForTokenClassification,
    Exaone4Model,
)

HEADS = [Exaone4ForSequenceClassification, Exaone4ForTokenClassification, Exaone4ForQuestionAnswering]


def draw(rng, index):
    keys = llama_like(rng, index)
    del keys["head_dim"]
    keys["rope_parameters"] = rope(rng, index, keys["hidden_size"] // keys["num_attention_heads"], keys["max_position_embeddings"])
    sliding = [{}, {"sliding_window": window(rng)}, {"sliding_window": window(rng), "layer_types": layer_types(rng, keys["num_hidden_layers"])},
               {"sliding_window": window(rng), "sliding_window_pattern": rng.randint(1, 3)}][index % 5 % 4]
    config = Exaone4Config(**keys, **sliding)
    return config, Exaone4Model if index % 8 == 7 else Exaone4ForCausalLM
