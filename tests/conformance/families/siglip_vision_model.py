from families.clip_vision_model import settings
from transformers import SiglipVisionConfig, SiglipVisionModel

HEADS = []  # it has one class
NEEDED = {"vision_use_head": False}  # its head is refused


def draw(rng, index):
    return SiglipVisionConfig(**settings(rng), vision_use_head=False), SiglipVisionModel
