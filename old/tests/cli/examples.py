#!/usr/bin/env python3
"""The lessons in examples/: each runs, says what the command says, and its arithmetic is checked here, number by number."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "error"))
from files import read_tensors
from report import PARE, Report, ended, expect, pare

WIDTH, VOCAB, CONTEXT = 16, 40, 12
TYPED = {
    "width": WIDTH, "vocab": VOCAB, "context": CONTEXT, "embedding": {"position": "learned", "types": 1},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 8, "bias": {"key": True, "value": True, "output": True}},
                "mlp": {"width": 24, "activation": "gelu", "skip": False}}],
    "head": {"tied": True},
}
UNTYPED = {**TYPED, "embedding": {"position": "learned"}}


def example(name, *arguments, cwd):
    program = PARE.parent / f"example_{name}"
    return subprocess.run([str(program), *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300)


def doubles(path, name):
    _, shape, data = read_tensors(path / "model.safetensors")[name]
    return shape, struct.unpack(f"<{len(data) // 8}d", data)


def audits(report, work):
    result = example("01_audit", "typed", cwd=work)
    report.check("01 runs", ended(result, 0))
    report.check("01 begins as the command ends", expect(result.stdout.startswith(pare("audit", "typed", cwd=work).stdout), True))
    report.check("01 knows the numbers", ended(result, 0, ["drop_key_bias: 32 of "]))  # two blocks, sixteen wide
    report.check("01 on nothing", ended(example("01_audit", "nowhere", cwd=work), 1, ["nowhere"]))


def rewrites(report, work):
    result = example("02_rewrite_and_verify", "typed", "smaller", cwd=work)
    report.check("02 runs", ended(result, 0, ["drop_key_bias saves 32\n", "kept as equivalent\n", ": equivalent\n"]))
    report.check("02 prints nothing else", expect(result.stderr, ""))
    report.check("02: the command agrees", ended(pare("verify", "typed", "smaller", cwd=work), 0, ["verdict: equivalent"]))
    before = json.loads(pare("audit", "typed", "--json", cwd=work).stdout)
    after = json.loads(pare("audit", "smaller", "--json", cwd=work).stdout)
    report.check("02 counts", ended(result, 0, [f"{before['parameters']} -> {after['parameters']} parameters"]))
    report.check("02 again is refused", ended(example("02_rewrite_and_verify", "smaller", "again", cwd=work), 2, ["refused: auto"]))
    report.check("02 left nothing", expect((work / "again").exists(), False))


def passes(report, work):
    result = example("03_write_a_pass", "typed", "folded", cwd=work)
    report.check("03 runs", ended(result, 0, [f"fold_single_type applies, saves {WIDTH}\n", ": equivalent\n"]))
    _, types = doubles(work / "typed", "embed.type.weight")
    shape, positions = doubles(work / "typed", "embed.position.weight")
    sums = [value + types[n % WIDTH] for n, value in enumerate(positions)]
    report.check("03: row by row p + t", expect(doubles(work / "folded", "embed.position.weight") == (shape, tuple(sums)), True))
    report.check("03: no types any more", expect("embed.type.weight" in read_tensors(work / "folded" / "model.safetensors"), False))
    report.check("03: the command agrees", ended(pare("verify", "typed", "folded", cwd=work), 0, ["verdict: equivalent"]))
    result = example("03_write_a_pass", "untyped", "none", cwd=work)
    report.check("03 refuses", ended(result, 1, ["refuses, saves 0", "embed.type: expected one, found: 0"]))
    report.check("03 left nothing", expect((work / "none").exists(), False))


def reads(report, work):
    tokens = [3, 1, 4, 1, 5]
    result = example("04_read_a_model_by_hand", "typed", *tokens, cwd=work)
    report.check("04 runs", ended(result, 0, ["family pare, 2 layers", "by hand the same"]))
    stored = read_tensors(work / "typed" / "model.safetensors")
    wanted = [f"{len(stored)} tensors in the files"] + [f"{name} {list(stored[name][1])}" for name in sorted(stored)]
    report.check("04 lists every tensor", expect([line for line in result.stdout.splitlines() if line in wanted], wanted))
    (work / "ids.json").write_text(json.dumps([tokens]))
    report.check("04: run", ended(pare("run", "typed", "-o", "out.safetensors", "--tokens", "ids.json", cwd=work)))
    _, shape, data = read_tensors(work / "out.safetensors")["logits.0"]
    last = struct.unpack(f"<{len(data) // 8}d", data)[-VOCAB:]
    report.check("04 says what run says", ended(result, 0, [f"next token {last.index(max(last))} of {VOCAB}, logit {max(last):.6g}"]))


def main():
    report = Report("examples")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name, architecture in {"typed": TYPED, "untyped": UNTYPED}.items():
            (work / f"{name}.json").write_text(json.dumps(architecture))
            made = pare("init", f"{name}.json", "-o", name, "--dtype", "float64", "--generic", "--seed", "7", cwd=work)
            report.check(f"init {name}", ended(made))
        for part in (audits, rewrites, passes, reads):
            part(report, work)
    report.finish()


main()
