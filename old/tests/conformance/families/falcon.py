"""Falcon in all its generations.

ALiBi differs from transformers in two ways, on purpose. transformers rounds the slopes and the biases to bfloat16, in
models of any type; pare has them exact, and the reference too, whose bfloat16 the float64 mode turns into float64.
And its explicit attention adds the bias twice, once within the mask; pare does what its fused attention does, which
is what transformers runs unless told otherwise, so models with ALiBi are compared with that.
"""

from draws import activation, epsilon, rope
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    FalconForQuestionAnswering,
    FalconForSequenceClassification,
    FalconForTokenClassification,
    FalconModel,
)

HEADS = [FalconForSequenceClassification, FalconForTokenClassification, FalconForQuestionAnswering]


def generation(rng, index, heads):
    groups = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    return [
        {},
        {"new_decoder_architecture": True, "num_kv_heads": groups},
        {"alibi": True, "multi_query": False, "parallel_attn": False},
        {"new_decoder_architecture": True, "num_kv_heads": groups, "num_ln_in_parallel_attn": 1, "multi_query": False},
        {"parallel_attn": False, "num_ln_in_parallel_attn": rng.choice([None, 1, 2])},
        {"multi_query": False, "num_ln_in_parallel_attn": 1},
        {"alibi": True, "new_decoder_architecture": True, "num_kv_heads": groups, "num_ln_in_parallel_attn": 2},
        {"alibi": True},
    ][index % 8]


def draw(rng, index):
    heads = rng.choice([1, 2, 3, 4, 6, 7, 8])
    head_width = rng.choice([4, 6, 8])
    context = rng.choice([16, 20])
    config = FalconConfig(
        vocab_size=rng.randint(20, 60),
        hidden_size=heads * head_width,
        num_hidden_layers=rng.randint(2, 3),
        num_attention_heads=heads,
        layer_norm_epsilon=epsilon(rng),
        bias=rng.random() < 0.5,
        max_position_embeddings=context,
        rope_parameters=rope(rng, index + index // 8, head_width, context),
        ffn_hidden_size=rng.choice([None, 28, 40]),
        activation=activation(rng),
        tie_word_embeddings=index % 3 != 1,
        bos_token_id=0,
        eos_token_id=0,
        **generation(rng, index, heads),
    )
    if config.alibi:
        config._attn_implementation = "sdpa"
    return config, FalconModel if index % 8 == 4 else FalconForCausalLM
