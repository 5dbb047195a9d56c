from draws import activation, epsilon, heads_and_width
from transformers import (
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    GPTBigCodeForSequenceClassification,
    GPTBigCodeForTokenClassification,
    GPTBigCodeModel,
)

HEADS = [GPTBigCodeForSequenceClassification, GPTBigCodeForTokenClassification]


def draw(rng, index):
    heads, width = heads_and_width(rng)
    config = GPTBigCodeConfig(
        vocab_size=rng.randint(20, 60), n_positions=rng.randint(20, 30), n_embd=width, n_head=heads, n_layer=rng.randint(2, 3),
        n_inner=rng.choice([None, 2 * width, 36]), activation_function=activation(rng), layer_norm_epsilon=epsilon(rng),
        multi_query=index % 3 != 1, attention_softmax_in_fp32=False, scale_attention_softmax_in_fp32=False,
        tie_word_embeddings=index % 2 == 0, bos_token_id=0, eos_token_id=0)
    return config, GPTBigCodeModel if index % 8 == 6 else GPTBigCodeForCausalLM
