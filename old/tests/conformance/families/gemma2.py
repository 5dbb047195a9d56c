from draws import layer_types, llama_like, window
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma2ForSequenceClassification,
    Gemma2ForTokenClassification,
    Gemma2Model,
)

HEADS = [Gemma2ForSequenceClassification, Gemma2ForTokenClassification]


def draw(rng, index):
    keys = llama_like(rng, index) | {"tie_word_embeddings": index % 4 != 1}
    keys["hidden_activation"] = keys.pop("hidden_act")
    config = Gemma2Config(
        **keys,
        attention_bias=index % 3 == 1,
        query_pre_attn_scalar=rng.choice([keys["head_dim"], 1, 5, 144]),
        sliding_window=window(rng),
        layer_types=layer_types(rng, keys["num_hidden_layers"]) if index % 2 else None,
        # Low enough to bend the scores and logits of small models.
        attn_logit_softcapping=rng.choice([None, 0.5, 2.0, 50.0]),
        final_logit_softcapping=rng.choice([None, 0.5, 2.0, 30.0]),
    )
    config._attn_implementation = "eager"  # transformers has no other one with softcaps
    return config, Gemma2Model if index % 8 == 7 else Gemma2ForCausalLM
