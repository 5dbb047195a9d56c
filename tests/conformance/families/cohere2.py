from draws import layer_types, llama_like, rope, window
from transformers import Cohere2Config, Cohere2ForCausalLM, Cohere2Model

HEADS = []


def draw(rng, index):
    keys = llama_like(rng, index) | {"tie_word_embeddings": index % 4 != 1}
    del keys["head_dim"]
    keys["rope_parameters"] = rope(rng, index, keys["hidden_size"] // keys["num_attention_heads"], keys["max_position_embeddings"])
    keys["layer_norm_eps"] = keys.pop("rms_norm_eps")
    sliding = [{}, {"layer_types": layer_types(rng, keys["num_hidden_layers"])}, {"sliding_window_pattern": rng.randint(1, 3)}][index % 3]
    config = Cohere2Config(**keys, attention_bias=index % 4 == 0, logit_scale=rng.choice([0.0625, 0.25, 0.8333]), sliding_window=window(rng), **sliding)
    return config, Cohere2Model if index % 8 == 7 else Cohere2ForCausalLM
