from draws import llama_like
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GemmaForSequenceClassification,
    GemmaForTokenClassification,
    GemmaModel,
)

HEADS = [GemmaForSequenceClassification, GemmaForTokenClassification]


def draw(rng, index):
    keys = llama_like(rng, index) | {"tie_word_embeddings": index % 4 != 1}
    config = GemmaConfig(**keys, attention_bias=index % 3 == 1)
    if index % 4 == 2:
        # As the first files have it; reading the file, transformers takes the tanh approximation.
        config.hidden_act = "gelu"
    return config, GemmaModel if index % 8 == 7 else GemmaForCausalLM
