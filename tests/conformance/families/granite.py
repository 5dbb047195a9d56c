from draws import llama_like
from transformers import GraniteConfig, GraniteForCausalLM, GraniteModel

HEADS = []


def draw(rng, index):
    config = GraniteConfig(
        **llama_like(rng, index),
        attention_bias=index % 2 == 0,
        mlp_bias=index % 3 == 0,
        embedding_multiplier=rng.choice([1.0, 6.0, 12]),
        attention_multiplier=rng.choice([1.0, 0.015625, 0.3]),
        residual_multiplier=[0.22, 1.0, 0.4][index % 3],
        logits_scaling=rng.choice([1.0, 8, 3.7]),
    )
    return config, GraniteModel if index % 8 == 7 else GraniteForCausalLM
