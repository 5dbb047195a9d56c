#!/usr/bin/env python3
"""The formulas of a certificate are facts: NumPy computes every new tensor from them and from the source alone.

Nothing here knows a pass. The grammar is that of docs/formats.md: sums, products, inverses, transposes, names of tensors
and of symbols, and a handful of functions.
"""

import json
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from report import Report, pare  # noqa: E402  (the folder above is not a package)

try:
    import numpy
    from safetensors.numpy import load_file
except ImportError as missing:
    report = Report("formulas")
    report.skip("all", f"{missing}: make test fetches it where there is a network")
    report.finish()

WIDTH = 16
TABLES = ("embed.token.weight", "embed.position.weight", "embed.type.weight", "embed.table.weight", ".qk.bias")
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
            factors[:2] = [left @ right]
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

    def function(self, name):
        self.take("(")
        if name == "sinusoidal":
            rows, comma, width = (self.take() for _ in range(3))
            self.take(")")
            angles = numpy.arange(int(rows))[:, None] * 10000.0 ** (-2 * (numpy.arange(int(width)) // 2) / int(width))
            return numpy.where(numpy.arange(int(width)) % 2 == 0, numpy.sin(angles), numpy.cos(angles))
        argument = self.sum()
        self.take(")")
        return {"diag": numpy.diag, "gauge": self.gauge, "rope_gauge": self.rope_gauge, "to_queries": self.to_queries,
                "pivot_block": self.pivot_block, "shrunk": self.shrunk, "unshrunk": lambda head: head.whole,
                "pivots": self.pivots, "heads": self.each_head, "pinv": numpy.linalg.pinv}[name](argument)

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


LAYER, RMS = {"kind": "layer", "bias": True}, {"kind": "rms", "offset": 1}
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
    ("shrink_head_pairs", architecture((True, True)), "pivot_block("),
    ("shrink_head_pairs", architecture((True, True), heads=(2, 1), norm=LAYER), "to_queries("),
    ("shrink_head_pairs", architecture((True, True), rope={}), "shrunk("),
    ("collapse_heads{pairs=all}", architecture((True, True)), "heads(blocks.0.attention.query.weight) · heads("),
    ("collapse_heads{pairs=vo}", architecture((True, True), heads=(2, 1), rope={}), "to_queries("),
    ("cache_keys_only{keep=k}", architecture((True, True)), "⁻¹ · blocks.0.attention.value.weight"),
    ("cache_keys_only{keep=v}", architecture((True, True), heads=(3, 3), rope={}), "pinv("),
    ("drop_key_bias,fold_value_bias,merge_skipless{target=q}", architecture((False, False), tied=False), "value.bias"),
]
STRICT_ONLY = ("collapse_heads", "cache_keys_only")  # no layout of dense matrices says what they make


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
        for number, (passes, model, word) in enumerate(CASES):
            (work / "a.json").write_text(json.dumps(model))
            source = work / f"{number}"
            made = pare("init", "a.json", "-o", source.name, "--dtype", "float64", "--generic", "--seed", number, cwd=work)
            report.check(f"init {number}", made.stderr if made.returncode else "")
            for form in ("strict",) if passes.startswith(STRICT_ONLY) else ("strict", "compat"):
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
