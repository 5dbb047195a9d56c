"""What a training run and its peers in PyTorch both need to be told: a model and the course of the learning rate."""

import math


def gpt2_shaped(width, layers, heads, context, vocab):
    """An Architecture as GPT-2 has it."""
    norm = {"kind": "layer", "epsilon": 1e-5, "bias": True}
    return {"width": width, "vocab": vocab, "context": context, "embedding": {"position": "learned"},
            "blocks": [{"repeat": layers,
                        "attention": {"heads": heads, "head_width": width // heads, "norm": norm,
                                      "bias": {"query": True, "key": True, "value": True, "output": True}},
                        "mlp": {"width": 4 * width, "activation": "gelu_tanh", "norm": norm, "bias": {"up": True, "down": True}}}],
            "final_norm": norm, "head": {"tied": True}}


def rate(optimiser, step, steps):
    """Warm-up and cosine, from their description in docs/training.md."""
    lowest, highest, warmup = optimiser["min_lr"], optimiser["lr"], optimiser["warmup"]
    if step < warmup:
        return highest * (step + 1) / warmup
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
