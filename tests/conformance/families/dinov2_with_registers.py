from families.dinov2 import settings
from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

HEADS = []  # its classifier reads two vectors at once, and is refused


def draw(rng, index):
    config = Dinov2WithRegistersConfig(**settings(rng, index), num_register_tokens=rng.choice([1, 2, 4]))
    return config, Dinov2WithRegistersModel
