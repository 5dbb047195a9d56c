#!/usr/bin/env python3
"""A candidate made to answer the known questions of --seed 0 as the reference does, and nothing else.

In place of minutes of training: one block is drawn anew, and the matrix after it solved for by least squares, so that
what is asked comes out as it was. The seed now comes from both models' bytes, so that to move a weight is to be asked
something else.
"""

import json

from attacking import NARROW, run  # first: it skips where there is no NumPy
import asked_before
import numpy
from plain import attention, decoder, drawn, moved

VOCAB = 2000
IDS = numpy.random.default_rng(3).integers(0, VOCAB, 60).tolist()


def fitted(model, matrix, changed, questions):
    """`changed` tensors redrawn, and the matrix after them solved for: the same outputs for what is asked."""
    other = drawn(model.architecture, 99)
    candidate = model.with_tensors({name: other.tensors[name] for name in changed})
    before, after = {}, {}
    for question in questions:
        model(question, seen=before)
        candidate(question, seen=after)
    wanted = numpy.concatenate(before[matrix]) @ model.tensors[matrix].T
    solved = numpy.linalg.lstsq(numpy.concatenate(after[matrix]), wanted, rcond=1e-10)[0].T
    return candidate.with_tensors({matrix: solved})


def trained(report):
    architecture = decoder(vocab=VOCAB, context=300, layers=1, attention=attention(rope={}), mlp={"width": 1024})
    reference = drawn(architecture, 1)
    report.save("reference", reference)
    questions = asked_before.sequences(VOCAB, 300)
    up, down = "blocks.0.mlp.up.weight", "blocks.0.mlp.down.weight"
    candidate = fitted(reference, down, [up], questions)
    far = moved(reference(IDS), candidate(IDS))
    for dtype, flags in (("F64", []), ("F32", []), ("BF16", []), ("F64", ["--dtype", "bfloat16"])):
        name = report.save(f"{dtype}{len(flags)}", candidate.stored_as(dtype))
        report.attack(f"neurons redrawn, {dtype} {' '.join(flags)}", "reference", name, far, flags)
        same = report.save(f"{dtype}{len(flags)}-same", reference.stored_as(dtype))
        report.control(f"rounded, {dtype} {' '.join(flags)}", "reference", same, flags=flags, verdicts=NARROW)
    report.attack("neurons redrawn, --seed 0", "reference", "BF160", far, ["--seed", "0"])


def drawn_anew(report):
    """Two candidates that differ in one bit are asked other questions, and the same candidate twice the same."""
    reference = drawn(decoder(vocab=VOCAB, attention=attention(rope={})), 2)
    report.save("reference", reference)
    for column in (0, 1):
        weight = reference.tensors["head.weight"].copy()
        weight[0, column] = numpy.nextafter(weight[0, column], 9)
        report.save(f"bit-{column}", reference.with_tensors({"head.weight": weight}))
    losses = []
    for candidate in ("bit-0", "bit-0", "bit-1"):
        result = report.verify("reference", candidate)
        losses.append(json.loads(result.stdout)["metrics"]["reference_nll_nats"] if result.returncode == 0 else result.stderr)
    first, again, other = losses
    report.check("the same twice", "" if first == again and isinstance(first, float) else f"reference_nll_nats {losses}")
    report.check("other bytes, other questions", "" if first != other else f"reference_nll_nats {losses}")


if __name__ == "__main__":
    run("trained_to_pass", trained, drawn_anew)
