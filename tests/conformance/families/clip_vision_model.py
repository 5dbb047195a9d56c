from draws import activation, epsilon, heads_and_width
from transformers import CLIPVisionConfig, CLIPVisionModel, CLIPVisionModelWithProjection

HEADS = []  # both of its classes are drawn below


def settings(rng):
    heads, width = heads_and_width(rng)
    patch = rng.randint(2, 4)
    return dict(
        hidden_size=width,
        num_hidden_layers=rng.randint(2, 3),
        num_attention_heads=heads,
        intermediate_size=rng.choice([28, 40]),
        hidden_act=activation(rng),
        layer_norm_eps=epsilon(rng),
        image_size=patch * rng.randint(2, 4),
        patch_size=patch,
        num_channels=rng.randint(1, 4),
    )


def draw(rng, index):
    sizes = settings(rng)
    config = CLIPVisionConfig(**sizes, projection_dim=rng.choice([5, sizes["hidden_size"]]))
    return config, [CLIPVisionModel, CLIPVisionModelWithProjection][index % 2]
