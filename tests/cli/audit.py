#!/usr/bin/env python3
"""What `pare audit` says can go: the papers' figures, every pass with its reasons, net savings, errors and conditions."""

import json
import pathlib
import shutil
import struct
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "error")]
from files import read_tensors, write_tensors
from report import Report, expect, pare

FIELDS = ["id", "options", "applies", "reasons", "saved_parameters", "saved_bytes", "predicted_error"]
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
WIDTH, VOCAB = 8, 40
RESIDUAL = {  # one stream from the tied table to the tied head: to change its basis, the head must be untied
    "width": WIDTH, "vocab": VOCAB, "context": 12, "head": {"tied": True},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 4, "bias": {"key": True}},
                "mlp": {"width": 12, "activation": "gelu"}}],
}
# One square matrix, too large to measure in passing.
LARGE = {"width": 3200, "vocab": 8, "context": 4, "blocks": [
    {"attention": {"heads": 50, "kv_heads": 1, "head_width": 64, "skip": False}, "mlp": {"width": 8, "activation": "gelu", "skip": False}}]}


def ended(result, code=0, words=()):
    if result.returncode != code:
        return f"exit code {result.returncode}, expected {code}: {result.stderr.strip()[-400:]}"
    said = " ".join((result.stdout + result.stderr).split())  # lines are broken anywhere
    missing = [word for word in words if word not in said]
    return f"no {missing} in: {(result.stdout + result.stderr)[-1500:]}" if missing else ""


def document(*arguments, **options):
    result = pare("audit", *arguments, "--json", **options)
    return json.loads(result.stdout) if result.returncode == 0 else {}


def entry(audit, name):
    return next(passes for passes in audit["passes"] if passes["id"] == name)


def line_of(text, start):
    return next((line.split() for line in text.splitlines() if line.startswith(start)), [])


def check_papers(report):
    """Paper 1's tables are counts of architectures; what a rewrite can do is another number, and both are shown."""
    square = 4096 * 4096
    for preset, matrices, pairs, figures in (
        # Parallel: one of Q and P a layer, and the last P. 31 layers keep values and outputs, whose heads shrink.
        ("skipless-pythia-6.9b", 33, 31, ["6.9B", "5.8B", "16%", "1.19x"]),
        ("skipless-mistral-7b", 64, 0, ["7.2B", "6.2B", "15%", "1.17x"]),
    ):
        text, audit = pare("audit", preset).stdout, document(preset)
        rows = ["Total weights", "Total w/o Q+P", "Weight savings", "Possible speedup"]
        report.check(f"{preset}: the paper's table", expect([line_of(text, row)[-1:] for row in rows], [[f] for f in figures]))
        merged = entry(audit, "merge_skipless")
        report.check(f"{preset}: what a rewrite saves", expect([merged["saved_parameters"], audit["removable"]],
                                                               [matrices * square, matrices * square + pairs * 32 * 128 * 128]))
        report.check(f"{preset}: bytes", expect(merged["saved_bytes"], 4 * matrices * square))
        speed = audit["parameters"] / (audit["parameters"] - matrices * square)
        report.check(f"{preset}: decoding", expect(line_of(text, "merge_skipless")[-1], f"{speed:.2f}x"))
        training = "an architecture to train" in " ".join(text.split()) and any("to train, not a rewrite" in n for n in merged["notes"])
        report.check(f"{preset}: whether it is for training", expect(training, "pythia" in preset))


def check_presets(report):
    known = [passes["id"] for passes in json.loads(pare("passes", "--json").stdout)["passes"]]
    report.check("there are passes", "" if len(known) >= 5 else f"{known}")
    for preset in sorted(path.stem for path in (ROOT / "presets").glob("*.json")):
        audit = document(preset)
        head_width = json.loads((ROOT / "presets" / f"{preset}.json").read_text())["blocks"][0]["attention"]["head_width"]
        wrong = expect([passes["id"] for passes in audit.get("passes", [])], known)
        for passes in audit.get("passes", []) if not wrong else []:
            missing = [field for field in FIELDS if field not in passes]
            silent = not passes["applies"] and not passes["reasons"]
            odd = not passes["applies"] and passes["saved_parameters"] != 0
            # A head's identity block has one int32 for each of its rows.
            pivots = passes["saved_parameters"] // head_width if passes["id"] == "shrink_head_pairs" else 0
            size = passes["saved_bytes"] != 4 * (passes["saved_parameters"] - pivots)
            if missing or silent or odd or size:
                wrong = f"{passes['id']}: missing {missing}, silent {silent}, odd {odd}, size {size}"
        alone = [passes["saved_parameters"] for passes in audit["passes"]]
        wrong = wrong or ("" if audit["removable"] >= max(0, *alone) else f"removable {audit['removable']}, alone {alone}")
        report.check(f"audit {preset}", wrong or expect(audit["measured"], False))


