from draws import epsilon, heads_and_width
from transformers import (
    OpenAIGPTConfig,
    OpenAIGPTForSequenceClassification,
    OpenAIGPTLMHeadModel,
    OpenAIGPTModel,
)

HEADS = [OpenAIGPTForSequenceClassification]


def draw(rng, index):
    heads, width = heads_and_width(rng)
    config = OpenAIGPTConfig(
        vocab_size=rng.randint(20, 60), n_positions=rng.randint(20, 30), n_embd=width, n_head=heads, n_layer=rng.randint(2, 3),
        afn=["gelu", "relu", "silu", "swish"][index % 4], layer_norm_epsilon=epsilon(rng), tie_word_embeddings=index % 2 == 0,
        bos_token_id=0, eos_token_id=0)
    # The only one that transformers has for it.
    config._attn_implementation = "eager"
    return config, OpenAIGPTModel if index % 8 == 6 else OpenAIGPTLMHeadModel
