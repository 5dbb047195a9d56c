from draws import activation, epsilon
from transformers import CodeGenConfig, CodeGenForCausalLM, CodeGenModel

HEADS = []  # both of its classes are drawn below


def draw(rng, index):
    heads, head_width = rng.choice([4, 8]), rng.choice([4, 6, 8])
    config = CodeGenConfig(
        vocab_size=rng.randint(20, 60),
        n_positions=rng.randint(20, 30),
        n_embd=heads * head_width,
        n_layer=rng.randint(2, 3),
        n_head=heads,
        rotary_dim=rng.randrange(2, head_width + 1, 2),
        n_inner=rng.choice([None, 2 * heads * head_width, 36]),
        activation_function=activation(rng),
        layer_norm_epsilon=epsilon(rng),
        tie_word_embeddings=index % 2 == 1,
        bos_token_id=0,
        eos_token_id=0,
    )
    config._attn_implementation = "eager"  # transformers has no other one for CodeGen
    return config, CodeGenModel if index % 8 == 4 else CodeGenForCausalLM