def check_growth(report, work):
    text, audit = pare("audit", "residual.json", cwd=work), document("residual.json", cwd=work)
    lost = WIDTH * WIDTH - VOCAB * WIDTH
    report.check("growth is counted", expect(entry(audit, "eliminate_projection")["saved_parameters"], lost))
    report.check("and shown", ended(text, 0, ["the head must be untied", "320 parameters more"])
                 or expect(line_of(text.stdout, "eliminate_projection")[1:4], [f"{lost}", "-1", "KB"]))
    keys = entry(audit, "drop_key_bias")["saved_parameters"]
    pairs = entry(audit, "shrink_head_pairs")["saved_parameters"]
    report.check("but not taken", expect([audit["removable"] - pairs, keys], [2 * WIDTH, 2 * WIDTH]))


def check_measured(report, work):
    """A query that is a diagonal matrix: its condition number is known, and scaling its columns is a gauge that mends it."""
    shutil.copytree(work / "residual", work / "diagonal")
    path = work / "diagonal" / "model.safetensors"
    tensors = read_tensors(path)
    values = [float(row + 1) * (row == column) for row in range(WIDTH) for column in range(WIDTH)]
    tensors["blocks.1.attention.query.weight"] = ("F32", [WIDTH, WIDTH], struct.pack(f"<{len(values)}f", *values))
    write_tensors(path, tensors)
    audit = document("diagonal", cwd=work)
    passes = entry(audit, "eliminate_projection")
    found = {c["matrix"]: c for c in passes["condition_numbers"]}
    query = found.get("blocks.1.attention.query", {"stored": 0, "gauged": 0, "chosen": False})
    near = abs(query["stored"] - WIDTH) < 1e-9 and abs(query["gauged"] - 1) < 1e-9
    report.check("condition numbers", "" if near and len(found) == 6 else f"{passes['condition_numbers']}")
    report.check("the best is chosen", expect([m for m, c in found.items() if c["chosen"]], ["blocks.1.attention.query"]))
    report.check("it was measured", expect([audit["measured"], audit["dtype"]], [True, "float32"]))
    errors = passes["predicted_error_by_dtype"]
    sums = {dtype: errors[dtype] / roundoff for dtype, roundoff in ROUNDOFF.items()}
    report.check("errors by type", "" if len(set(sums.values())) == 1 and sums["float64"] >= 1 else f"{errors}")
    report.check("the stored type's error", expect(passes["predicted_error"], errors["float32"]))
    text = pare("audit", "diagonal", cwd=work)
    report.check("conditions in the text", ended(text, 0, ["8 -> 1 *", "predicted relative error"]))
    always = pare("audit", "diagonal", "--conditions", cwd=work)
    report.check("--conditions measures as well, also what saves nothing", ended(always, 0, ["8 -> 1 *"]) or expect(
        [said.stdout.count("\ncache_keys_only ") for said in (text, always)], [1, 2]))
    preset = pare("audit", "gpt2", "--conditions")
    report.check("--conditions without weights", ended(preset) or expect("->" in preset.stdout, False))
    text = pare("audit", "large", cwd=work)
    report.check("large matrices wait to be asked", ended(text, 0, ["--conditions measures them"]))


def main():
    report = Report("audit")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name, architecture, dtype in (("residual", RESIDUAL, "float32"), ("large", LARGE, "bfloat16")):
            (work / f"{name}.json").write_text(json.dumps(architecture))
            report.check(f"init {name}", ended(pare("init", f"{name}.json", "-o", name, "--generic", "--dtype", dtype, cwd=work)))
        check_papers(report)
        check_presets(report)
        check_growth(report, work)
        check_measured(report, work)
    report.finish()


if __name__ == "__main__":
    main()
