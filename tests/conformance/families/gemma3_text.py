from draws import layer_types, llama_like, rope_by_type, window
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Gemma3TextForSequenceClassification, Gemma3TextModel

HEADS = [Gemma3TextForSequenceClassification]
OLDER_ROPE_KEYS = {"sliding_theta": "rope_local_base_freq"}


def keys_of(rng, index):
    keys = llama_like(rng, index) | {"tie_word_embeddings": index % 4 != 1}
    keys["hidden_activation"] = keys.pop("hidden_act")
    keys["rope_parameters"] = rope_by_type(rng, index, keys["head_dim"], keys["max_position_embeddings"])
    if index % 5 == 3:
        keys["sliding_window_pattern"] = rng.randint(1, 3)
    else:
        keys["layer_types"] = layer_types(rng, keys["num_hidden_layers"])
    return keys | {
        "attention_bias": index % 3 == 1,
        "query_pre_attn_scalar": rng.choice([keys["head_dim"], 1, 5, 144]),
        "sliding_window": window(rng),
    }


def draw(rng, index):
    keys = keys_of(rng, index)
    if index % 8 == 2:  # as in EmbeddingGemma; a window of one is written as none
        keys |= {"use_bidirectional_attention": True, "sliding_window": 2 + keys["sliding_window"]}
    # Low enough to bend the logits of small models.
    config = Gemma3TextConfig(**keys, final_logit_softcapping=rng.choice([None, 0.5, 2.0, 30.0]))
    return config, Gemma3TextModel if index % 8 in (2, 7) else Gemma3ForCausalLM
