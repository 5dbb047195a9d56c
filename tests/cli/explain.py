#!/usr/bin/env python3
"""`pare rewrite --explain`: every tensor that is new, changed, rounded or gone, blocks that are alike said once.

That the formulas are true is another test: tests/conformance/formulas.py.
"""

import json
import os
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import Report, ended, expect, pare


def architecture(skip, tied, norm=None):
    return {
        "width": 16, "vocab": 40, "context": 12, "embedding": {"position": "learned"}, "head": {"tied": tied},
        "blocks": [{"repeat": 32, "attention": {"heads": 2, "head_width": 8, "norm": norm, "bias": {"key": True}},
                    "mlp": {"width": 24, "activation": "gelu", "skip": skip, "norm": norm}}],
    }


MODELS = {"plain": architecture(False, True), "residual": architecture(True, False),
          "normed": architecture(True, True, {"kind": "rms"})}

PLAIN = """\
Every tensor that is new or changed, in terms of the model's own, under pare's
names (docs/formats.md). A row of activations stands before its matrix, [in,
out]; tables and biases are rows:
  blocks.0-31.attention.key.bias = blocks.n.attention.key.bias · Rₙᵀ
  blocks.0-31.attention.key.weight = Θₙ⁻¹ · blocks.n.attention.key.weight · Rₙᵀ
  blocks.0-31.attention.output.weight = blocks.n.attention.output.weight · Θₙ
  blocks.0-31.attention.value.weight = Θₙ⁻¹ · blocks.n.attention.value.weight
  blocks.0-30.mlp.down.weight = blocks.n.mlp.down.weight · Θₙ₊₁
  blocks.0-31.mlp.up.weight = Θₙ⁻¹ · blocks.n.mlp.up.weight
  blocks.31.mlp.down.weight = blocks.31.mlp.down.weight · Θ₀⁻ᵀ
  embed.position.weight = embed.position.weight · Θ₀
  embed.token.weight = embed.token.weight · Θ₀
where
  Rₙ = gauge(blocks.n.attention.query.weight), n = 0-31
  Θₙ = blocks.n.attention.query.weight · Rₙ⁻¹, n = 0-31
  gauge(W): R of the QR decomposition of W's columns, key/value head by
    key/value head
removed
  blocks.0-31.attention.query.weight
"""


# For each pass that makes tensors with functions a model on which it does, so that every function has to be said.
LAYER = {"kind": "layer", "bias": True}
CONSTANT = {"kind": "layer", "epsilon": 1e28}
FUNCTIONS = {
    "gauge_heads": ({}, {"heads": 4, "kv_heads": 2, "head_width": 4, "bias": {"query": True, "value": True}}),
    "gauge_heads,shrink_head_pairs": ({}, {"heads": 4, "kv_heads": 2, "head_width": 4}),
    "collapse_heads{pairs=all}": ({}, {}),
    "shrink_head_pairs": ({}, {}),
    "cache_keys_only{keep=k}": ({}, {"heads": 3}),
    "rotate_residual": ({}, {}),
    "fold_norm_gain,center_layer_norm": ({"final_norm": LAYER}, {"norm": LAYER, "bias": {"query": True, "key": True, "value": True}}),
    "fold_constant_norm": ({}, {"norm": CONSTANT, "qk_norm": CONSTANT}),
    "precompute_first_layer": ({"embedding": {"position": "none"}}, {"norm": {"kind": "rms"}}),
}


def check_functions(report, work):
    for passes, (model, attention) in FUNCTIONS.items():
        block = {"attention": {"heads": 2, "head_width": 8, **attention}, "mlp": {"width": 24, "activation": "silu", "norm": attention.get("norm")}}
        (work / "a.json").write_text(json.dumps({
            "width": 16, "vocab": 40, "context": 12, "embedding": {"position": "learned"}, "head": {"tied": False}, "blocks": [block], **model}))
        pare("init", "a.json", "-o", "a", "--generic", "--dtype", "float64", "--force", cwd=work)
        flags = ["--no-verify", "--force", "--explain", "--allow-growth", "--max-error", "1"]
        for form in ("strict", "compat"):
            result = pare("rewrite", "a", "-o", "other", "--passes", passes, "--form", form, *flags, cwd=work)
            if form == "compat" and result.returncode == 2:
                continue  # a native model has no other layout to keep
            said = result.stdout[result.stdout.find("Every tensor"):]
            used = set(re.findall(r"([a-z_]+)\(", said)) - {"tanh"}
            defined = set(re.findall(r"^  ([a-z_]+)\([^=]*?\): ", said, re.MULTILINE))
            report.check(f"{passes}, {form}: every function is said", ended(result) or expect(used - defined, set()) or ("" if used else "none is used"))


