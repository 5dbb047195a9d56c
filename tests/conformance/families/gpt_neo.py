from draws import activation, epsilon, heads_and_width, window
from transformers import (
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoForQuestionAnswering,
    GPTNeoForSequenceClassification,
    GPTNeoForTokenClassification,
    GPTNeoModel,
)

HEADS = [GPTNeoForSequenceClassification, GPTNeoForTokenClassification, GPTNeoForQuestionAnswering]


def draw(rng, index):
    heads, width = heads_and_width(rng)
    patterns = [[[["global", "local"], 1]], [[["local"], 2], [["global"], 1]], [[["global", "local", "local"], 1]], [[["global"], 2]]][index % 4]
    config = GPTNeoConfig(
        vocab_size=rng.randint(20, 60), max_position_embeddings=rng.randint(20, 30), hidden_size=width, num_heads=heads,
        num_layers=sum(len(kinds) * times for kinds, times in patterns), attention_types=patterns, window_size=window(rng),
        intermediate_size=rng.choice([None, 2 * width, 36]), activation_function=activation(rng), layer_norm_epsilon=epsilon(rng),
        tie_word_embeddings=index % 2 == 0, bos_token_id=0, eos_token_id=0)
    # The only one that transformers has for GPT-Neo and this machine.
    config._attn_implementation = "eager"
    return config, GPTNeoModel if index % 8 == 6 else GPTNeoForCausalLM
