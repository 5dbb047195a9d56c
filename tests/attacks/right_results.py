#!/usr/bin/env python3
"""What is right must be accepted: models beside themselves in every type, and outputs that say little."""

import json

from attacking import NARROW, pare, run  # first: it skips where there is no NumPy
import numpy
from plain import attention, decoder, drawn, moved, with_neurons_in_another_order
from report import SHARED
from safetensors.numpy import load_file

TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
IDS = list(range(5, 45))


def computed_alike(report):
    """That NumPy here and pare compute the same: every attack and control rests on it."""
    learned = {"position": "learned", "types": 2}
    cases = {
        "rms, rope, groups": decoder(attention=attention(heads=4, kv_heads=2, head_width=6, rope={}), mlp={"gated": True}),
        "layer norm, learned, full": decoder(task="masked_lm", norm="layer", attention=attention(mask="full"), embedding=learned),
        "sines, window, tied": decoder(attention=attention(window=5), embedding={"position": "sinusoidal"}, head={"tied": True}),
        "factor, relu, biases": decoder(attention=attention(bias={"query": True, "key": True, "value": True, "output": True}),
                                        mlp={"activation": "relu", "bias": {"up": True, "down": True}}, embedding={"factor": 8}),
        "pooled": decoder(task="classifier", attention=attention(rope={}, mask="full"),
                          head={"classes": 3, "bias": True, "transform": {"activation": "tanh"}}),
        "dynamic": decoder(attention=attention(rope={"scaling": {"kind": "dynamic", "factor": 4.0, "original_context": 20}})),
        "shared": decoder(layers=1, mlp={"activation": "gelu_tanh"}) | {"layers": [0, 0, 0]},
    }
    (report.work / "ids.json").write_text(json.dumps([IDS]))
    for number, (case, architecture) in enumerate(cases.items()):
        model = drawn(architecture, number)
        result = pare("run", report.save(f"{number}", model), "-o", "out", "--tokens", "ids.json", "--force", cwd=report.work)
        if result.returncode:
            report.check(f"computed alike: {case}", result.stderr)
            continue
        far = moved(model(IDS), load_file(report.work / "out")["logits.0"].reshape(model(IDS).shape))
        report.check(f"computed alike: {case}", "" if far < 1e-10 else f"{far:.1e} apart")


def architectures():
    return sorted((SHARED / "architectures").glob("*.json"))


def against_itself(report):
    """Small architectures of every kind, stored and computed in narrow types."""
    if not architectures():
        report.skip("models beside themselves", f"no architectures in {SHARED}")
    for path in architectures():
        for name, flags, dtypes in (("whole", [], ["bfloat16", "float16"]), ("generic", ["--generic"], ["bfloat16"])):
            folder = f"{path.stem}-{name}"
            made = pare("init", path, "-o", folder, *flags, "--seed", "3", cwd=report.work)
            report.check(f"init {folder}", made.stderr if made.returncode else "")
            report.copy(folder, f"{folder}-copy")
            for dtype in dtypes:
                report.control(f"{folder} in {dtype}", folder, f"{folder}-copy", flags=["--dtype", dtype], verdicts=NARROW)


def stored_narrow(report):
    """The same stored so: beside itself it is identical, beside the exact one within the noise of its type."""
    for number, options in enumerate((
            {"attention": attention(rope={})}, {"norm": "layer", "embedding": {"position": "learned"}},
            {"norm": None, "final": False, "attention": attention(rope={})},
            {"task": "classifier", "attention": attention(rope={}, mask="full"), "head": {"classes": 3}})):
        exact = drawn(decoder(**options), number)
        report.save(f"{number}", exact)
        for dtype, letters in TYPES.items():
            name = report.save(f"{number}-{dtype}", exact.stored_as(letters))
            report.control(f"model {number} rounded to {dtype}", f"{number}", name, verdicts=NARROW)
        report.control(f"model {number} in {dtype} beside itself", name, report.copy(name, f"{name}-same"))


def outputs_that_say_little(report):
    """One class, constant outputs, a last block that does nothing, a common offset: the same is the same."""
    def both(case, model, dtypes=("float32", "bfloat16")):
        """Beside itself, beside what rounds otherwise, and in narrow types that can still tell its outputs apart."""
        name = report.save(case.replace(" ", "-"), model)
        report.control(case, name, report.copy(name, f"{name}-copy"))
        ordered = with_neurons_in_another_order(model)
        far = moved(model(IDS), ordered(IDS))
        report.control(f"{case}, neurons in another order", name, report.save(f"{name}-ordered", ordered), far)
        for dtype in dtypes:
            report.control(f"{case}, in {dtype}", name, f"{name}-copy", flags=["--dtype", dtype], verdicts=NARROW)

    rotary, full = attention(rope={}), attention(rope={}, mask="full")
    both("one class", drawn(decoder(task="classifier", attention=full, head={"classes": 1, "bias": True}), 1))
    both("one class for each token", drawn(decoder(task="token_classifier", attention=full, head={"classes": 1}), 2))
    language = drawn(decoder(attention=rotary), 3)
    both("a zero head", language.with_tensors({"head.weight": numpy.zeros((97, 24))}))
    biased = drawn(decoder(attention=rotary, head={"bias": True}), 4)
    both("a head that is only its bias", biased.with_tensors({"head.weight": numpy.zeros((97, 24))}))
    zeros = {name: 0 * values for name, values in language.tensors.items() if name.startswith("blocks.1.")}
    both("a zero last block", language.with_tensors(zeros))
    both("zero blocks", language.with_tensors({n: 0 * v for n, v in language.tensors.items() if n.startswith("blocks.")}))
    for size, dtypes in ((1e5, ["float32"]), (1e8, [])):
        both(f"a common offset of {size:.0e}", biased.with_tensors({"head.bias": biased.tensors["head.bias"] + size}), dtypes)


def what_nothing_reads(report):
    """Rows of a table that no input reaches may be anything: OPT keeps two before the first position."""
    model = drawn(decoder(embedding={"position": "learned", "position_offset": 2}), 1)
    table = model.tensors["embed.position.weight"].copy()
    table[:2] = 7
    other = model.with_tensors({"embed.position.weight": table})
    report.save("model", model)
    report.control("rows before the first position", "model", report.save("other", other), moved(model(IDS), other(IDS)))


if __name__ == "__main__":
    run("right_results", computed_alike, against_itself, stored_narrow, outputs_that_say_little,
        what_nothing_reads)
