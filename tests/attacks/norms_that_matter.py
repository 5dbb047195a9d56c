#!/usr/bin/env python3
"""Norms with a huge epsilon that do something on one token of many: seen as constants, two models would be called one."""

import copy
import json

from attacking import run  # first: it skips where there is no NumPy
import numpy
from safetensors.numpy import save_file

WIDTH, VOCAB, NEURONS, TOKEN, ODD = 8, 1500, 16, 777, 6  # ODD: a coordinate of the stream that only TOKEN has
NORM = {"kind": "rms", "epsilon": 1e18}


class Drawn:
    """A model of one block, as stored, and its logits of a single token in float64."""

    def __init__(self, architecture, tensors, dtype=numpy.float32):
        self.architecture, self.tensors, self.dtype = architecture, {name: values.astype(dtype) for name, values in tensors.items()}, dtype

    def save(self, folder):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "pare", "pare_format": 1, "architecture": self.architecture}))
        save_file({name: numpy.ascontiguousarray(values) for name, values in self.tensors.items()}, folder / "model.safetensors")
        return folder

    def logits(self, token):
        w = {name: values.astype(float) for name, values in self.tensors.items()}
        x = w["embed.token.weight"][token] * self.architecture.get("embedding", {}).get("scale", 1)
        x = w["embed.projection.weight"] @ x if "embed.projection.weight" in w else x
        attention, mlp = (self.architecture["blocks"][0][part] for part in ("attention", "mlp"))
        rms = lambda z, norm, gain: z / numpy.sqrt((z * z).mean() + norm["epsilon"]) * w[gain] if norm else z
        linear = lambda name, z: (w[f"blocks.0.{name}.weight"] @ z if f"blocks.0.{name}.weight" in w else z) + w.get(f"blocks.0.{name}.bias", 0)
        x = linear("attention.output", linear("attention.value", x)) + (x if attention.get("skip", True) else 0)
        read = rms(x, mlp.get("norm"), "blocks.0.mlp.norm.weight")
        hidden = numpy.maximum(linear("mlp.gate" if mlp.get("gated") else "mlp.up", read), 0) * (linear("mlp.up", read) if mlp.get("gated") else 1)
        x = rms(linear("mlp.down", hidden), mlp.get("output_norm"), "blocks.0.mlp.output_norm.weight") + (x if mlp.get("skip", True) else 0)
        return w["head.weight"] @ rms(x, self.architecture.get("final_norm"), "norm.weight")

    def without(self, norm, place=()):
        """The model without a norm whose gain is the root of its epsilon, which would then be no other function."""
        architecture = copy.deepcopy(self.architecture)
        owner = architecture
        for step in place:
            owner = owner[step]
        del owner[norm]
        name = "norm.weight" if not place else f"blocks.0.{place[-1]}.{norm}.weight"
        return architecture, {other: values for other, values in self.tensors.items() if other != name}


def base(seed, attention=None, mlp=None, **more):
    draw = numpy.random.default_rng(seed).normal
    matrix = lambda *shape: draw(size=shape)
    tensors = {"embed.token.weight": matrix(VOCAB, WIDTH), "head.weight": matrix(VOCAB, WIDTH),
               "blocks.0.mlp.up.weight": matrix(NEURONS, WIDTH), "blocks.0.mlp.down.weight": matrix(WIDTH, NEURONS)}
    for slot in ("query", "key", "value", "output"):
        tensors[f"blocks.0.attention.{slot}.weight"] = matrix(WIDTH, WIDTH)
    architecture = {"width": WIDTH, "vocab": VOCAB, "context": 16, **more, "blocks": [
        {"attention": {"heads": 2, "head_width": 4} | (attention or {}), "mlp": {"width": NEURONS, "activation": "relu"} | (mlp or {})}]}
    return architecture, tensors


def with_odd_coordinate(tensors):
    """Only one token has it, and attention neither reads nor writes it."""
    tensors["embed.token.weight"][:, ODD] = 0
    tensors["embed.token.weight"][TOKEN, ODD] = 1
    for slot in ("query", "key", "value"):
        tensors[f"blocks.0.attention.{slot}.weight"][:, ODD] = 0
    tensors["blocks.0.attention.output.weight"][ODD] = 0


