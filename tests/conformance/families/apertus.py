from draws import llama_like
from transformers import ApertusConfig, ApertusForCausalLM, ApertusForTokenClassification, ApertusModel

HEADS = [ApertusForTokenClassification]


def draw(rng, index):
    keys = llama_like(rng, index) | {"attention_bias": index % 3 == 1}
    if index % 4 < 3:
        keys["hidden_act"] = "xielu"
    if index % 6 == 0:  # the family's own is llama3
        del keys["rope_parameters"]
    config = ApertusConfig(**keys)
    return config, ApertusModel if index % 8 == 7 else ApertusForCausalLM