def main():
    report = Report("explain")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)

        def rewritten(name, passes, *flags, **options):
            return pare("rewrite", name, "-o", "out", "--passes", passes, "--no-verify", "--force", *flags, cwd=work, **options)

        for name, model in MODELS.items():
            (work / f"{name}.json").write_text(json.dumps(model))
            report.check(f"init {name}", ended(pare("init", f"{name}.json", "-o", name, "--generic", "--dtype", "float64", cwd=work)))
        silent, said = (rewritten("plain", "eliminate_projection{target=q}", *flags) for flags in ([], ["--explain"]))
        report.check("nothing without the flag", "" if "Θ" not in silent.stdout else silent.stdout)
        report.check("32 blocks in a dozen lines", expect(said.stdout[said.stdout.index("Every tensor"):], PLAIN))
        report.check("80 columns", expect([line for line in PLAIN.splitlines() if len(line) > 80], []))
        narrow = rewritten("plain", "eliminate_projection{target=q}", "--explain", env={**os.environ, "COLUMNS": "50"})
        report.check("50 columns", expect([line for line in narrow.stdout.splitlines() if len(line) > 50], []))

        one = rewritten("residual", "eliminate_projection{layer=5,target=q}", "--explain")
        report.check("one basis for all blocks", ended(one, 0, [
            "  blocks.0-31.mlp.down.weight = blocks.n.mlp.down.weight · Θ₅\n", "  Θ₅ = blocks.5.attention.query.weight · R₅⁻¹\n",
            "  blocks.0-4, 6-31.attention.query.weight = Θ₅⁻¹ ·\n    blocks.n.attention.query.weight\n", "  head.weight = Θ₅⁻¹ · head.weight\n"],
            without=["Θₙ"]))
        compat = rewritten("normed", "fold_norm_gain,drop_key_bias", "--explain", "--form", "compat", "--dtype", "bfloat16")
        report.check("compat, rounded", ended(compat, 0, [
            "  blocks.0-31.attention.norm.weight = 1\n", "  blocks.0-31.attention.key.bias = 0\n",
            "as it was, in bfloat16\n", "  blocks.0-31.attention.output.weight\n", "  embed.token.weight\n"], without=["removed"]))
        report.check("compat, an identity", ended(rewritten("plain", "eliminate_projection{target=q}", "--explain", "--form", "compat"), 0, [
            "  blocks.0-31.attention.query.weight = I\n"]))

        formulas = json.loads(rewritten("plain", "eliminate_projection{target=q}", "--json").stdout)["formulas"]
        stored = json.loads((work / "out" / "certificate.json").read_text())["formulas"]
        report.check("printed and stored", expect(formulas, stored))
        report.check("one block in full", expect(formulas["tensors"]["blocks.10.attention.key.weight"],
                                                 "Θ₁₀⁻¹ · blocks.10.attention.key.weight · R₁₀ᵀ"))
        report.check("its symbol", expect(formulas["symbols"]["Θ₁₀"], "blocks.10.attention.query.weight · R₁₀⁻¹"))

        check_functions(report, work)

        # A certificate of before there were formulas is read as ever.
        path = work / "out" / "certificate.json"
        old = json.loads(path.read_text())
        del old["formulas"]
        path.write_text(json.dumps(old))
        report.check("verify with an old certificate", ended(pare("verify", "plain", "out", cwd=work), 0, ["proved"]))
    report.finish()


if __name__ == "__main__":
    main()
