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
