from draws import llama_like, partial_rope
from transformers import (
    StableLmConfig,
    StableLmForCausalLM,
    StableLmForSequenceClassification,
    StableLmForTokenClassification,
    StableLmModel,
)

HEADS = [StableLmForSequenceClassification, StableLmForTokenClassification]


def draw(rng, index):
    keys = llama_like(rng, index)
    del keys["head_dim"]
    keys["layer_norm_eps"] = keys.pop("rms_norm_eps")
    keys["rope_parameters"] = partial_rope(rng, index, keys["hidden_size"] // keys["num_attention_heads"], keys["max_position_embeddings"])
    config = StableLmConfig(**keys, use_qkv_bias=index % 2 == 0, use_parallel_residual=index % 3 == 1, qk_layernorm=index % 4 > 1)
    return config, StableLmModel if index % 8 == 7 else StableLmForCausalLM
