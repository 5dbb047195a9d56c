from draws import llama_like, partial_rope
from transformers import (
    NemotronConfig,
    NemotronForCausalLM,
    NemotronForQuestionAnswering,
    NemotronForSequenceClassification,
    NemotronForTokenClassification,
    NemotronModel,
)

HEADS = [NemotronForSequenceClassification, NemotronForTokenClassification, NemotronForQuestionAnswering]


def draw(rng, index):
    keys = llama_like(rng, index)
    keys["norm_eps"] = keys.pop("rms_norm_eps")
    keys["rope_parameters"] = partial_rope(rng, index, keys["head_dim"], keys["max_position_embeddings"])
    config = NemotronConfig(**keys, attention_bias=index % 2 == 0, mlp_bias=index % 3 == 0)
    return config, NemotronModel if index % 8 == 7 else NemotronForCausalLM
