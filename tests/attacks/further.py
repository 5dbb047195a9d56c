#!/usr/bin/env python3
"""Further attacks: rare features, repeated pairs, a conjunction that no random text has, huge entries, false noise."""

from attacking import run  # first: it skips where there is no NumPy
import asked_before
import numpy
from plain import Plain, attention, decoder, drawn, keeping, moved
from plain import rounded, with_last_block, with_neurons_in_another_order, with_other_blocks

IDS = list(range(5, 45))


def copies(model):
    return {name: values.copy() for name, values in model.tensors.items()}


def rare_feature(report):
    """An entry of the stream that one token of 5,000 has. Every row of the table is the same, but the matrices that read
    this entry are not: to say that the table is covered by its exercised rows covers no reader."""
    vocab = 5000
    model = drawn(decoder(vocab=vocab, context=300, attention=attention(rope={})), 1)
    rare = next(id for id in range(vocab) if id not in set(asked_before.tokens(vocab, 300)))
    tensors = copies(model)
    tensors["embed.token.weight"][:, 0] = 0
    tensors["embed.token.weight"][rare, 0] = 3
    tensors["blocks.0.attention.output.weight"][0] = 0  # so that only the embedding writes it
    reference = model.with_tensors(tensors)
    ids = [*IDS[:10], rare, *IDS[10:20]]
    report.save("reference", reference)
    for matrix in ("mlp.up", "attention.value", "attention.key"):
        weight = reference.tensors[f"blocks.0.{matrix}.weight"].copy()
        weight[:, 0] = numpy.random.default_rng(2).standard_normal(len(weight))
        candidate = reference.with_tensors({f"blocks.0.{matrix}.weight": weight})
        far = moved(reference(ids), candidate(ids))
        report.attack(f"a column of {matrix} that one token reads", "reference", report.save(matrix, candidate), far, strict=True)
    same = with_neurons_in_another_order(reference)
    report.control("a rare feature", "reference", report.save("same", same), moved(reference(ids), same(ids)))


TOKEN, VOCAB, CONTEXT = 64, 1000, 256
PREVIOUS, CONSTANT = TOKEN, 2 * TOKEN  # where the stream has what
PLACE, CIRCLE, FOUND, WIDTH = CONSTANT + 1, CONSTANT + 2, CONSTANT + 4, CONSTANT + 8


def finds_equal_pairs(recent):
    """An induction head: the first block copies the token before, the second looks for the same two tokens in a row.

    Only where a pair came before does `recent` matter, which makes the head read the last such place and not the mean.
    """
    block = {"attention": {"heads": 1, "head_width": 2 * TOKEN + 1, "scale": 1.0},
             "mlp": {"width": 96, "activation": "silu", "norm": {"kind": "rms"}}}
    model = drawn({"width": WIDTH, "vocab": VOCAB, "context": CONTEXT, "embedding": {"position": "learned"},
                   "blocks": [block | {"repeat": 2}]}, 3)
    tensors = copies(model)
    for name, values in tensors.items():
        if ".attention." in name or name == "blocks.0.mlp.down.weight":
            values[:] = 0
    tokens, positions = tensors["embed.token.weight"], tensors["embed.position.weight"]
    tokens[:, :TOKEN] /= numpy.linalg.norm(tokens[:, :TOKEN], axis=1, keepdims=True)
    tokens[:, TOKEN:], tokens[:, CONSTANT], positions[:] = 0, 1, 0
    step = 2 * numpy.pi / (2 * CONTEXT)
    angle = step * numpy.arange(CONTEXT)
    positions[:, PLACE] = numpy.arange(CONTEXT)
    positions[:, CIRCLE], positions[:, CIRCLE + 1] = numpy.cos(angle), numpy.sin(angle)

    def matrices(block):
        return (tensors[f"blocks.{block}.attention.{matrix}.weight"] for matrix in ("query", "key", "value", "output"))

    query, key, value, output = matrices(0)  # the key nearest to one step back
    back = numpy.array([[numpy.cos(step), numpy.sin(step)], [-numpy.sin(step), numpy.cos(step)]])
    query[:2, CIRCLE : CIRCLE + 2], key[:2, CIRCLE : CIRCLE + 2] = 2e7 * back, numpy.eye(2)
    value[:TOKEN, :TOKEN], output[PREVIOUS : PREVIOUS + TOKEN, :TOKEN] = numpy.eye(TOKEN), numpy.eye(TOKEN)
    query, key, value, output = matrices(1)
    both = slice(0, 2 * TOKEN)
    query[both, both], key[both, both] = 1e5 * numpy.eye(2 * TOKEN), numpy.eye(2 * TOKEN)
    query[2 * TOKEN, CONSTANT], key[2 * TOKEN, PLACE] = recent, 1
    value[0, PLACE], output[FOUND, 0] = 0.01, 1
    return Plain(model.architecture, tensors)


