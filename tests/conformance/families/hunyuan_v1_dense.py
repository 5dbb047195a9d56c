from draws import llama_like
from transformers import (
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    HunYuanDenseV1ForSequenceClassification,
    HunYuanDenseV1Model,
)

HEADS = [HunYuanDenseV1ForSequenceClassification]


def draw(rng, index):
    keys = llama_like(rng, index) | {"attention_bias": index % 3 == 1}
    if keys["rope_parameters"]["rope_type"] == "dynamic" and index % 4 < 3:
        keys["rope_parameters"] |= {"alpha": rng.choice([8.0, 1000.0]), "beta_fast": 32, "mscale": 1.0}
    config = HunYuanDenseV1Config(**keys)
    return config, HunYuanDenseV1Model if index % 8 == 7 else HunYuanDenseV1ForCausalLM
