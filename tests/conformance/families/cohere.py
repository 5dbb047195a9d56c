from draws import llama_like
from transformers import CohereConfig, CohereForCausalLM, CohereModel

HEADS = []


def draw(rng, index):
    keys = llama_like(rng, index) | {"tie_word_embeddings": index % 4 != 1}
    keys["layer_norm_eps"] = keys.pop("rms_norm_eps")
    config = CohereConfig(**keys, attention_bias=index % 3 == 0, use_qk_norm=index % 2 == 0, logit_scale=rng.choice([0.0625, 0.25, 0.8333]))
    return config, CohereModel if index % 8 == 7 else CohereForCausalLM
