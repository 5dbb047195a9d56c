"""Models in the native format as the attacks need them: made here, and computed by NumPy in float64, by docs/formats.md.

Only what the attacks use: dense projections in serial blocks, one sequence at a time and no padding.
"""

import copy
import json
import pathlib
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "error"))
from files import write_tensors  # noqa: E402  (the folder is not a package)

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
HAS_CLASSES = ("classifier", "token_classifier", "question_answering", "next_sentence")


def attention(heads=2, head_width=12, **more):
    return {"heads": heads, "head_width": head_width, **more}


def decoder(vocab=97, width=24, context=64, layers=2, attention=attention(), mlp=None, norm="rms", final=True, **more):
    """A small language model; `norm` stands before every sublayer (None: nowhere) and, with `final`, before the head."""
    kind = {"kind": norm} if norm else None
    mlp = {"width": 48, "activation": "silu", **(mlp or {})}
    return {"width": width, "vocab": vocab, "context": context, "final_norm": kind if final else None,
            "blocks": [{"repeat": layers, "attention": {"norm": kind, **attention}, "mlp": {"norm": kind, **mlp}}], **more}


def blocks_of(architecture):
    return [block for block in architecture["blocks"] for _ in range(block.get("repeat", 1))]


def norm_shapes(name, norm, width):
    norm = norm or {"gain": False}
    return ({f"{name}.weight": [width]} if norm.get("gain", True) else {}) | (
        {f"{name}.bias": [width]} if norm.get("bias", False) else {})


def embedding_shapes(architecture):
    width, embedding = architecture["width"], architecture.get("embedding", {})
    patch, factor = embedding.get("patch"), embedding.get("factor")
    shapes = {}
    if patch:
        shapes["embed.patch.weight"] = [width, patch.get("channels", 3), patch["size"], patch["size"]]
        shapes |= {"embed.patch.bias": [width]} if patch.get("bias", True) else {}
    else:
        shapes["embed.token.weight"] = [architecture["vocab"], factor or width]
    if factor:
        shapes["embed.projection.weight"] = [width, factor]
    if embedding.get("class_token"):
        shapes["embed.class"] = [width]
    if embedding.get("position") == "learned":
        shapes["embed.position.weight"] = [architecture["context"] + embedding.get("position_offset", 0), width]
    if embedding.get("types"):
        shapes["embed.type.weight"] = [embedding["types"], width]
    return shapes | norm_shapes("embed.norm", embedding.get("norm"), width)


def block_shapes(name, block, width):
    a, mlp = block["attention"], block.get("mlp")
    inner, outer = a["heads"] * a["head_width"], a.get("kv_heads", a["heads"]) * a["head_width"]
    linear = {"attention.query": [inner, width], "attention.key": [outer, width], "attention.value": [outer, width],
              "attention.output": [width, inner]}
    if mlp:
        gate = {"mlp.gate": [mlp["width"], width]} if mlp.get("gated") else {}
        linear |= {"mlp.up": [mlp["width"], width], **gate, "mlp.down": [width, mlp["width"]]}
    shapes = {}
    for what, shape in linear.items():
        sublayer, matrix = what.split(".")
        shapes[f"{name}.{what}.weight"] = shape
        if block[sublayer].get("bias", {}).get(matrix):
            shapes[f"{name}.{what}.bias"] = shape[:1]
    for sublayer in ("attention", "mlp"):
        shapes |= norm_shapes(f"{name}.{sublayer}.norm", (block.get(sublayer) or {}).get("norm"), width)
    return shapes


def head_shapes(architecture):
    width, head = architecture["width"], architecture.get("head", {})
    shapes = {}
    if head.get("transform"):
        shapes["head.transform.weight"] = [width, width]
        shapes |= {"head.transform.bias": [width]} if head["transform"].get("bias", True) else {}
    task = architecture.get("task", "causal_lm")
    rows = head["classes"] if task in HAS_CLASSES else architecture.get("vocab")
    if task != "encoder" and not head.get("tied"):
        shapes["head.weight"] = [rows, width]
    return shapes | ({"head.bias": [rows]} if head.get("bias") else {})


