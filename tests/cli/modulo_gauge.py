#!/usr/bin/env python3
"""`pare verify --modulo-gauge`: what is told of two checkpoints that differ by an order of neurons, and of two others."""

import json
import pathlib
import random
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "error"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from report import Report, pare
from verify import ARCHITECTURE, changed, ended


def shuffled(stored):
    order = list(range(20))
    random.Random(3).shuffle(order)
    for n in range(2):
        up, down = stored[f"blocks.{n}.mlp.up.weight"][1], stored[f"blocks.{n}.mlp.down.weight"][1]
        stored[f"blocks.{n}.mlp.up.weight"][1] = [x for i in order for x in up[12 * i:12 * i + 12]]
        stored[f"blocks.{n}.mlp.down.weight"][1] = [down[20 * row + i] for row in range(12) for i in order]


def main():
    report = Report("modulo_gauge")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "architecture.json").write_text(json.dumps(ARCHITECTURE))
        for name, seed in (("model", "1"), ("stranger", "2")):
            made = pare("init", "architecture.json", "-o", name, "--seed", seed, cwd=work)
            report.check(f"init {name}", ended(made, 0))
        changed(work, "shuffled", shuffled)
        text = pare("verify", "model", "shuffled", "--modulo-gauge", cwd=work)
        report.check("neurons in another order are proved", ended(text, 0, ["proved", "neuron order", "aligned"]))
        wide = [line for line in text.stdout.splitlines() if len(line) > 80]
        report.check("80 columns", f"too wide: {wide}" if wide else "")
        document = json.loads(pare("verify", "model", "shuffled", "--modulo-gauge", "--json", cwd=work).stdout)["alignment"]
        fine = document["before"] > 0.1 and document["after"] < 1e-6
        report.check("nothing is left", "" if fine else json.dumps(document))
        other = pare("verify", "model", "stranger", "--modulo-gauge", cwd=work)
        report.check("a stranger stays one", ended(other, 3, ["different", "aligned"]))
        # Heads in the right order are further apart, number by number, until their gauges are found too: seed 2 has that.
        (work / "heads.json").write_text(json.dumps({
            "width": 12, "vocab": 40, "context": 12, "embedding": {"position": "learned"}, "head": {"tied": True},
            "blocks": [{"attention": {"heads": 3, "head_width": 4}, "mlp": {"width": 20, "activation": "gelu"}}]}))
        pare("init", "heads.json", "-o", "heads", "--seed", "2", "--dtype", "float64", cwd=work)
        pare("rewrite", "heads", "-o", "gauged", "--passes", "gauge_heads", "--no-verify", cwd=work)
        steps = json.loads(pare("verify", "heads", "gauged", "--modulo-gauge", "--json", cwd=work).stdout)["alignment"]["steps"]
        together = {step["symmetry"]: step["explained"] for step in steps}
        fine = min(together.values()) > -1e-9 and together.get("head order and gauge", 0) > 0.99
        report.check("no symmetry explains less than nothing", "" if fine else f"{together}")
        text = pare("verify", "heads", "gauged", "--modulo-gauge", cwd=work)
        report.check("what the numbers are of", ended(text, 0, ["of the squared difference", "gains folded"]))
        # Biases stand in two places: GPT-2's after passes that move them are the same model in another gauge.
        bias, norm = dict.fromkeys(("query", "key", "value", "output"), True), {"kind": "layer", "bias": True}
        (work / "biased.json").write_text(json.dumps({
            "width": 12, "vocab": 40, "context": 12, "embedding": {"position": "learned"}, "head": {"tied": True}, "final_norm": norm,
            "blocks": [{"repeat": 2, "attention": {"heads": 3, "head_width": 4, "bias": bias, "norm": norm},
                        "mlp": {"width": 20, "activation": "gelu", "bias": {"up": True, "down": True}, "norm": norm}}]}))
        pare("init", "biased.json", "-o", "biased", "--generic", "--dtype", "float64", cwd=work)
        made = pare("rewrite", "biased", "-o", "moved", "--passes", "auto", "--form", "compat", cwd=work)
        report.check("biases moved, heads in another gauge", ended(made, 0, ["proved", "drop_key_bias", "fold_value_bias"]))
        document = json.loads(pare("verify", "biased", "moved", "--modulo-gauge", "--json", cwd=work).stdout)["alignment"]
        fine = document["before"] > 0.1 and document["after"] < 1e-6
        report.check("nothing is left of them either", "" if fine else json.dumps(document))
        plain = pare("verify", "model", "shuffled", "--json", cwd=work)
        report.check("nothing is said unasked", "alignment" in json.loads(plain.stdout) and "it is" or "")
    report.finish()


if __name__ == "__main__":
    main()
