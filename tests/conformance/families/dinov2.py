from draws import activation, epsilon, heads_and_width
from transformers import Dinov2Config, Dinov2Model

HEADS = []  # its classifier reads two vectors at once, and is refused


def settings(rng, index):
    heads, width = heads_and_width(rng)
    patch = rng.randint(2, 4)
    return dict(
        hidden_size=width,
        num_hidden_layers=rng.randint(2, 3),
        num_attention_heads=heads,
        mlp_ratio=rng.choice([1, 2, 4, 5]),
        hidden_act=activation(rng),
        layer_norm_eps=epsilon(rng),
        image_size=patch * rng.randint(2, 4),
        patch_size=patch,
        num_channels=rng.randint(1, 4),
        qkv_bias=index % 2 == 0,
        layerscale_value=rng.choice([1.0, 0.1]),
        use_swiglu_ffn=index % 3 == 1,
    ) | ({"head_dim": 6} if index % 4 == 3 else {})


def draw(rng, index):
    return Dinov2Config(**settings(rng, index), use_mask_token=index % 2 == 1), Dinov2Model
