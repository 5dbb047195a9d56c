#!/usr/bin/env python3
"""The formulas of a certificate are facts: NumPy computes every new tensor from them and from the source alone.

Nothing here knows a pass. The grammar is that of docs/formats.md: sums, products, inverses, transposes, names of tensors
and of symbols, and a handful of functions.
"""

import json
import math
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from report import Report, pare  # noqa: E402  (the folder above is not a package)

Report("formulas").peers("numpy", "safetensors.numpy")
import numpy  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

WIDTH = 16
TABLES = ("embed.token.weight", "embed.position.weight", "embed.type.weight", "embed.table.weight", "embed.registers",
          ".qk.bias")
TOKEN = re.compile(r"\s*(⁻ᵀ|⁻¹|ᵀ|[·+⊕()\[\],;]|[^\s·+⊕()\[\],;⁻ᵀ]+)")
TOLERANCE = 1e-9  # the condition numbers of random matrices this small are below 1e4


def written(name, tensor):
    """Matrices are stored [out, in] and written [in, out]; tables, biases and one matrix for each head stay."""
    if tensor.ndim == 4:
        return tensor.reshape(tensor.shape[0], -1).T
    return tensor.T if tensor.ndim == 2 and not name.endswith(TABLES) else tensor


def with_identity(block, size):
    whole = numpy.eye(size)
    whole[:len(block), :len(block)] = block
    return whole


def block_diagonal(blocks):
    k = len(blocks[0])
    whole = numpy.zeros((len(blocks) * k,) * 2)
    for g, block in enumerate(blocks):
        whole[g * k:(g + 1) * k, g * k:(g + 1) * k] = block
    return whole


def repeated(count, part):
    """n times a matrix on the diagonal, or a vector or a number one after another."""
    return block_diagonal([part] * int(count)) if numpy.ndim(part) == 2 else numpy.tile(part, int(count))


def orthogonal(matrix):
    """Q of the whole QR decomposition, R with a positive diagonal; only the first columns count."""
    q, r = numpy.linalg.qr(matrix[:, :len(matrix)], mode="complete")
    signs = numpy.ones(len(matrix))
    signs[:r.shape[1]] = numpy.where(numpy.diag(r) < 0, -1, 1)
    return q * signs


def signed(columns):
    return numpy.where(columns[numpy.abs(columns).argmax(0), range(columns.shape[1])] < 0, -1, 1)


def balance(left, right):
    """D with left · D = U √S, of the singular values of the product itself."""
    u, s, _ = numpy.linalg.svd(left @ right.T, full_matrices=False)
    k = left.shape[1]
    wanted = u[:, :k] * numpy.sqrt(s[:k])
    return numpy.linalg.lstsq(left, wanted * signed(wanted), rcond=None)[0]


def axes(columns):
    """Principal axes, from the eigenvectors of the Gram matrix."""
    turn = numpy.linalg.eigh(columns.T @ columns)[1][:, ::-1]
    return turn * signed(columns @ turn)


def rows_of_largest_volume(matrix):
    """k rows of an orthonormal basis of the columns: greedily, then exchanged while an exchange gains more than 1 %."""
    basis = numpy.linalg.qr(matrix)[0]
    rows, left = [], basis.copy()
    for _ in range(basis.shape[1]):
        rows.append(int((left ** 2).sum(axis=1).argmax()))
        direction = left[rows[-1]] / numpy.linalg.norm(left[rows[-1]])
        left = left - numpy.outer(left @ direction, direction)
    while True:
        factors = numpy.abs(basis @ numpy.linalg.inv(basis[rows]))
        row, place = numpy.unravel_index(factors.argmax(), factors.shape)
        if factors[row, place] <= 1.01:
            return sorted(rows)
        rows[place] = int(row)


class Shrunk(numpy.ndarray):
    """Heads without their identity blocks, which remember the whole."""


