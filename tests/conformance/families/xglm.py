from draws import activation
from transformers import XGLMConfig, XGLMForCausalLM, XGLMModel

HEADS = []


def draw(rng, index):
    heads = rng.choice([1, 2, 3, 4, 5])
    config = XGLMConfig(
        vocab_size=rng.randint(20, 60),
        max_position_embeddings=rng.randint(20, 30),
        d_model=heads * rng.choice([4, 5, 6, 8, 10]),
        ffn_dim=rng.choice([28, 40]),
        num_layers=rng.randint(2, 3),
        attention_heads=heads,
        activation_function=activation(rng),
        scale_embedding=index % 3 != 2,
        pad_token_id=rng.choice([None, 0, 1]),
        tie_word_embeddings=index % 4 != 1,
        bos_token_id=0,
        eos_token_id=0,
    )
    # The only one that transformers has for XGLM.
    config._attn_implementation = "eager"
    return config, XGLMModel if index % 8 == 5 else XGLMForCausalLM
