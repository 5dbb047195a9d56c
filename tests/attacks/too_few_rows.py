#!/usr/bin/env python3
"""Fewer rows in the test than a matrix has inputs: it can be moved far where none of them points."""

from attacking import NARROW, run  # first: it skips where there is no NumPy
import asked_before
import numpy
from plain import attention, decoder, drawn, moved, with_neurons_in_another_order

IDS = numpy.random.default_rng(3).integers(0, 2000, 60).tolist()


def inputs_of(model, name, questions):
    """What the matrix multiplies when these are asked, a row for each."""
    seen = {}
    for question in questions:
        model(question, seen=seen)
    return numpy.concatenate(seen[name])


def moved_unseen(model, name, questions, fraction):
    """The matrix moved by a fraction of its size, at random, but not for what is asked."""
    rows, weight = inputs_of(model, name, questions), model.tensors[name]
    change = numpy.random.default_rng(7).standard_normal(weight.shape)
    basis = numpy.linalg.svd(rows, full_matrices=False)[2]
    for _ in range(2):  # once more for what rounding left
        change -= change @ basis.T @ basis
    change *= fraction * numpy.linalg.norm(weight) / numpy.linalg.norm(change)
    return model.with_tensors({name: weight + change})


def attack(report, case, folder, reference, name, questions, fraction, other, flags=()):
    """`other` is a question that was not asked, and shows the difference."""
    candidate = moved_unseen(reference, name, questions, fraction)
    seen = max(moved(reference(question), candidate(question)) for question in questions)
    report.check(f"{case}: not seen by the old questions", "" if seen < 1e-9 else f"{seen:.1e} apart")
    far = moved(reference(other), candidate(other))
    report.attack(case, folder, report.save(f"{folder}-{name}", candidate), far, flags, strict=name == "head.weight")


def wide_mlp(report):
    """1,024 neurons, 704 rows."""
    architecture = decoder(vocab=2000, context=300, layers=1, attention=attention(rope={}), mlp={"width": 1024})
    reference = drawn(architecture, 1)
    report.save("wide", reference)
    questions = asked_before.sequences(2000, 300)
    attack(report, "down-projection moved 80 %", "wide", reference, "blocks.0.mlp.down.weight", questions, 0.8, IDS)
    same = with_neurons_in_another_order(reference)
    report.control("neurons in another order", "wide", report.save("ordered", same), moved(reference(IDS), same(IDS)))


def few_sequences(report):
    """--random 1 is one sequence: 64 rows, and every matrix has 96 inputs or more. To ask little is to learn little."""
    rotary = attention(heads=4, head_width=24, rope={})
    reference = drawn(decoder(vocab=2000, width=96, layers=2, attention=rotary, mlp={"width": 100}), 2)
    report.save("short", reference)
    questions = asked_before.sequences(2000, 64, asked=1)
    for name in ("head.weight", "blocks.1.mlp.down.weight", "blocks.1.attention.output.weight", "blocks.1.mlp.up.weight"):
        attack(report, f"--random 1, {name} moved", "short", reference, name, questions, 1.5, IDS, ["--random", "1"])
    same = with_neurons_in_another_order(reference)
    report.control("--random 1", "short", report.save("ordered", same), moved(reference(IDS), same(IDS)), ["--random", "1"])


def images(report):
    """Eight images, so eight rows for the head of a classifier."""
    patch = {"size": 4, "channels": 1, "image": 16}
    architecture = decoder(task="classifier", width=48, context=17, attention=attention(heads=4, mask="full"), norm="layer",
                           head={"classes": 10, "bias": True},
                           embedding={"position": "learned", "class_token": True, "patch": patch})
    del architecture["vocab"]
    reference = drawn(architecture, 3)
    report.save("vit", reference)
    other = numpy.random.default_rng(4).standard_normal((1, 16, 16))
    attack(report, "the head of a ViT moved 269 %", "vit", reference, "head.weight", asked_before.images(1, 16), 2.69, other)
    rounded = reference.stored_as("BF16")
    candidate = moved_unseen(reference, "head.weight", asked_before.images(1, 16), 2.69).stored_as("BF16")
    report.attack("the same in bfloat16", "vit", report.save("vit-bf16", candidate), moved(reference(other), candidate(other)))
    report.control("a ViT", "vit", report.save("same", with_neurons_in_another_order(reference)))
    report.control("a ViT in bfloat16", "vit", report.save("same-bf16", rounded), verdicts=NARROW)


def classifiers(report):
    """Eight texts, eight rows; behind the pooler of BERT too."""
    for what, transform in (("plain", None), ("with a pooler", {"activation": "tanh"})):
        architecture = decoder(task="classifier", vocab=2000, width=48, attention=attention(heads=4, mask="full"),
                               embedding={"position": "learned"}, head={"classes": 3, "bias": True, "transform": transform})
        reference = drawn(architecture, 5)
        folder = report.save(what.replace(" ", "-"), reference)
        questions = asked_before.sequences(2000, 64, padded=True)
        attack(report, f"a classifier, {what}", folder, reference, "head.weight", questions, 1.0, IDS)
        if transform:
            attack(report, "the pooler", folder, reference, "head.transform.weight", questions, 1.0, IDS)
        report.control(f"a classifier, {what}: control", folder,
                       report.save(f"{folder}-same", with_neurons_in_another_order(reference)))


if __name__ == "__main__":
    run("too_few_rows", wide_mlp, few_sequences, images, classifiers)