def repeated_pairs(report):
    reference, candidate = finds_equal_pairs(0.0), finds_equal_pairs(40.0)
    single = [7, 8, 9, 10, 7, 12, 8, 13, 9, 7]  # tokens repeat, pairs do not
    same = moved(reference(single), candidate(single))
    report.check("the same without repeated pairs", "" if same < 1e-12 else f"{same:.1e} apart")
    text = [7, 8, 9, 10, 7, 8, 13, 9, 10, 14]
    report.save("reference", reference)
    far = moved(reference(text), candidate(text))
    report.attack("induction cut", "reference", report.save("cut", candidate), far, strict=True)
    report.control("induction", "reference", report.save("same", with_neurons_in_another_order(reference)))


def first_token(report):
    """What a model does only where a text begins with its first token, as every real text does and no random one."""
    vocab, begin = 5000, 1
    biases = {"activation": "relu", "bias": {"up": True}, "norm": None}
    model = drawn(decoder(vocab=vocab, norm=None, mlp=biases, embedding={"position": "learned"}), 4)
    tensors = copies(model)
    tokens, positions = tensors["embed.token.weight"], tensors["embed.position.weight"]
    tokens[:, :2], positions[:, :2] = 0, 0
    tokens[begin, 0], positions[0, 1] = 1, 1
    tensors["blocks.0.attention.output.weight"][:2] = 0
    up, bias = tensors["blocks.0.mlp.up.weight"], tensors["blocks.0.mlp.up.bias"]
    up[0], bias[0] = 0, -1.5
    up[0, :2] = 1  # on only where both are there
    reference = model.with_tensors(tensors)
    down = tensors["blocks.0.mlp.down.weight"].copy()
    down[:, 0] = 20 * numpy.random.default_rng(5).standard_normal(len(down))
    candidate = reference.with_tensors({"blocks.0.mlp.down.weight": down})
    same = max(moved(reference(ids), candidate(ids)) for ids in (IDS, [*IDS, begin, *IDS[:5]]))
    report.check("the same where a text begins otherwise", "" if same == 0 else f"{same:.1e} apart")
    report.save("reference", reference)
    far = moved(reference([begin, *IDS]), candidate([begin, *IDS]))
    name = report.save("other", candidate)
    report.attack("a neuron for the first token in the first place", "reference", name, far, strict=True)
    report.control("such a neuron", "reference", report.save("same", with_neurons_in_another_order(reference)))


def huge_hidden(report):
    """Hidden states have no KL: one entry of 1e13 in every row, and the others can be anything."""
    architecture = with_last_block(decoder(task="encoder", vocab=60, attention=attention(rope={}, mask="full")))
    reference = keeping(drawn(architecture, 6), 1)
    tensors = copies(reference)
    tensors["embed.token.weight"][:, 0] = 1
    tensors["blocks.2.mlp.down.weight"][0, 0] = 1e13
    reference = reference.with_tensors(tensors)
    candidate = keeping(with_other_blocks(reference, "blocks.0."), 1)
    candidate = candidate.with_tensors({n: tensors[n] for n in tensors if n.startswith("blocks.2.")})
    report.save("reference", reference)
    far = moved(reference(IDS), candidate(IDS))
    report.attack("hidden states with one huge entry", "reference", report.save("other", candidate), far)
    same = with_neurons_in_another_order(reference)
    report.control("such hidden states", "reference", report.save("same", same), moved(reference(IDS), same(IDS)))


def huge_offset(report):
    """A common offset makes a row's size huge and its spread not: a floor for the size must not reach the spread."""
    base = drawn(decoder(attention=attention(rope={}), head={"bias": True}), 7)
    for size in (1e9, 1e12):
        reference = base.with_tensors({"head.bias": base.tensors["head.bias"] + size})
        down = reference.tensors["blocks.1.mlp.down.weight"]
        candidate = reference.with_tensors({"blocks.1.mlp.down.weight": 1.02 * down})
        report.save(f"{size:.0e}", reference)
        spread = reference(IDS) - reference(IDS).mean(-1, keepdims=True)
        far = moved(spread, candidate(IDS) - candidate(IDS).mean(-1, keepdims=True))
        report.attack(f"an offset of {size:.0e}", f"{size:.0e}", report.save(f"{size:.0e}-moved", candidate), far)


def false_noise(report):
    """Numbers that bfloat16 holds exactly, stored wider: to store them so costs nothing, and is no room for a change."""
    exact = drawn(decoder(vocab=60, attention=attention(rope={})), 8).stored_as("BF16")
    signs = numpy.random.default_rng(9)
    changed = {name: rounded(values * (1 + 2.0**-8 * signs.choice([-1, 1], values.shape)), "BF16")
               for name, values in exact.tensors.items() if name.startswith("blocks.1.mlp")}
    for dtype in ("F32", "F64"):
        reference = exact.stored_as(dtype)
        report.save(dtype, reference)
        candidate = exact.with_tensors(changed)
        far = moved(reference(IDS), candidate(IDS))
        report.attack(f"bfloat16 in {dtype}, moved", dtype, report.save(f"{dtype}-moved", candidate), far)
        report.control(f"bfloat16 in {dtype}", dtype, report.save(f"{dtype}-same", exact), moved(reference(IDS), exact(IDS)))


if __name__ == "__main__":
    run("further", rare_feature, repeated_pairs, first_token, huge_hidden, huge_offset, false_noise)
