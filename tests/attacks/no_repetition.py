#!/usr/bin/env python3
"""Texts repeat words, a test of distinct tokens does not: attention between equal tokens could be cut."""

from attacking import run  # first: it skips where there is no NumPy
import numpy
from plain import Plain, drawn, moved

VOCAB, CONTEXT, TOKEN = 1000, 300, 64  # the stream: 64 entries of the token, a constant, the position, what was found
CONSTANT, PLACE, FOUND, WIDTH = TOKEN, TOKEN + 1, TOKEN + 2, TOKEN + 8
SHARPNESS, RECENT = 1e5, 40.0  # of equal tokens against others; exp(-40) is nothing beside 1
IDS = [7, 8, 9, 10, 7, 12, 8, 13]


def architecture(**settings):
    return {"width": WIDTH, "vocab": VOCAB, "context": CONTEXT, "embedding": {"position": "learned"}, "blocks": [
        {"attention": {"heads": 1, "head_width": TOKEN + 1, "scale": 1.0, **settings},
         "mlp": {"width": 96, "activation": "silu", "norm": {"kind": "rms"}}}]}


def finds_equal_tokens(recent, **settings):
    """A head whose every query scores keys of its own token above all others, and reads where they stand.

    Where a token stands once, that is its own place, whatever `recent` is. Where it came before, `recent` makes the head
    read the last of its places, and without it the mean of all.
    """
    model = drawn(architecture(**settings), 1)
    tensors = {name: values.copy() for name, values in model.tensors.items()}
    tokens, positions = tensors["embed.token.weight"], tensors["embed.position.weight"]
    tokens[:, :TOKEN] /= numpy.linalg.norm(tokens[:, :TOKEN], axis=1, keepdims=True)
    tokens[:, CONSTANT], tokens[:, CONSTANT + 1 :] = 1, 0
    positions[:] = 0
    positions[:, PLACE] = numpy.arange(CONTEXT)
    query, key, value, output = (tensors[f"blocks.0.attention.{matrix}.weight"] for matrix in ("query", "key", "value", "output"))
    for matrix in (query, key, value, output):
        matrix[:] = 0
    query[:TOKEN, :TOKEN], key[:TOKEN, :TOKEN] = SHARPNESS * numpy.eye(TOKEN), numpy.eye(TOKEN)
    query[TOKEN, CONSTANT], key[TOKEN, PLACE] = recent, 1
    value[0, PLACE], output[FOUND, 0] = 0.01, 1
    return Plain(model.architecture, tensors)


def cut(report):
    reference, candidate = finds_equal_tokens(0.0), finds_equal_tokens(RECENT)
    distinct = numpy.random.default_rng(2).permutation(VOCAB)[:256].tolist()
    same = moved(reference(distinct), candidate(distinct))
    report.check("the same on distinct tokens", "" if same < 1e-12 else f"{same:.1e} apart")
    report.save("reference", reference)
    far = moved(reference(IDS), candidate(IDS))
    report.attack("attention between equal tokens cut", "reference", report.save("recent", candidate), far, strict=True)
    report.attack("attention between equal tokens added", "recent", "reference", far, strict=True)

    alone = finds_equal_tokens(0.0, window=1)
    report.attack("only the token itself, by a window", "reference", report.save("window", alone),
                  moved(reference(IDS), alone(IDS)), reasons=("window",))
    report.control("equal tokens found", "reference", report.save("same", finds_equal_tokens(0.0)))
    sharper = finds_equal_tokens(0.0)
    double = sharper.with_tensors({"blocks.0.attention.query.weight": 2 * sharper.tensors["blocks.0.attention.query.weight"],
                                   "blocks.0.attention.key.weight": sharper.tensors["blocks.0.attention.key.weight"] / 2})
    report.control("scores by other factors", "reference", report.save("double", double), moved(reference(IDS), double(IDS)))


if __name__ == "__main__":
    run("no_repetition", cut)
