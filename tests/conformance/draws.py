"""What several families draw at random."""

ACTIVATIONS = [
    "gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate",
    "quick_gelu", "relu", "relu2", "silu", "swish", "sigmoid", "tanh", "linear",
]


def activation(rng):
    return rng.choice(ACTIVATIONS)


def epsilon(rng):
    """Large enough, now and then, for a wrong one to show."""
    return rng.choice([1e-12, 1e-6, 1e-5, 1e-2, 0.3])


def heads_and_width(rng, least_heads=1):
    heads = rng.choice([n for n in (1, 2, 3, 4, 6) if n >= least_heads])
    return heads, heads * rng.choice([4, 6, 8, 10])


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


def partial_rope(rng, index, head_width, context):
    """The same, for some of a head's dimensions: the part that turns is rounded down to whole ones."""
    turning = rng.randrange(4, head_width + 1, 2)
    part = min((turning + rng.choice([0.01, 0.6])) / head_width, 1.0)
    return rope(rng, index, turning, context) | {"partial_rotary_factor": part}
