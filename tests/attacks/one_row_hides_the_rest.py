#!/usr/bin/env python3
"""One huge number among the outputs, under which any other difference is small: each row has to be judged by itself."""

from attacking import NARROW, run  # first: it skips where there is no NumPy
import numpy
from plain import attention, decoder, drawn, keeping, moved
from plain import with_last_block, with_neurons_in_another_order, with_other_blocks

IDS = list(range(5, 45))
PADDED = [90, 92, 94, 95, 96]  # ids that no tokenizer makes: a table is often rounded up


def attack_and_control(report, case, reference, candidate, ids=IDS, flags=(), **more):
    name = case.replace(" ", "-")
    report.save(name, reference)
    report.attack(case, name, report.save(f"{name}-attack", candidate), moved(reference(ids), candidate(ids)), flags, **more)
    same = with_neurons_in_another_order(reference)
    report.control(f"{case}: control", name, report.save(f"{name}-control", same), moved(reference(ids), same(ids)), flags,
                   verdicts=NARROW if flags or reference.dtype != "F64" else NARROW[:-1])


def scaled(model, table, row, factor):
    values = model.tensors[table].copy()
    values[row] *= factor
    return model.with_tensors({table: values})


def huge_inputs(report):
    """Norms before the sublayers and none after the last: a row of the embedding goes straight into its logits."""
    base = drawn(decoder(attention=attention(rope={}), final=False), 1)
    for factor in (1e6, 1e13):
        reference = scaled(base, "embed.token.weight", 60, factor)
        attack_and_control(report, f"a token x {factor:.0e}", reference, with_other_blocks(reference))
    only_down = with_other_blocks(reference, "blocks.1.mlp.down")
    attack_and_control(report, "a token x 1e13 and one other matrix", reference, only_down)

    learned = drawn(decoder(embedding={"position": "learned"}, final=False), 2)
    reference = scaled(learned, "embed.position.weight", 50, 1e13)
    attack_and_control(report, "a position x 1e13", reference, with_other_blocks(reference))


def huge_biases(report):
    """A bias that keeps some ids from ever being chosen, in every row: the row's own spread says nothing either."""
    base = drawn(decoder(attention=attention(rope={}), head={"bias": True}), 3)
    for size in (-1e9, -1e13):
        bias = base.tensors["head.bias"].copy()
        bias[PADDED] = size
        reference = base.with_tensors({"head.bias": bias})
        candidate = with_other_blocks(reference)
        attack_and_control(report, f"padded ids at {size:.0e}", reference, candidate)
        for dtype in ("F32", "BF16"):
            attack_and_control(report, f"padded ids at {size:.0e} stored as {dtype}", reference.stored_as(dtype),
                               candidate.stored_as(dtype))
    attack_and_control(report, "padded ids at -1e13 in float32", reference, candidate, flags=["--dtype", "float32"])


def huge_columns(report):
    """The same by the head's matrix: one token whose logit is always huge."""
    base = drawn(decoder(attention=attention(rope={})), 4)
    reference = scaled(base, "head.weight", 7, 1e13)
    attack_and_control(report, "a row of the head x 1e13", reference, with_other_blocks(reference, "blocks.1.mlp.down"))


def hidden_from_the_self_test(report):
    """Huge numbers that come through the last block: disturb that, and any check would see it."""
    base = drawn(with_last_block(decoder(vocab=60, attention=attention(rope={}))), 7)
    reference = scaled(base, "embed.token.weight", 50, 1e13)
    attack_and_control(report, "a token x 1e13 through the last block", reference, with_other_blocks(reference, "blocks.0."))

    for task, head in (("causal_lm", {}), ("classifier", {"classes": 3}), ("token_classifier", {"classes": 3})):
        mask = "causal" if task == "causal_lm" else "full"
        architecture = with_last_block(decoder(vocab=60, attention=attention(rope={}, mask=mask), task=task, head=head))
        reference = keeping(drawn(architecture, 8), 1)
        tokens, rows = reference.tensors["embed.token.weight"].copy(), reference.tensors["head.weight"].copy()
        tokens[:, 0], rows[:, 0], rows[0, 0] = 1, 0, -1e13
        reference = reference.with_tensors({"embed.token.weight": tokens, "head.weight": rows})
        candidate = keeping(with_other_blocks(reference, "blocks.0."), 1)
        attack_and_control(report, f"{task}, a constant entry times -1e13", reference, candidate)


def classifiers(report):
    """Three classes, one of them impossible: the other two can be anything."""
    for task in ("classifier", "token_classifier"):
        architecture = decoder(task=task, attention=attention(rope={}, mask="full"), head={"bias": True, "classes": 3})
        for size in (-1e9, -1e13):
            reference = drawn(architecture, 5)
            reference = reference.with_tensors({"head.bias": numpy.array([size, 0.2, -0.1])})
            attack_and_control(report, f"{task}, a class at {size:.0e}", reference, with_other_blocks(reference))

    architecture = decoder(task="masked_lm", attention=attention(mask="full"), embedding={"position": "learned"},
                           head={"bias": True})
    reference = drawn(architecture, 6)
    bias = reference.tensors["head.bias"].copy()
    bias[PADDED] = -1e13
    reference = reference.with_tensors({"head.bias": bias})
    attack_and_control(report, "masked_lm, padded ids at -1e13", reference, with_other_blocks(reference))


if __name__ == "__main__":
    run("one_row_hides_the_rest", huge_inputs, huge_biases, huge_columns, hidden_from_the_self_test, classifiers)
