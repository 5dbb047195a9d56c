from draws import activation, epsilon, heads_and_width
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel


def rope(rng, index, head_width, context):
    kind = ["default", "linear", "dynamic", "yarn", "longrope", "llama3"][index % 6]
    settings = {"rope_type": kind, "rope_theta": rng.choice([10000.0, 500.0, 1e6])}
    if kind != "default":
        settings["factor"] = rng.choice([2.0, 3.5, 8.0])
    if kind in ("yarn", "longrope", "llama3"):
        settings["original_max_position_embeddings"] = context // 2
    if kind == "yarn":
        settings |= rng.choice(
            [{}, {"attention_factor": 1.3}, {"mscale": 0.7, "mscale_all_dim": 1.2}, {"beta_fast": 8, "beta_slow": 2}]
        )
        settings |= rng.choice([{}, {"truncate": False}])
    if kind == "longrope":
        settings |= {name: [rng.uniform(1, 4) for _ in range(head_width // 2)] for name in ("short_factor", "long_factor")}
        if rng.random() < 0.5:
            del settings["factor"]
    if kind == "llama3":
        settings |= {"low_freq_factor": 1.0, "high_freq_factor": rng.choice([2.0, 4.0])}
    return settings


def draw(rng, index):
    heads, width = heads_and_width(rng, least_heads=2)
    head_width = rng.choice([None, 6, 12]) or width // heads
    context = rng.choice([16, 20])
    config = LlamaConfig(
        vocab_size=rng.randint(20, 60),
        hidden_size=width,
        intermediate_size=rng.choice([28, 40]),
        num_hidden_layers=rng.randint(2, 3),
        num_attention_heads=heads,
        num_key_value_heads=rng.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        head_dim=head_width,
        hidden_act=activation(rng),
        max_position_embeddings=context,
        rms_norm_eps=epsilon(rng),
        attention_bias=index % 2 == 0,
        mlp_bias=index % 3 == 0,
        tie_word_embeddings=index % 4 == 1,
        rope_parameters=rope(rng, index, head_width, context),
        bos_token_id=0,
        eos_token_id=0,
    )
    return config, LlamaModel if index % 8 == 7 else LlamaForCausalLM