def shapes_of(architecture):
    """Every tensor's name and shape."""
    shapes = embedding_shapes(architecture)
    for number, block in enumerate(blocks_of(architecture)):
        shapes |= block_shapes(f"blocks.{number}", block, architecture["width"])
    return shapes | norm_shapes("norm", architecture.get("final_norm"), architecture["width"]) | head_shapes(architecture)


def drawn(architecture, seed):
    """Generic weights: matrices keep sizes, tables have rows of size one per entry, gains and biases are not neutral."""
    generator = numpy.random.default_rng(seed)

    def draw(name, shape):
        values = generator.standard_normal(shape)
        if name.startswith("embed.") and len(shape) == 2 and "projection" not in name:
            return values
        if len(shape) > 1:
            return values / numpy.sqrt(numpy.prod(shape[1:]))
        return 1 + 0.3 * values if name.endswith("norm.weight") else 0.5 * values

    return Plain(architecture, {name: draw(name, shape) for name, shape in shapes_of(architecture).items()})


def rounded(values, dtype):
    """The nearest numbers that the type holds, as float64."""
    if dtype != "BF16":
        return values.astype(FLOATS[dtype]).astype(numpy.float64)
    bits = values.astype("<f4").view("<u4").astype(numpy.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype("<u4").view("<f4").astype(numpy.float64)


def stored_bytes(values, dtype):
    if dtype == "BF16":
        return (rounded(values, dtype).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype(FLOATS[dtype]).tobytes()


def activated(x, name):
    if name == "relu":
        return numpy.maximum(x, 0)
    if name == "tanh":
        return numpy.tanh(x)
    if name == "silu":
        return x / (1 + numpy.exp(-x))
    assert name == "gelu_tanh", name
    return 0.5 * x * (1 + numpy.tanh(numpy.sqrt(2 / numpy.pi) * (x + 0.044715 * x**3)))


def rotated(x, rope):
    """x is [heads, tokens, head_width]; every dimension turns, in layout `half`; only dynamic scaling."""
    half, theta, scaling = x.shape[-1] // 2, rope.get("theta", 10000), rope.get("scaling")
    if scaling and x.shape[1] > scaling["original_context"]:
        longer = scaling["factor"] * x.shape[1] / scaling["original_context"] - (scaling["factor"] - 1)
        theta *= longer ** (half / (half - 1))
    frequency = theta ** (-numpy.arange(half) / half)
    angle = numpy.arange(x.shape[1])[:, None] * frequency
    a, b = x[..., :half], x[..., half:]
    return numpy.concatenate([a * numpy.cos(angle) - b * numpy.sin(angle), b * numpy.cos(angle) + a * numpy.sin(angle)], -1)


class Plain:
    """An Architecture and its tensors by name, in float64; `dtypes` gives what some are stored in, by a prefix of the name."""

    def __init__(self, architecture, tensors, dtype="F64", dtypes=None):
        self.architecture, self.dtype, self.dtypes = architecture, dtype, dtypes or {}
        self.tensors = {name: rounded(values, self.dtype_of(name)) for name, values in tensors.items()}

    def dtype_of(self, name):
        return next((dtype for prefix, dtype in self.dtypes.items() if name.startswith(prefix)), self.dtype)

    def with_tensors(self, *others, **options):
        """The same with some tensors replaced; what they are stored in can be another."""
        merged = {**self.tensors}
        for other in others:
            merged |= other
        options = {"dtype": self.dtype, "dtypes": self.dtypes, **options}
        return Plain(copy.deepcopy(self.architecture), merged, **options)

    def stored_as(self, dtype, **dtypes):
        return self.with_tensors(dtype=dtype, dtypes=dtypes)

    def save(self, folder):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True)
        config = {"model_type": "pare", "pare_format": 1, "architecture": self.architecture}
        (folder / "config.json").write_text(json.dumps(config))
        write_tensors(folder / "model.safetensors", {
            name: (self.dtype_of(name), list(values.shape), stored_bytes(values, self.dtype_of(name)))
            for name, values in self.tensors.items()})
        return folder

    def linear(self, name, x, seen):
        if seen is not None:
            seen.setdefault(f"{name}.weight", []).append(x)
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0)

    def normed(self, name, x, norm):
        if not norm:
            return x
        centred = x - x.mean(-1, keepdims=True) if norm["kind"] == "layer" else x
        size = numpy.sqrt((centred**2).mean(-1, keepdims=True) + norm.get("epsilon", 1e-5))
        return centred / size * self.tensors.get(f"{name}.weight", 1) + self.tensors.get(f"{name}.bias", 0)

    def embedded(self, ids, types):
        embedding = self.architecture.get("embedding", {})
        if embedding.get("patch"):
            x = self.patches(ids, embedding["patch"])
        else:
            x = self.tensors["embed.token.weight"][ids]
        if embedding.get("factor"):
            x = self.linear("embed.projection", x, None)
        if embedding.get("position") == "learned":
            assert len(x) <= self.architecture["context"], "no position for the last token"
            start = embedding.get("position_offset", 0)
            x = x + self.tensors["embed.position.weight"][start : start + len(x)]
        elif embedding.get("position") == "sinusoidal":
            x = x + sinusoids(len(x), x.shape[-1])
        if embedding.get("types"):
            x = x + self.tensors["embed.type.weight"][numpy.zeros(len(x), int) if types is None else types]
        return self.normed("embed.norm", x, embedding.get("norm"))

    def patches(self, pixels, patch):
        size, side = patch["size"], patch["image"] // patch["size"]
        cut = pixels.reshape(len(pixels), side, size, side, size).transpose(1, 3, 0, 2, 4).reshape(side * side, -1)
        weight = self.tensors["embed.patch.weight"]
        x = cut @ weight.reshape(len(weight), -1).T + self.tensors.get("embed.patch.bias", 0)
        first = [self.tensors["embed.class"][None]] if self.architecture["embedding"].get("class_token") else []
        return numpy.concatenate([*first, x])

    def attended(self, name, x, a, seen):
        heads, width, kv_heads = a["heads"], a["head_width"], a.get("kv_heads", a["heads"])

        def split(matrix, count):
            y = self.linear(f"{name}.{matrix}", x, seen).reshape(len(x), count, width).transpose(1, 0, 2)
            return numpy.repeat(y, heads // count, 0)

        query, key, value = split("query", heads), split("key", kv_heads), split("value", kv_heads)
        if a.get("rope") is not None:
            query, key = rotated(query, a["rope"]), rotated(key, a["rope"])
        place = numpy.arange(len(x))
        back = place[-(self.last or 0) :, None] - place
        hidden = (back < 0) & (a.get("mask", "causal") == "causal") | (abs(back) >= (a.get("window") or len(x)))
        scores = query[:, -(self.last or 0) :] @ key.transpose(0, 2, 1) * (a.get("scale") or width**-0.5)
        scores = numpy.where(hidden, -numpy.inf, scores)
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ value
        return self.linear(f"{name}.output", mixed.transpose(1, 0, 2).reshape(len(back), -1), seen)

    def transformed(self, name, x, mlp, seen):
        up = self.linear(f"{name}.up", x, seen)
        if mlp.get("gated"):
            inner = activated(self.linear(f"{name}.gate", x, seen), mlp["activation"]) * up
        else:
            inner = activated(up, mlp["activation"])
        return self.linear(f"{name}.down", inner, seen)

    def block(self, number, x, seen):
        block, name = blocks_of(self.architecture)[number], f"blocks.{number}"
        for sublayer, apply in (("attention", self.attended), ("mlp", self.transformed)):
            settings = block.get(sublayer)
            if settings:
                inputs = self.normed(f"{name}.{sublayer}.norm", x, settings.get("norm"))
                out = apply(f"{name}.{sublayer}", inputs, settings, seen)
                x = x[-len(out):] * settings.get("skip", True) + out
        return x

    def __call__(self, ids, types=None, seen=None, last=None):
        """What comes out for one sequence (or image), a row for each answer; `seen` gets what every matrix multiplies.

        `last`: for the last so many tokens only, of a model in which no block but the first one attends: long texts are dear.
        """
        a = self.architecture
        self.last = last
        x = self.embedded(numpy.asarray(ids), types)
        for number in a.get("layers") or range(len(blocks_of(a))):
            x = self.block(number, x, seen)
        x = self.normed("norm", x, a.get("final_norm"))
        head, task = a.get("head", {}), a.get("task", "causal_lm")
        if task in ("classifier", "next_sentence"):
            x = x[-1:] if head.get("pool") == "last" else x[:1]
        if task == "encoder":
            return x
        if head.get("transform"):
            x = activated(self.linear("head.transform", x, seen), head["transform"]["activation"])
        if seen is not None:
            seen.setdefault("head.weight", []).append(x)
        table = self.tensors["embed.token.weight" if head.get("tied") else "head.weight"]
        return x @ table.T + self.tensors.get("head.bias", 0)


def sinusoids(tokens, width):
    angle = numpy.arange(tokens)[:, None] * 10000.0 ** (-2 * numpy.arange(width // 2) / width)
    return numpy.stack([numpy.sin(angle), numpy.cos(angle)], -1).reshape(tokens, width)


def moved(a, b):
    """How far b is from a at most, over an entry's own size or what is usual in its row: one huge entry hides nothing."""
    usual = numpy.median(abs(a - numpy.median(a, -1, keepdims=True)), -1, keepdims=True)
    apart, size = abs(a - b), numpy.maximum(usual, abs(a))
    return float(numpy.divide(apart, size, out=numpy.where(apart > 0, numpy.inf, 0.0), where=size > 0).max())


def farthest(a, b, sequences):
    """The same over several sequences."""
    return max(moved(a(ids), b(ids)) for ids in sequences)


def with_other_blocks(model, prefix="blocks."):
    """Every block (or what begins so) drawn anew."""
    other = drawn(model.architecture, 99)
    return model.with_tensors({name: other.tensors[name] for name in model.tensors if name.startswith(prefix)})


def with_neurons_in_another_order(model):
    """The same function, but for rounding: the neurons of every MLP change places."""
    changed = {}
    for name, values in model.tensors.items():
        if ".mlp." in name and ".norm." not in name and not name.endswith("down.bias"):
            order = numpy.random.default_rng(8).permutation(values.shape[-1 if "down" in name else 0])
            changed[name] = values[:, order] if "down" in name else values[order]
    return model.with_tensors(changed)


def with_last_block(architecture):
    """One more block, whose MLP has neither norm nor skip: what is huge stays so, and every matrix of it matters there."""
    block = copy.deepcopy(architecture["blocks"][-1]) | {"repeat": 1}
    block["mlp"] |= {"activation": "relu", "norm": None, "skip": False}
    return architecture | {"blocks": [*architecture["blocks"], block], "final_norm": None}


def keeping(model, entries):
    """The first entries of the stream (not negative) reach the head as the embedding has them; for `with_last_block`."""
    tensors = {name: values.copy() for name, values in model.tensors.items()}
    for name, values in tensors.items():
        if name.endswith((".attention.output.weight", ".mlp.down.weight")):
            values[:entries] = 0
    last = f"blocks.{len(blocks_of(model.architecture)) - 1}.mlp"
    up, down = tensors[f"{last}.up.weight"], tensors[f"{last}.down.weight"]
    up[:entries], down[:, :entries] = 0, 0
    up[:entries, :entries] = down[:entries, :entries] = numpy.eye(entries)
    return model.with_tensors(tensors)
