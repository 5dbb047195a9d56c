from families import gemma3_text
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3ForSequenceClassification, Gemma3Model

HEADS = [Gemma3ForSequenceClassification]
OLDER_ROPE_KEYS = gemma3_text.OLDER_ROPE_KEYS
IMAGES = dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=1, image_size=8, patch_size=4)


def draw(rng, index):
    bare = index % 8 == 3
    keys = gemma3_text.keys_of(rng, index)
    del keys["tie_word_embeddings"]  # a tied head leaves nothing that tells it from the bare model
    config = Gemma3Config(text_config=keys, vision_config=IMAGES, mm_tokens_per_image=4,
                          tie_word_embeddings=index % 4 != 1 and not bare)
    return config, Gemma3Model if bare else Gemma3ForConditionalGeneration
