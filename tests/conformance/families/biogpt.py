from draws import activation, epsilon, heads_and_width
from transformers import (
    BioGptConfig,
    BioGptForCausalLM,
    BioGptForSequenceClassification,
    BioGptForTokenClassification,
    BioGptModel,
)

HEADS = [BioGptForSequenceClassification, BioGptForTokenClassification]


def draw(rng, index):
    heads, width = heads_and_width(rng)
    config = BioGptConfig(
        vocab_size=rng.randint(20, 60), hidden_size=width, num_hidden_layers=rng.randint(2, 3), num_attention_heads=heads,
        intermediate_size=rng.choice([28, 40]), hidden_act=activation(rng), max_position_embeddings=rng.randint(20, 30),
        layer_norm_eps=epsilon(rng), scale_embedding=index % 3 != 1, tie_word_embeddings=index % 2 == 0,
        bos_token_id=0, eos_token_id=0, pad_token_id=rng.choice([0, 1]))
    return config, BioGptModel if index % 8 == 6 else BioGptForCausalLM
