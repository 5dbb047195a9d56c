from draws import activation, epsilon, heads_and_width
from transformers import DeiTConfig, DeiTForImageClassification, DeiTModel

HEADS = []  # both of its classes are drawn below


def draw(rng, index):
    heads, width = heads_and_width(rng)
    patch = rng.randint(2, 4)
    config = DeiTConfig(
        hidden_size=width,
        num_hidden_layers=rng.randint(2, 3),
        num_attention_heads=heads,
        intermediate_size=rng.choice([28, 40]),
        hidden_act=activation(rng),
        layer_norm_eps=epsilon(rng),
        image_size=patch * rng.randint(2, 4),
        patch_size=patch,
        num_channels=rng.randint(1, 4),
        qkv_bias=index % 2 == 0,
        pooler_act=activation(rng),
        num_labels=rng.randint(2, 5),
    )
    if index % 4 == 3:
        config.head_dim = 6
    if index % 3 == 1:
        return config, DeiTModel, {"add_pooling_layer": index % 2 == 0}
    return config, DeiTForImageClassification
