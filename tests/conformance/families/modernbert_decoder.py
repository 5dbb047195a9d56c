from draws import modernbert_like
from transformers import (
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    ModernBertDecoderForSequenceClassification,
    ModernBertDecoderModel,
)

HEADS = [ModernBertDecoderForSequenceClassification]
OLDER_ROPE_KEYS = {"rope_theta": "global_rope_theta", "sliding_theta": "local_rope_theta"}


def draw(rng, index):
    config = ModernBertDecoderConfig(**modernbert_like(rng, index) | {"local_attention": rng.choice([2, 3, 4, 7, 10, 16, 100])})
    return config, ModernBertDecoderModel if index % 4 == 3 else ModernBertDecoderForCausalLM
