#!/usr/bin/env python3
"""Rewrites that only round must be accepted: by hand, of models that make much of a rounding, and by every pass."""

import collections
import json

from attacking import NARROW, NEAR, SAME, pare, run  # first: it skips where there is no NumPy
import numpy
from plain import attention, decoder, drawn, moved, with_neurons_in_another_order
from report import SHARED

DTYPES = ["float64", "float32", "float16", "bfloat16"]
PASSES = ["fold_norm_gain", "drop_key_bias", "fold_value_bias", "eliminate_projection", "merge_skipless",
          "shrink_head_pairs"]  # that auto takes in these
IDS = list(range(5, 45))


def gauged(model, seed, condition=None, pair=("value", "output")):
    """Every head's value and output (or query and key) in another basis, of this condition: the same function, rounded anew
    in every type."""
    a = model.architecture["blocks"][0]["attention"]
    generator, changed = numpy.random.default_rng(seed), {}
    for name, values in model.tensors.items():
        if not name.endswith(f"attention.{pair[0]}.weight"):
            continue
        second = name.replace(*pair)
        output = model.tensors[second] if pair[1] == "output" else model.tensors[second].T
        value, other = values.copy(), output.copy()
        for head in range(a["heads"]):
            part = slice(head * a["head_width"], (head + 1) * a["head_width"])
            basis = generator.standard_normal((a["head_width"],) * 2)
            if condition:
                left, _, right = numpy.linalg.svd(basis)
                basis = left * numpy.repeat([1, 1 / condition], a["head_width"] // 2) @ right
            value[part], other[:, part] = basis @ values[part], numpy.linalg.solve(basis.T, output[:, part].T).T
        changed |= {name: value, second: other if pair[1] == "output" else other.T}
    return model.with_tensors(changed)


def in_another_gauge(report):
    for seed in range(2):
        model = drawn(decoder(attention=attention(rope={})), seed)
        other = gauged(model, seed)
        report.save(f"{seed}", model)
        report.control(f"heads in another basis, seed {seed}", f"{seed}", report.save(f"{seed}-gauged", other),
                       moved(model(IDS), other(IDS)))


def in_a_bad_gauge(report):
    """What a badly conditioned gauge makes of a rounding of float64, its proof has to forgive."""
    for seed in range(2):
        model = drawn(decoder(layers=6, attention=attention(rope={})), seed)
        other = gauged(model, seed, 1e4)
        report.save(f"{seed}", model)
        report.control(f"heads in a basis of condition 10^4, seed {seed}", f"{seed}", report.save(f"{seed}-gauged", other),
                       moved(model(IDS), other(IDS)), verdicts=("proved",))


def shared_block(report):
    """One block run six times makes thousands of roundings of one: the noise of float64 itself has to be measured."""
    architecture = decoder(layers=1, norm=None, mlp={"activation": "gelu_tanh", "width": 96, "skip": False},
                           embedding={"position": "learned"}) | {"layers": [0] * 6}
    amplified = []
    for growth in (1.2, 1.35):
        for seed in range(2):
            model = drawn(architecture, seed)
            model = model.with_tensors({n: growth * v for n, v in model.tensors.items() if n.startswith("blocks.")})
            signs = numpy.random.default_rng(seed)
            rounding = model.with_tensors({n: v + numpy.spacing(v) * signs.integers(-1, 2, v.shape)
                                           for n, v in model.tensors.items()})
            noise = moved(model(IDS), rounding(IDS))
            amplified.append(noise / 1.1e-16)
            other = with_neurons_in_another_order(gauged(model, seed))
            case = f"a shared block, weights x {growth}, seed {seed}"
            name = report.save(f"{growth}-{seed}", model)
            report.control(case, name, report.save(f"{name}-other", other), moved(model(IDS), other(IDS)),
                           most=max(NEAR, 100 * noise))
    report.check("it does make much of a rounding", "" if max(amplified) > 1e3 else f"only {max(amplified):.0f} times")


def rewrites(report):
    """What rewrite accepts verify accepts, for all passes that save and all types, whatever a certificate says."""
    architectures = sorted((SHARED / "architectures").glob("*.json"))
    if not architectures:
        report.skip("rewrites", f"no architectures in {SHARED}")
        return
    accepted = collections.Counter(dict.fromkeys(PASSES, 0))
    for path in architectures:
        folder = path.stem
        made = pare("init", path, "-o", folder, "--generic", "--seed", "5", cwd=report.work)
        report.check(f"init {folder}", made.stderr if made.returncode else "")
        for dtype in DTYPES:
            out = f"{folder}-{dtype}"
            result = pare("rewrite", folder, "-o", out, "--passes", "auto", "--dtype", dtype, "--quiet", cwd=report.work)
            if result.returncode:
                continue
            certificate = report.work / out / "certificate.json"
            for done in json.loads(certificate.read_text())["passes"]:
                accepted[done["id"]] += 1
            certificate.unlink()
            verdicts = SAME if dtype == "float64" else NARROW
            report.control(f"{folder} rewritten in {dtype}", folder, out, verdicts=verdicts)
    print("rewrites accepted, by pass:", accepted)
    never = [name for name, count in accepted.items() if not count]
    report.check("every pass took part", f"{never} never applied" if never else "")


if __name__ == "__main__":
    run("right_rewrites", in_another_gauge, in_a_bad_gauge, shared_block, rewrites)
