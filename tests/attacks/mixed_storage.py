#!/usr/bin/env python3
"""Blocks stored in float32 beside large tables in bfloat16: the noise of the one is no excuse for the other."""

from attacking import NARROW, run  # first: it skips where there is no NumPy
import numpy
from plain import attention, decoder, drawn, moved, with_neurons_in_another_order

IDS = list(range(5, 45))
BIASES = {"query": True, "value": True, "output": True}


def disturbed(model, prefix, fraction):
    """Every element of what begins so moved by this fraction, up or down."""
    generator = numpy.random.default_rng(9)
    return model.with_tensors({
        name: values * (1 + fraction * generator.choice([-1, 1], values.shape))
        for name, values in model.tensors.items() if name.startswith(prefix)})


def attack(report, case, folder, reference, candidate):
    report.attack(case, folder, report.save(f"{folder}-{case.replace(' ', '-')}", candidate),
                  moved(reference(IDS), candidate(IDS)))


def mixed(report):
    """The majority of all bytes is the table's, so its type was taken for the noise of everything."""
    exact = drawn(decoder(vocab=1500, attention=attention(rope={}, bias=BIASES)), 1)
    report.save("exact", exact)
    for wide, narrow, fraction in (("F32", "BF16", 5e-3), ("F32", "F16", 1e-3), ("F64", "F32", 1e-7), ("F64", "BF16", 5e-3)):
        case = f"{wide} under {narrow}"
        folder = case.replace(" ", "-")
        reference = exact.stored_as(narrow, **{"blocks.": wide, "norm.": wide})
        report.save(folder, reference)
        candidate = disturbed(reference, "blocks.", fraction)
        # Both tables are the same numbers, so nothing is rounded but float64: a ten-thousandth of the move is too much.
        report.attack(f"{case}, moved by {fraction}", folder, report.save(f"{folder}-moved", candidate),
                      moved(reference(IDS), candidate(IDS)), least=fraction)
        report.control(f"{case}, rounded", "exact", report.save(f"{folder}-again", reference), verdicts=NARROW)
        ordered = with_neurons_in_another_order(reference)
        report.control(f"{case}, neurons in another order", folder, report.save(f"{folder}-ordered", ordered),
                       moved(reference(IDS), ordered(IDS)))


def parts(report):
    """Only some of the blocks, only norms and biases, or the other way round: tables in float32 over narrow blocks."""
    exact = drawn(decoder(vocab=1500, attention=attention(rope={}, bias=BIASES)), 2)
    one = exact.stored_as("BF16", **{"blocks.1.mlp": "F32"})
    report.save("one", one)
    attack(report, "one mlp", "one", one, disturbed(one, "blocks.1.mlp", 5e-3))
    head = exact.stored_as("BF16", **{"head.": "F32"})
    report.save("head", head)
    attack(report, "the head", "head", head, disturbed(head, "head.", 5e-3))
    tables = exact.stored_as("BF16", **{"embed.": "F32"})
    report.save("tables", tables)
    attack(report, "the table", "tables", tables, disturbed(tables, "embed.", 5e-3))
    report.control("a table in float32", "tables", report.save("same", with_neurons_in_another_order(tables)))

    # One tensor in bfloat16 that is nothing but powers of two, and so costs nothing: all else is float32.
    powers = exact.with_tensors({"norm.weight": numpy.ones(24)}).stored_as("F32", **{"norm.": "BF16"})
    report.save("powers", powers)
    attack(report, "one narrow gain", "powers", powers, disturbed(powers, "blocks.", 1e-3))


if __name__ == "__main__":
    run("mixed_storage", mixed, parts)