def bias_of_an_identity():
    """A value that is the input and a bias of 1e10, which a gate lets through on that token."""
    architecture, tensors = base(0, {"value": "identity", "bias": {"value": True}, "skip": False}, {"gated": True, "skip": False}, final_norm=NORM)
    with_odd_coordinate(tensors)
    del tensors["blocks.0.attention.value.weight"]
    tensors["embed.token.weight"][:, 7] = 0
    tensors["blocks.0.attention.output.weight"] = numpy.eye(WIDTH)
    tensors["blocks.0.attention.value.bias"] = numpy.where(numpy.arange(WIDTH) == 7, 1e10, 0)
    tensors["blocks.0.mlp.gate.weight"] = tensors["blocks.0.mlp.up.weight"][::-1].copy()
    for name in ("up", "gate"):
        tensors[f"blocks.0.mlp.{name}.weight"][:, ODD:] = 0
    tensors["blocks.0.mlp.gate.weight"][-1] = numpy.eye(WIDTH)[ODD]
    tensors["blocks.0.mlp.up.weight"][-1] = numpy.eye(WIDTH)[7]
    tensors["norm.weight"] = numpy.full(WIDTH, 1e9)
    model = Drawn(architecture, tensors)
    return model, Drawn(*model.without("final_norm"))


def skip_taken_in(place):
    """Neurons that could take in a skip, as they are stored, and not with what the norm makes of them."""
    architecture, tensors = base(1, mlp={place: NORM})
    with_odd_coordinate(tensors)
    up, down = tensors["blocks.0.mlp.up.weight"], tensors["blocks.0.mlp.down.weight"]
    up[WIDTH:, ODD] = 0
    up[:WIDTH], down[:, :WIDTH] = numpy.eye(WIDTH), -numpy.eye(WIDTH)
    gains = numpy.where(numpy.arange(WIDTH) == ODD, 1e11, 1e9)
    tensors[f"blocks.0.mlp.{place}.weight"] = gains
    model = Drawn(architecture, tensors)
    other, changed = model.without(place, ("blocks", 0, "mlp"))
    other["blocks"][0]["mlp"]["skip"] = False
    signs = numpy.where(numpy.arange(NEURONS) < WIDTH, -1, 1)[:, None]
    changed["blocks.0.mlp.up.weight"] = up * signs * (gains / 1e9 if place == "norm" else 1)
    changed["blocks.0.mlp.down.weight"] = down if place == "norm" else down * (gains / 1e9)[:, None]
    return model, Drawn(other, changed)


def numbers_whose_squares_vanish():
    architecture, tensors = base(1, embedding={"scale": 1e32, "factor": WIDTH}, final_norm=NORM | {"epsilon": 1e16})
    tensors["embed.token.weight"] *= 1e-176
    tensors["embed.token.weight"][TOKEN] *= 1e13
    tensors["embed.projection.weight"] = tensors["blocks.0.attention.query.weight"][::-1] * 1e140
    tensors["norm.weight"] = numpy.full(WIDTH, 1e8)
    model = Drawn(architecture, tensors, numpy.float64)
    return model, Drawn(*model.without("final_norm"), numpy.float64)


def check_all(attacks):
    for name, pair in (("identity", bias_of_an_identity()), ("pre-norm", skip_taken_in("norm")),
                       ("output-norm", skip_taken_in("output_norm")), ("vanishing", numbers_whose_squares_vanish())):
        logits = [model.logits(TOKEN) for model in pair]
        far = abs(logits[0] - logits[1]).max() / abs(logits[0]).max()
        first, second = (attacks.save(f"{name}-{side}", model) for model, side in zip(pair, "ab"))
        attacks.attack(f"{name}: the norm that matters is gone", first, second, far)
        attacks.attack(f"{name}: it is added", second, first, far)


if __name__ == "__main__":
    run("norms_that_matter", check_all)
