#!/usr/bin/env python3
"""One row of the reference that narrow types cannot compute: its noise is no reason to accept noise elsewhere."""

from attacking import NARROW, run  # first: it skips where there is no NumPy
from plain import attention, decoder, drawn, keeping, moved
from plain import with_last_block, with_neurons_in_another_order, with_other_blocks

IDS = list(range(5, 45))
BAD = 50  # not among them: the attack shows on rows that every type computes well
NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def badly_conditioned(size, seed):
    """Two entries of the stream that only one token has, and that the head subtracts from each other at a huge scale.

    They cancel in float64. Rounded they do not, so that the logits of this one token are noise of that size. They come
    through the last block: who disturbs that sees more than the noise.
    """
    model = keeping(drawn(with_last_block(decoder(vocab=60, attention=attention(rope={}))), seed), 2)
    tokens, head = model.tensors["embed.token.weight"].copy(), model.tensors["head.weight"].copy()
    tokens[:, :2] = 0
    tokens[BAD, :2] = [3.3, 1.1]
    head[:, 0] *= size
    head[:, 1] = -3 * head[:, 0]
    return model.with_tensors({"embed.token.weight": tokens, "head.weight": head})


def with_others(model, prefix):
    return keeping(with_other_blocks(model, prefix), 2)


def lifted(report):
    for dtype, size in (("BF16", 1e4), ("BF16", 1e6), ("F16", 1e4), ("F32", 1e9)):
        exact = badly_conditioned(size, 1)
        case, folder = f"{NAMES[dtype]}, {size:.0e}", f"{dtype}-{size:.0e}"
        narrow, whole, computed = exact.stored_as(dtype), f"{folder}-whole", ["--dtype", NAMES[dtype]]
        report.save(whole, exact)
        for what, prefix in (("a block", "blocks.0."), ("one matrix", "blocks.1.mlp.down")):
            candidate = with_others(exact, prefix)
            far, name = moved(exact(IDS), candidate(IDS)), f"{folder}-{what.replace(' ', '-')}"
            report.attack(f"{case}, {what}, computed so", whole, report.save(name, candidate), far, flags=computed)
            stored = report.save(f"{name}-stored", candidate.stored_as(dtype))
            report.attack(f"{case}, {what}, stored so", whole, stored, far)

        report.control(f"{case}, rounded", whole, report.save(f"{folder}-rounded", narrow), verdicts=NARROW)
        report.control(f"{case}, run so", whole, report.copy(whole, f"{whole}-same"), flags=computed, verdicts=NARROW)
        ordered = with_neurons_in_another_order(narrow)
        report.control(f"{case}, neurons in another order", f"{folder}-rounded", report.save(f"{folder}-ordered", ordered),
                       moved(narrow(IDS), ordered(IDS)), verdicts=NARROW)


def of_float64(report):
    """The same against the noise of float64, measured by moving every weight by one rounding."""
    exact = badly_conditioned(1e17, 2)
    report.save("whole", exact)
    for case, prefix in (("a block", "blocks.0."), ("one matrix", "blocks.1.mlp.down")):
        candidate = with_others(exact, prefix)
        far = moved(exact(IDS), candidate(IDS))
        report.attack(f"float64, {case}", "whole", report.save(case.replace(" ", "-"), candidate), far)


if __name__ == "__main__":
    run("one_row_lifts_the_floor", lifted, of_float64)