class Evaluator:
    def __init__(self, tensors, symbols, attention):
        self.tensors, self.symbols, self.attention, self.known = tensors, symbols, attention, {}

    def value(self, formula):
        self.tokens = TOKEN.findall(formula)
        self.tokens.append("")
        saved, result = self.tokens, self.sum()
        assert saved == [""], f"{saved} is left of {formula}"
        return result

    def take(self, *wanted):
        token = self.tokens.pop(0)
        assert not wanted or token in wanted, f"{token!r}, expected one of {wanted}"
        return token

    def sum(self):
        total = self.product()
        while self.tokens[0] == "+":
            self.take()
            total = total + self.product()
        return total

    def product(self):
        factors = [self.power()]
        while self.tokens[0] == "·":
            self.take()
            factors.append(self.power())
        while len(factors) > 1:  # ⊕ I is as large as what stands beside it
            left, right = factors[0], factors[1]
            left = left(right.shape[-2]) if callable(left) else left
            right = right(left.shape[-1]) if callable(right) else right
            factors[:2] = [left * right if 1 in (left.size, right.size) else left @ right]
        return factors[0]

    def power(self):
        value = self.atom()
        while self.tokens[0] in ("⁻¹", "⁻ᵀ", "ᵀ"):
            mark = self.take()
            value = numpy.linalg.inv(value) if "⁻" in mark else value
            value = numpy.swapaxes(value, -1, -2) if "ᵀ" in mark else value
        return value

    def atom(self):
        token = self.take()
        if token == "(":
            value = self.sum()
            if self.take(")", "⊕") == "⊕":
                self.take("I")
                self.take(")")
                return lambda size: with_identity(value, size)
            return value
        if token == "[" and self.tokens[:2] != ["I", "0"]:
            return self.blocks()
        if token == "[":  # [I 0; c 1]
            assert [self.take() for _ in range(3)] == ["I", "0", ";"]
            row = self.sum()
            assert [self.take() for _ in range(2)] == ["1", "]"]
            sheared = numpy.eye(len(row) + 1)
            sheared[-1, :-1] = row
            return sheared
        if self.tokens[0] == "(":
            return self.function(token)
        return self.named(token)

    def blocks(self):
        """[W, I, -I], [W; I; -I], [W, I/64], [W, 0], [W; 0], [0; b] and [b, 0, 64]"""
        if self.tokens[0] == "0":
            assert [self.take() for _ in range(2)] == ["0", ";"]
            row = self.sum()
            self.take("]")
            return numpy.vstack([numpy.zeros((WIDTH, len(row))), row])
        value, parts = self.sum(), []
        while (mark := self.take(",", ";", "]")) != "]":
            word, below = self.take(), mark == ";"
            if "I" in word:
                sign, _, divisor = word.partition("I")
                parts.append(numpy.eye(WIDTH) * float(sign + "1") / float(divisor[1:] or 1))
            else:
                shape = WIDTH if value.ndim == 1 else (1, value.shape[1]) if below else (len(value), WIDTH)
                parts.append(numpy.full(shape, float(word)))
        return numpy.concatenate([value, *parts], axis=0 if below or value.ndim == 1 else 1)

    def diagonal(self, name):
        """signs(n; i, j-k) and only(n; i, j-k)"""
        chosen = numpy.zeros(int(self.take()))
        while self.take(";", ",", ")") != ")":
            first, _, last = self.take().partition("-")
            chosen[int(first):int(last or first) + 1] = 1
        return numpy.diag(1 - 2 * chosen if name == "signs" else chosen)

    def function(self, name):
        self.take("(")
        if name in ("signs", "only"):
            return self.diagonal(name)
        if name == "columns":
            begin, _, columns, _ = (self.take() for _ in range(4))
            return lambda size: numpy.eye(size, int(columns), int(begin))
        if name in ("rms_norm", "layer_norm"):
            rows, _, epsilon = self.sum(), self.take(","), float(self.take())
            self.take(")")
            rows = rows - rows.mean(1, keepdims=True) * (name == "layer_norm")
            return rows / numpy.sqrt((rows ** 2).mean(1, keepdims=True) + epsilon)
        if name == "sinusoidal_halves":
            rows, _, width, _ = (self.take() for _ in range(4))
            half = int(width) // 2
            angles = numpy.arange(int(rows))[:, None] * 10000.0 ** (-numpy.arange(half) / max(1, half - 1))
            pad = numpy.zeros((int(rows), int(width) % 2))
            return numpy.concatenate([numpy.sin(angles), numpy.cos(angles), pad], 1)
        if name == "sinusoidal":
            rows, comma, width = (self.take() for _ in range(3))
            self.take(")")
            angles = numpy.arange(int(rows))[:, None] * 10000.0 ** (-2 * (numpy.arange(int(width)) // 2) / int(width))
            return numpy.where(numpy.arange(int(width)) % 2 == 0, numpy.sin(angles), numpy.cos(angles))
        arguments = [self.sum()]
        while self.take(",", ")") == ",":
            arguments.append(self.sum())
        own = {"diag": numpy.diag, "centring": lambda n: numpy.eye(int(n)) - 1 / n, "orthogonal": orthogonal,
               "heads": self.each_head, "repeated": repeated, "unshrunk": lambda head: head.whole, "pinv": numpy.linalg.pinv,
               "zeros": lambda n: numpy.zeros(int(n)), "flat": lambda x: x.T.ravel(), "tanh": numpy.tanh, "gelu": lambda x: x * (1 + numpy.vectorize(math.erf)(x / 2 ** 0.5)) / 2}
        return (own.get(name) or getattr(self, name))(*arguments)

    def heads(self):
        a = self.attention
        return a["heads"], a.get("kv_heads") or a["heads"], a["head_width"]

    def gauge(self, matrix, of_head=lambda columns: numpy.linalg.qr(columns, mode="r")):
        """One R for each key/value head, of the stacked columns of all heads that share it."""
        _, groups, k = self.heads()
        whole = numpy.zeros((groups * k, groups * k))
        for g in range(groups):
            columns = matrix.reshape(len(matrix), groups, -1, k)[:, g].transpose(1, 0, 2).reshape(-1, k)
            whole[g * k:(g + 1) * k, g * k:(g + 1) * k] = of_head(columns)
        return whole

    def rope_gauge(self, matrix):
        """RoPE turns pairs of dimensions, and there only a scale is free."""
        rope = {"width": self.attention["head_width"], "layout": "half"} | self.attention["rope"]

        def of_head(columns):
            whole, turned = numpy.zeros((columns.shape[1],) * 2), rope["width"]
            for i in range(turned // 2):
                pair = [i, i + turned // 2] if rope["layout"] == "half" else [2 * i, 2 * i + 1]
                whole[pair, pair] = numpy.sqrt((columns[:, pair] ** 2).sum() / 2)
            if turned < len(whole):
                whole[turned:, turned:] = numpy.linalg.qr(columns[:, turned:], mode="r")
            return whole
        return self.gauge(matrix, of_head)

    def sides(self, matrix, bias):
        """Of each key/value head the columns of its heads with their biases, one head below the other."""
        _, groups, k = self.heads()
        whole = numpy.vstack([matrix, numpy.broadcast_to(bias, matrix.shape[1])])
        return [numpy.vstack(numpy.split(part, part.shape[1] // k, axis=1)) for part in numpy.split(whole, groups, axis=1)]

    def value_gauge(self, value, bias, output):
        return block_diagonal([balance(a, b) for a, b in zip(self.sides(value, bias), self.sides(output.T, 0))])

    def key_gauge(self, query, query_bias, key, key_bias):
        k, rope = self.attention["head_width"], self.attention.get("rope")
        turned, layout = (rope.get("width", k), rope.get("layout", "half")) if rope is not None else (0, "")
        lengths_stay = bool(self.attention.get("qk_norm")) or self.attention.get("query") == "key"
        keys = self.sides(key, key_bias)
        queries = keys if self.attention.get("query") == "key" else self.sides(query, query_bias)

        def of_head(a, b):
            whole = numpy.eye(k)
            for i in range(turned // 2):
                pair = [i, i + turned // 2] if layout == "half" else [2 * i, 2 * i + 1]
                plane = b[:, pair] @ [1, 1j]
                largest = plane[numpy.abs(plane).argmax()]
                scale = 1 if lengths_stay else (numpy.linalg.norm(b[:, pair]) / numpy.linalg.norm(a[:, pair])) ** 0.5
                z = scale * largest.conjugate() / abs(largest)
                whole[numpy.ix_(pair, pair)] = [[z.real, z.imag], [-z.imag, z.real]]
            if turned < k:
                whole[turned:, turned:] = axes(b[:, turned:]) if lengths_stay else balance(a[:, turned:], b[:, turned:])
            return whole
        return block_diagonal([of_head(a, b) for a, b in zip(queries, keys)])

    def head_order(self, value, bias, output):
        heads, groups, k = self.heads()
        share = heads // groups
        values, outputs = self.sides(value, bias), numpy.split(output, heads)
        lengths = [numpy.linalg.norm(values[h // share] @ outputs[h]) for h in range(heads)]
        by_length = sorted(range(groups), key=lambda g: -numpy.linalg.norm(lengths[g * share:(g + 1) * share]))
        order = [h for g in by_length for h in sorted(range(g * share, (g + 1) * share), key=lambda h: -lengths[h])]
        return numpy.eye(heads)[:, order]

    def by_head(self, order):
        return numpy.kron(order, numpy.eye(self.attention["head_width"]))

    def group_order(self, order):
        heads, groups, _ = self.heads()
        share = heads // groups
        places = [int(order[:, g * share].argmax()) // share for g in range(groups)]
        return numpy.eye(groups)[:, places]

    def by_group(self, order):
        return numpy.kron(self.group_order(order), numpy.eye(self.attention["head_width"]))

    def pivot_block(self, matrix):
        """Block diagonal: of each key/value head the rows of largest volume."""
        _, groups, k = self.heads()
        whole = numpy.zeros((groups * k, groups * k))
        for g in range(groups):
            part = slice(g * k, (g + 1) * k)
            whole[part, part] = matrix[rows_of_largest_volume(matrix[:, part]), part]
        return whole

    def identity_rows(self, matrix):
        """Of each head's columns, the row that is 1 in the first of them and 0 in the others, and so on."""
        _, groups, k = self.heads()
        parts = [matrix[:, g * k:(g + 1) * k] for g in range(groups)]
        return parts, [[int(numpy.abs(part - unit).max(axis=1).argmin()) for unit in numpy.eye(k)] for part in parts]

    def shrunk(self, matrix):
        parts, rows = self.identity_rows(matrix)
        result = numpy.stack([numpy.delete(part, at, axis=0).T for part, at in zip(parts, rows)]).view(Shrunk)
        result.whole = matrix
        return result

    def pivots(self, matrix):
        return numpy.array(self.identity_rows(matrix)[1]).T  # as a matrix is written

    def each_head(self, value):
        """One matrix, or one row, for each query head: those of key/value heads for every query head of their group."""
        heads, _, k = self.heads()
        parts = value.reshape(-1, 1, k) if value.ndim == 1 else value.reshape(len(value), -1, k).transpose(1, 0, 2)
        return numpy.repeat(parts, heads // len(parts), axis=0)

    def to_queries(self, value):
        heads, groups, k = self.heads()
        share = heads // groups
        if value.ndim == 1:
            return numpy.repeat(value.reshape(groups, k), share, axis=0).reshape(-1)
        whole = numpy.zeros((heads * k, heads * k))
        for h in range(heads):
            g = h // share
            whole[h * k:(h + 1) * k, h * k:(h + 1) * k] = value[g * k:(g + 1) * k, g * k:(g + 1) * k]
        return whole

    def named(self, token):
        if token in self.symbols:
            if token not in self.known:
                self.known[token] = Evaluator(self.tensors, self.symbols, self.attention).value(self.symbols[token])
            return self.known[token]
        if token in self.tensors:
            return written(token, self.tensors[token].astype(numpy.float64))
        return numpy.float64(token)


def evaluated(formula, evaluator, shape):
    """I, 1 and 0 are as large as the tensor that they are stored as."""
    if formula == "I":
        return numpy.eye(shape[0])
    value = numpy.asarray(evaluator.value(formula))
    return value.reshape(shape) if value.size == numpy.prod(shape) else numpy.broadcast_to(value, shape)


def architecture(skips=(True, False), tied=True, norm=None, heads=(2, 2), position="learned", wiring="serial", rope=None):
    return {
        "width": WIDTH, "vocab": 40, "context": 12, "embedding": {"position": position}, "head": {"tied": tied}, "final_norm": norm,
        "blocks": [{"repeat": 3, "wiring": wiring,
                    "attention": {"heads": heads[0], "kv_heads": heads[1], "head_width": 8, "skip": skips[0], "norm": norm, "rope": rope,
                                  "bias": {"query": True, "key": True, "value": True, "output": True}},
                    "mlp": {"width": 24, "activation": "gelu", "bias": {"up": True, "down": True}, "skip": skips[1], "norm": norm}}],
    }


def with_attention(**settings):
    model = architecture((True, True), heads=(4, 4))
    model["blocks"][0]["attention"] |= settings
    return model


BARE = {"kind": "rms", "gain": False}
LAYER, RMS = {"kind": "layer", "bias": True}, {"kind": "rms", "offset": 1}
CONSTANT, CONSTANT_RMS = LAYER | {"epsilon": 1e28}, RMS | {"epsilon": 1e28}
SCALE = {"kind": "scale", "factor": 0.5}
COLLAPSED = {"heads": 2, "head_width": 8, "scores": "collapsed", "values": "collapsed", "bias": {"query": True, "output": True}}
PLAIN_BLOCK = {"attention": {"heads": 2, "head_width": 8}, "mlp": {"width": 24, "activation": "gelu"}}
ONE_STREAM = {**architecture(tied=False), "blocks": [PLAIN_BLOCK, {**PLAIN_BLOCK, "attention": COLLAPSED}]}
TABLED = {"width": WIDTH, "vocab": 40, "context": 12, "first_layer": "table", "head": {"tied": False}, "blocks": [
    {"repeat": 3, "attention": {"heads": 2, "head_width": 8, "rope": {}}, "mlp": {"width": 24, "activation": "gelu"}}]}
CASES = [  # passes, architecture, what must occur in a formula
    ("eliminate_projection", architecture(), "Θ₀⁻ᵀ"),
    ("eliminate_projection{target=q}", architecture(tied=False), "R₁ᵀ"),
    ("eliminate_projection{target=k}", architecture(tied=False), "gauge("),
    ("eliminate_projection{target=v}", architecture(tied=False), "R₂"),
    ("eliminate_projection{layer=1}", architecture((True, True), tied=False), "Θ₁"),
    ("eliminate_projection", architecture(position="sinusoidal"), "sinusoidal(12, 16)"),
    ("eliminate_projection{target=q}", architecture(heads=(2, 1)), "to_queries("),
    ("eliminate_projection{target=q}", architecture((True, True), tied=True), "embed.token.weightᵀ"),
    ("eliminate_projection{target=q}", architecture(tied=False, rope={}), "rope_gauge("),
    ("eliminate_projection{target=k}", architecture(tied=False, rope={"width": 4, "layout": "interleaved"}), "rope_gauge("),
    ("eliminate_projection{target=v}", architecture(tied=False, rope={}), "gauge("),
    ("fold_norm_gain", architecture((True, True), norm=LAYER), "diag("),
    ("fold_norm_gain", architecture((True, True), norm=RMS, tied=False), "weight + 1)"),
    ("fold_norm_gain", {**architecture(tied=False, norm=LAYER), "blocks": [
        {"repeat": 2, "attention": {"heads": 2, "head_width": 8}, "mlp": {"kind": "heads", "width": 24, "norm": LAYER}}]}, "[I 0; "),
    ("eliminate_projection{layer=0,target=k}", ONE_STREAM, "⁻¹ · blocks.1.attention.qk.weight · Θ₀⁻ᵀ"),
    ("eliminate_projection{layer=1,target=q}", TABLED, "embed.table.weight · (Θ₁ ⊕ I)"),
    ("drop_key_bias", architecture(), ""),
    ("fold_value_bias", architecture((True, True)), "value.bias · "),
    ("fold_value_bias", architecture((True, True), heads=(2, 1)), "to_queries("),
    ("fold_norm_gain,drop_key_bias,fold_value_bias", architecture((True, True), norm=LAYER), "diag("),
    ("merge_skipless{target=q}", architecture((False, False), tied=False), "blocks.0.attention.output.weight · blocks.0.mlp.up.weight"),
    ("merge_skipless", architecture((False, False), tied=False, wiring="parallel"), "P₂"),
    ("center_layer_norm", architecture((True, True), tied=False, norm=LAYER), "output.bias · centring(16)"),
    ("center_layer_norm", architecture((True, True), tied=False, norm=LAYER, position="sinusoidal"), "sinusoidal(12, 16) · centring(16)"),
    ("rotate_residual", architecture((True, True), norm=BARE), "Θ₀ᵀ · blocks.1.mlp.up.weight"),
    ("rotate_residual{triangular=blocks.1.mlp.down}", architecture((True, True), norm=BARE, tied=False), "orthogonal(blocks.1.mlp.down.weightᵀ)"),
    ("rotate_residual{triangular=embed.token}", architecture((True, True), norm=BARE), "orthogonal(embed.token.weightᵀ)"),
    ("rotate_residual{triangular=blocks.2.attention.key}", architecture((True, True), norm=BARE, heads=(2, 1)), "Θ₂"),
    ("fold_norm_gain,center_layer_norm,rotate_residual", architecture((True, True), norm={"kind": "layer"}, tied=False), "diag("),
    ("fold_constant_norm", architecture((True, True), norm=CONSTANT), "centring(16)"),
    ("fold_constant_norm", architecture((True, True), norm=CONSTANT_RMS, tied=False), "weight + 1)"),
    ("gauge_heads", architecture((True, True)), "value_gauge("),
    ("gauge_heads", architecture((True, True), norm=LAYER, heads=(4, 2)), "to_queries(D₁)⁻¹ · "),
    ("gauge_heads", architecture((True, True), rope={}), "E₀⁻ᵀ"),
    ("gauge_heads", architecture((True, True), rope={"width": 4, "layout": "interleaved"}, heads=(4, 2)), "by_group(π₂)"),
    ("gauge_heads", with_attention(qk_norm={"kind": "rms", "gain": False}, gate="position"), "gate.weight · π₀"),
    ("gauge_heads", with_attention(query="key", rope={"width": 4}, bias={"key": True}), "key_gauge(0, 0, "),
    ("shrink_head_pairs", architecture((True, True)), "pivot_block("),
    ("shrink_head_pairs", architecture((True, True), heads=(2, 1), norm=LAYER), "to_queries("),
    ("shrink_head_pairs", architecture((True, True), rope={}), "shrunk("),
    ("drop_key_bias,fold_value_bias,merge_skipless{target=q}", architecture((False, False), tied=False), "value.bias"),
]


def with_mlp(mlp, **more):
    return {**architecture((True, True), tied=False), "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 8}, "mlp": {"width": 24, **mlp}}], **more}


def first_layer(attention, **more):
    block = {"attention": {"heads": 2, "kv_heads": 1, "head_width": 8, "rope": {}, **attention}, "mlp": {"width": 24, "activation": "gelu"}}
    return {"width": WIDTH, "vocab": 40, "context": 12, "blocks": [block], **more}


BIASED = {"up": True, "down": True}
NORMED = {"embedding": {"scale": 1.5, "factor": 5, "factor_scope": "sum", "norm": {"kind": "dyt", "bias": True}}}
STRICT_CASES = [  # what no layout of another form has
    ("collapse_heads{pairs=all}", architecture((True, True)), "heads(blocks.0.attention.query.weight) · heads("),
    ("collapse_heads{pairs=vo}", architecture((True, True), heads=(2, 1), rope={}), "to_queries("),
    ("cache_keys_only{keep=k}", architecture((True, True)), "⁻¹ · blocks.0.attention.value.weight"),
    ("cache_keys_only{keep=v}", architecture((True, True), heads=(3, 3), rope={}), "pinv("),
    ("absorb_skip", with_mlp({"activation": "relu", "bias": BIASED}), "signs(24; "),
    ("absorb_skip", with_mlp({"activation": "gelu", "bias": {"up": True}}), "only(24; "),
    ("absorb_skip{widen=true}", with_mlp({"activation": "silu", "bias": BIASED}), ", 0, 0]"),
    ("absorb_skip{widen=true},eliminate_projection{target=q}", with_mlp({"activation": "relu"}), "Θ₁⁻¹ · [blocks.1.mlp.up.weight, I, -I]"),
    ("absorb_skip{widen=true}", with_mlp({"activation": "silu", "gated": True}), "[zeros(24), 64]"),
    ("absorb_skip{widen=true}", with_mlp({"activation": "gelu", "gated": True, "bias": BIASED | {"gate": True}}), "gate.bias, 16]"),
    ("absorb_skip{widen=true},eliminate_projection{target=q}", with_mlp({"activation": "sigmoid", "gated": True}), "Θ₁⁻¹ · [blocks.1.mlp.up.weight, I/0.5]"),
    ("lower_mlp_to_heads", with_mlp({"activation": "silu", "bias": BIASED}), "[0; blocks.0.mlp.up.bias]"),
    ("lower_mlp_to_heads", with_mlp({"activation": "quick_gelu"}), "1.702 · [blocks.0.mlp.up.weight; 0]"),
    ("lower_mlp_to_heads", with_mlp({"activation": "sigmoid", "gated": True, "bias": {"gate": True}}), "[0; blocks.0.mlp.gate.bias]"),
    ("precompute_first_layer", first_layer({"norm": RMS, "bias": {"key": True}}, head={"tied": True}), "rms_norm(X₀, "),
    ("precompute_first_layer", first_layer({"norm": LAYER, "query": {"nonlinear": {"width": 5}}}, **NORMED), "gelu("),
    ("fold_constant_norm{head=untie}", architecture((True, True), norm=CONSTANT), "norm.bias · embed.token.weight"),
    ("fold_constant_norm", with_attention(output_norm=CONSTANT, qk_norm=CONSTANT, norm=CONSTANT_RMS), "repeated(4, "),
    ("fold_constant_norm", {**architecture((True, True)), "embedding": {"position": "none", "scale": 1.5, "norm": CONSTANT}, "head": {"tied": False}}, "embed.token.weight · centring(16)"),
    ("fold_constant_norm", with_mlp({"kind": "heads", "norm": CONSTANT_RMS}), " ⊕ I)"),
    ("fold_norm_gain{bias=keep}", architecture((True, True), norm=LAYER, tied=False), "norm.bias · diag(norm.weight)⁻¹"),
    ("fold_constant_norm", with_attention(output_norm=SCALE | {"bias": True}), "0.5 · diag("),
    ("fold_constant_norm", with_attention(qk_norm=CONSTANT, qk_norm_over="each_head", norm=CONSTANT_RMS), "flat("),
    ("fold_constant_norm", with_attention(qk_norm=CONSTANT, qk_norm_over="layer"), "centring(32)"),
    ("gauge_heads", with_attention(qk_norm={"kind": "rms"}, qk_norm_over="each_head"), "group_order("),
    ("eliminate_projection", architecture(position="sinusoidal_halves"), "sinusoidal_halves(12, 16)"),
    ("fold_constant_norm", with_attention(output_norm=SCALE | {"gain": False}), "repeated(16, 0.5)"),
]


def plant_absorbable(folder):
    """Neurons 3 and on, turned round, are the skip: down[J] up[J] = -I."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("mlp.up.weight")]:
        read, down = tensors[name][3:], tensors[name.replace("up", "down")]
        missing = -numpy.eye(WIDTH) - down[:, 3:] @ read
        down[:, 3:] += missing @ numpy.linalg.pinv(read)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def scale_gains(folder, factor):
    """Gains that make up for an epsilon."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor * (factor if name.endswith("norm.weight") else 1) for name, tensor in tensors.items()},
              folder / "model.safetensors", {"format": "pt"})


def wrong_tensors(source, folder, certificate, attention):
    """What of the folder is not what the certificate says, tensor by tensor; and how many formulas there were."""
    before, after = load_file(source / "model.safetensors"), load_file(folder / "model.safetensors")
    said = certificate["formulas"]
    evaluator = Evaluator(before, said["symbols"], attention)
    wrong = []
    if sorted(said["removed"]) != sorted(set(before) - set(after)):
        wrong.append(f"removed: {said['removed']}")
    retyped = {name for names in said["retyped"].values() for name in names}
    for name, tensor in after.items():
        now = written(name, tensor.astype(numpy.float64))
        if name in said["tensors"]:
            expected = evaluated(said["tensors"][name], evaluator, now.shape)
        else:
            expected = written(name, before[name].astype(numpy.float64))
        error = numpy.abs(now - expected).max() / max(1, numpy.abs(expected).max())
        if error > (TOLERANCE if name not in retyped else 1e-2):
            wrong.append(f"{name} is off by {error:.2g}: {said['tensors'].get(name, 'as it was')}")
        if name not in said["tensors"] and name not in retyped and not numpy.array_equal(before[name], tensor):
            wrong.append(f"{name} changed, and nothing says so")
    return "; ".join(wrong[:4])


def main():
    report = Report("formulas")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for number, (passes, model, word) in enumerate(CASES + STRICT_CASES):
            (work / "a.json").write_text(json.dumps(model))
            source = work / f"{number}"
            made = pare("init", "a.json", "-o", source.name, "--dtype", "float64", "--generic", "--seed", number, cwd=work)
            report.check(f"init {number}", made.stderr if made.returncode else "")
            if passes == "absorb_skip":
                plant_absorbable(source)
            if passes.startswith("fold_constant_norm"):
                scale_gains(source, 1e14)
            for form in ("strict", "compat")[:2 if number < len(CASES) else 1]:
                case, out = f"{passes} of {number}, {form}", work / f"{number}-{form}"
                result = pare("rewrite", source.name, "-o", out.name, "--passes", passes, "--form", form, "--allow-growth", "--json", cwd=work)
                if result.returncode:
                    report.check(case, result.stderr)
                    continue
                certificate = json.loads(result.stdout)
                report.check(case, wrong_tensors(source, out, certificate, model["blocks"][0]["attention"]))
                formulas = certificate["formulas"]
                texts = [*formulas["tensors"].values(), *formulas["symbols"].values()]
                report.check(f"{case}: {word!r} occurs", "" if any(word in text for text in texts) or not word else f"{texts[:9]}")
        # A check that cannot fail is worth nothing: one formula with its factors exchanged.
        certificate = json.loads((work / "0-strict" / "certificate.json").read_text())
        tensors = certificate["formulas"]["tensors"]
        name = "blocks.1.mlp.down.weight"
        left, right = tensors[name].split(" · ")
        tensors[name] = f"{left} · {right}⁻¹"
        wrong = wrong_tensors(work / "0", work / "0-strict", certificate, CASES[0][1]["blocks"][0]["attention"])
        report.check("a formula that is not so is caught", "" if wrong.startswith(name) else f"{wrong!r}")
        narrow = pare("rewrite", "0", "-o", "narrow", "--passes", "drop_key_bias", "--dtype", "bfloat16", "--no-verify", "--json", cwd=work)
        retyped = json.loads(narrow.stdout)["formulas"]["retyped"]
        report.check("what is only rounded", "" if list(retyped) == ["bfloat16"] and "head.bias" not in retyped["bfloat16"] and "embed.token.weight" in retyped["bfloat16"] else f"{retyped}")
    report.finish()


if __name__ == "__main__":
    main()
