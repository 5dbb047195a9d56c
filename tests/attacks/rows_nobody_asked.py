#!/usr/bin/env python3
"""A vocabulary larger than the test: the rows of the token table that no drawn sequence reads are something else."""

from attacking import SAME, run  # first: it skips where there is no NumPy
import asked_before
import numpy
from plain import Plain, attention, decoder, drawn, moved

VOCAB = 1500
ROTARY = attention(rope={}, bias={"query": True, "output": True})


def changed_rows(model, rows, change):
    table = model.tensors["embed.token.weight"].copy()
    table[rows] = change(table[rows])
    return model.with_tensors({"embed.token.weight": table})


def redrawn(rows):
    return numpy.random.default_rng(5).standard_normal(rows.shape)


def on_rows(a, b, rows):
    """How far apart the two are on a sequence that asks these rows (at most 20 of them)."""
    ids = list(rows[:20])
    return moved(a(ids), b(ids))


def unasked(context):
    return sorted(set(range(VOCAB)) - set(asked_before.tokens(VOCAB, context)))


def many_rows(report):
    """Most rows were never asked."""
    rows = unasked(300)
    report.check("rows nobody asked", "" if len(rows) == 796 else f"{len(rows)}")
    for what, head in (("untied", {}), ("tied", {"tied": True})):
        reference = drawn(decoder(vocab=VOCAB, context=300, attention=ROTARY, head=head), 1)
        candidate = changed_rows(reference, rows, redrawn)
        report.save(what, reference)
        far = on_rows(reference, candidate, rows)
        report.attack(f"{len(rows)} random rows, {what}", what, report.save(f"{what}-random", candidate), far, strict=True)
        report.control(f"no row changed, {what}", what, report.copy(what, f"{what}-same"))


def single_rows(report):
    """One row of the table, wholly or a little; where it lies may not matter."""
    rows = unasked(300)
    reference = drawn(decoder(vocab=VOCAB, context=300, attention=ROTARY), 2)
    report.save("reference", reference)
    changes = {"redrawn": redrawn, "zeroed": lambda row: 0 * row, "moved by 1 %": lambda row: 1.01 * row + 0.01}
    for where, row in (("first", rows[0]), ("middle", rows[400]), ("last", rows[-1])):
        for what, change in changes.items():
            candidate = changed_rows(reference, [row], change)
            name = report.save(f"{where}-{what}", candidate)
            report.attack(f"the {where} unasked row {what}", "reference", name, on_rows(reference, candidate, [row]),
                          strict=what == "redrawn")

    swapped = [rows[7], rows[600]]
    candidate = changed_rows(reference, swapped, lambda two: two[::-1])
    report.attack("two rows swapped", "reference", report.save("swapped", candidate), on_rows(reference, candidate, swapped))

    table = reference.tensors["embed.token.weight"].copy()
    table[rows[100], 3] += 0.5
    candidate = reference.with_tensors({"embed.token.weight": table})
    report.attack("one element", "reference", report.save("element", candidate), on_rows(reference, candidate, [rows[100]]))

    narrow = reference.stored_as("BF16")
    candidate = changed_rows(reference, [rows[50]], redrawn).stored_as("BF16")
    report.save("bf16", narrow)
    far = on_rows(narrow, candidate, [rows[50]])
    report.attack("one row of a bfloat16 table", "bf16", report.save("bf16-row", candidate), far, strict=True)
    report.attack("one row, rounded to bfloat16", "reference", "bf16-row", far)


def factored(report):
    """The same behind a projection of the embedding (ALBERT)."""
    reference = drawn(decoder(vocab=VOCAB, context=300, attention=ROTARY, embedding={"factor": 8}), 3)
    row = unasked(300)[10]
    candidate = changed_rows(reference, [row], redrawn)
    report.save("reference", reference)
    far = on_rows(reference, candidate, [row])
    report.attack("one row of a factored table", "reference", report.save("row", candidate), far, strict=True)
    report.control("a factored table", "reference", report.copy("reference", "same"))


def in_another_basis(report):
    """A candidate whose whole stream is in another basis, every row of the table with it but one."""
    skips = dict(attention=ROTARY, mlp={"skip": True}, norm=None)
    reference = drawn(decoder(vocab=VOCAB, context=300, **skips), 4)
    report.save("reference", reference)
    basis = numpy.random.default_rng(6).standard_normal((24, 24)) / 5 + numpy.eye(24)

    def in_basis(name, values):
        if name.endswith((".query.weight", ".key.weight", ".value.weight", ".up.weight", "head.weight")):
            return numpy.linalg.solve(basis.T, values.T).T
        if name.endswith((".down.weight", ".output.weight")):
            return basis @ values
        return values @ basis.T if name == "embed.token.weight" else basis @ values if name.endswith("output.bias") else values

    candidate = Plain(reference.architecture, {n: in_basis(n, t) for n, t in reference.tensors.items()})
    ids = list(range(40))
    report.control("another basis", "reference", report.save("basis", candidate), moved(reference(ids), candidate(ids)),
                   verdicts=SAME)
    row = unasked(300)[77]
    strange = changed_rows(candidate, [row], lambda values: values * 1.02)
    far = on_rows(reference, strange, [row])
    report.attack("another basis, one row strange", "reference", report.save("strange", strange), far, strict=True)


if __name__ == "__main__":
    run("rows_nobody_asked", many_rows, single_rows, factored, in_another_basis)
