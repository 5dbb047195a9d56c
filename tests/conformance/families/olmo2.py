from draws import llama_like
from transformers import Olmo2Config, Olmo2ForCausalLM, Olmo2ForSequenceClassification, Olmo2Model

HEADS = [Olmo2ForSequenceClassification]


def draw(rng, index):
    config = Olmo2Config(**llama_like(rng, index), attention_bias=index % 2 == 0)
    return config, Olmo2Model if index % 8 == 7 else Olmo2ForCausalLM
