from draws import llama_like
from transformers import NanoChatConfig, NanoChatForCausalLM, NanoChatModel

HEADS = []  # both of its classes are drawn below


def draw(rng, index):
    config = NanoChatConfig(
        **llama_like(rng, index),
        attention_bias=index % 3 == 1,
        # Low enough to bend the logits of small models.
        final_logit_softcapping=rng.choice([None, 0.5, 2.0, 15.0]),
    )
    return config, NanoChatModel if index % 8 == 5 else NanoChatForCausalLM
