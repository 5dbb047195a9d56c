from families.clip_vision_model import settings
from transformers import SiglipVisionConfig, SiglipVisionModel

HEADS = []  # it has one class


def draw(rng, index):
    return SiglipVisionConfig(**settings(rng), vision_use_head=index % 3 != 2), SiglipVisionModel
