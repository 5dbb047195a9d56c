#!/usr/bin/env python3
"""What was proved and was not so: a dimension that one rare token alone has hides from rows, so only relations can tell."""

import copy
import json

from attacking import SAME, pare, run  # first: it skips where there is no NumPy
import numpy
from safetensors.numpy import load_file, save_file
from plain import Plain, attention, decoder, drawn, moved

RARE, HIDDEN = 1234, 5
READERS = (".query.weight", ".key.weight", ".value.weight", ".up.weight", "head.weight")
WRITERS = (".output.weight", ".down.weight")


def copied(model):
    return {name: values.copy() for name, values in model.tensors.items()}


def with_a_hidden_dimension(size, epsilon, **more):
    """Only the embedding of one token has it, and no block ever writes to it."""
    architecture = decoder(vocab=2000, attention=attention(rope={}), **more)
    for block in architecture["blocks"]:
        for sublayer in ("attention", "mlp"):
            block[sublayer]["norm"] = {"kind": "rms", "epsilon": epsilon}
    architecture["final_norm"] = {"kind": "rms", "epsilon": epsilon}
    model = drawn(architecture, 1)
    tensors = copied(model)
    tensors["embed.token.weight"][:, HIDDEN] = 0
    tensors["embed.token.weight"][RARE] = 0
    tensors["embed.token.weight"][RARE, HIDDEN] = size
    for name, values in tensors.items():
        if name.endswith(WRITERS):
            values[HIDDEN] = 0
    return model.with_tensors(tensors)


def swallowed_by_a_gain(report):
    """A zero times a huge gain: half a spacing of the smallest numbers, times that gain, explained a whole column."""
    for dtype, gain_dtype, gain, size, epsilon in (("F16", "F16", 65504.0, 0.0015, 1e-12), ("F16", "F16", 65504.0, 0.0015, 1e-5),
                                                   ("BF16", "F32", 2.0**127, 0.005, 1e-5)):
        tensors = copied(with_a_hidden_dimension(2e-2 if epsilon == 1e-5 else 1e-3, epsilon))
        columns = [f"blocks.{n}.attention.{name}.weight" for n in range(2) for name in ("query", "key", "value")]
        for name in columns:
            tensors[name][:, HIDDEN] = size * numpy.sign(tensors[name][:, HIDDEN])
        reference = with_a_hidden_dimension(1, epsilon).with_tensors(tensors).stored_as(dtype)
        tensors = copied(reference)
        gains = [f"blocks.{n}.attention.norm.weight" for n in range(2)]
        for name in gains:
            tensors[name][HIDDEN] = gain
        for name in columns:
            tensors[name][:, HIDDEN] = 0
        candidate = Plain(reference.architecture, tensors, dtype=dtype, dtypes=dict.fromkeys(gains, gain_dtype))
        case = f"{dtype}, gain {gain:.0e}, epsilon {epsilon}"
        report.save(f"{case} reference", reference)
        report.attack(case, f"{case} reference", report.save(f"{case} candidate", candidate),
                      moved(reference([RARE]), candidate([RARE])))


def swallowed_by_a_type(report):
    """A token's whole row below the smallest number of float16, before a norm that makes it large again."""
    for epsilon in (1e-12, 1e-20):
        reference = with_a_hidden_dimension(2e-8, epsilon)
        candidate = reference.stored_as("F16")
        case = f"a tiny row, epsilon {epsilon}"
        report.save(f"{case} reference", reference)
        report.attack(case, f"{case} reference", report.save(f"{case} candidate", candidate),
                      moved(reference([RARE]), candidate([RARE])))


class Collapsed(Plain):
    """Scores of one matrix for each head; the rest as in Plain."""

    def with_tensors(self, *others, **options):
        model = super().with_tensors(*others, **options)
        model.__class__ = Collapsed
        return model

    def attended(self, name, x, settings, seen):
        heads, width = settings["heads"], settings["head_width"]
        values = (x @ self.tensors[f"{name}.value.weight"].T).reshape(len(x), heads, width).transpose(1, 0, 2)
        scores = numpy.einsum("qi,hij,kj->hqk", x, self.tensors[f"{name}.qk.weight"], x)
        bias = numpy.einsum("hj,kj->hk", self.tensors.get(f"{name}.qk.bias", numpy.zeros((heads, x.shape[1]))), x)
        scores = (scores + bias[:, None]) * width**-0.5
        place = numpy.arange(len(x))
        scores = numpy.where(place[None] > place[:, None], -numpy.inf, scores)
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ values
        return self.linear(f"{name}.output", mixed.transpose(1, 0, 2).reshape(len(x), -1), seen)


def lost_in_collapsed_scores(report):
    """A norm's bias moved into the output's: right for values, and what it did to the scores is gone."""
    architecture = decoder(vocab=2000, attention=attention(norm={"kind": "rms", "bias": True}, bias={"output": True}))
    tensors, generator = copied(drawn(architecture, 1)), numpy.random.default_rng(2)
    tensors["embed.token.weight"][:, HIDDEN] = 0
    tensors["embed.token.weight"][RARE, HIDDEN] = 5
    for n in range(2):
        name = f"blocks.{n}.attention"
        del tensors[f"{name}.query.weight"], tensors[f"{name}.key.weight"]
        for written in (f"{name}.output.weight", f"{name}.output.bias", f"blocks.{n}.mlp.down.weight"):
            tensors[written][HIDDEN] = 0
        both = generator.standard_normal((2, 24, 24)) / 5
        both[:, HIDDEN, :] = both[:, :, HIDDEN] = 0
        both[:, HIDDEN, HIDDEN] = 3
        tensors[f"{name}.qk.weight"] = both
        tensors[f"{name}.norm.bias"] = numpy.eye(24)[HIDDEN] * 3
    architecture = copy.deepcopy(architecture)
    architecture["blocks"][0]["attention"]["scores"] = "collapsed"
    reference = Collapsed(architecture, tensors)
    changed = copied(reference)
    for n in range(2):
        name = f"blocks.{n}.attention"
        constant = changed[f"{name}.value.weight"] @ changed[f"{name}.norm.bias"]
        changed[f"{name}.output.bias"] = changed[f"{name}.output.bias"] + changed[f"{name}.output.weight"] @ constant
        changed[f"{name}.norm.bias"] = numpy.zeros(24)
    candidate = Collapsed(architecture, changed)
    ids = [7, RARE, 100, 200, 300]
    report.save("collapsed", reference)
    report.attack("a norm's bias under collapsed scores", "collapsed", report.save("collapsed-moved", candidate),
                  moved(reference(ids), candidate(ids)))


def basis_without_an_inverse(report):
    """One coordinate in units of 2^50, all of them in another order: the same function, and no reason to crash."""
    model = drawn(decoder(vocab=500, attention=attention(rope={}), norm=None, final=False), 1)
    order = numpy.roll(numpy.arange(24), 1)
    tensors = copied(model)
    for name, values in tensors.items():
        if name.endswith(READERS):
            values[:, 3] *= 2.0**50
            tensors[name] = values[:, order]
        elif name == "embed.token.weight":
            values[:, 3] /= 2.0**50
            tensors[name] = values[:, order]
        elif name.endswith(WRITERS):
            values[3] /= 2.0**50
            tensors[name] = values[order]
    other, ids = model.with_tensors(tensors), [7, 99, 9]
    report.save("units", model)
    report.control("one coordinate in other units", "units", report.save("other-units", other),
                   moved(model(ids), other(ids)), verdicts=SAME)


VALUE, OUTPUT = "blocks.0.attention.value.weight", "blocks.0.attention.output.weight"


def before_a_tiny_norm(vocab=5000, attention=attention(), **more):
    """One block without skip and norms with next to no epsilon behind it: whatever is left of a token is made large."""
    tiny = {"kind": "rms", "epsilon": 1e-40}
    architecture = decoder(vocab=vocab, layers=1, norm=None, attention={**attention, "skip": False}, mlp={"norm": tiny}, **more)
    return architecture | {"final_norm": tiny}


def almost_lost(tensors, size):
    """The output matrix with one tiny singular value, and the direction that it almost loses."""
    left, sizes, right = numpy.linalg.svd(tensors[OUTPUT])
    tensors[OUTPUT] = left * numpy.r_[sizes[:-1], size] @ right
    return right[-1]


def sheared(reference, shear):
    """The first head in another gauge: exact but for rounding."""
    tensors = copied(reference)
    tensors[VALUE][0] += shear * tensors[VALUE][1]
    tensors[OUTPUT][:, 1] -= shear * tensors[OUTPUT][:, 0]
    return reference.with_tensors(tensors)


def sheared_before_a_norm(report):
    """What one token's values come to almost cancels, and a norm makes what is left large: there roundings of a sheared
    head are all of it. They are few of what the candidate stores, and no other token has that dimension."""
    architecture = before_a_tiny_norm()
    tensors = copied(drawn(architecture, 1))
    direction = almost_lost(tensors, 1e-10)
    tensors["embed.token.weight"][:, HIDDEN] = 0
    tensors["embed.token.weight"][RARE] = numpy.eye(24)[HIDDEN]
    tensors[VALUE][1] = 0
    tensors[VALUE][:, HIDDEN] = direction
    reference = drawn(architecture, 1).with_tensors(tensors)
    report.save("unsheared", reference)
    for shear in (2.0, 2.0**20):
        candidate = sheared(reference, shear)
        check = (f"a head sheared by {shear:.0f}", "unsheared", report.save(f"sheared-{shear:.0f}", candidate),
                 moved(reference([RARE]), candidate([RARE])))
        report.control(*check, most=1e-4) if shear == 2 else report.attack(*check)


def sheared_for_one_type(report):
    """The same for one token of the second type alone; neurons that cancel lift what rounding does to every row."""
    architecture = before_a_tiny_norm(embedding={"types": 2})
    tensors, generator = copied(drawn(architecture, 1)), numpy.random.default_rng(5)
    direction = almost_lost(tensors, 1e-8)
    tensors["embed.token.weight"][:, [HIDDEN, HIDDEN + 1]] = 0
    tensors["embed.token.weight"][RARE] = numpy.eye(24)[HIDDEN]
    tensors["embed.type.weight"] = numpy.array([numpy.eye(24)[HIDDEN + 1], numpy.zeros(24)])
    tensors[VALUE][1] = 0
    tensors[VALUE][:, HIDDEN], tensors[VALUE][:, HIDDEN + 1] = direction, 0.3 * generator.standard_normal(24) * (numpy.arange(24) != 1)
    up, down = tensors["blocks.0.mlp.up.weight"], tensors["blocks.0.mlp.down.weight"]
    up[1], down[:, 0] = up[0], 1e4 * down[:, 0]
    down[:, 1] = -down[:, 0]
    reference = drawn(architecture, 1).with_tensors(tensors)
    candidate = sheared(reference, 2.0**22)
    report.save("types", reference)
    report.attack("a head sheared, for one token of one type", "types", report.save("types-sheared", candidate),
                  moved(reference([RARE], [1]), candidate([RARE], [1])))


def many_roundings_of_one_sign(report):
    """Every weight that one token reads moves by 112 of its own roundings, all towards the same answer, under a gauge of two."""
    width, hidden = 160, numpy.arange(40, 160)
    architecture = before_a_tiny_norm(vocab=3000, width=width, attention=attention(heads=4, head_width=40))
    tensors, generator = copied(drawn(architecture, 1)), numpy.random.default_rng(5)
    for name in (VALUE, OUTPUT):
        tensors[name] = numpy.sign(tensors[name]) / 8
    tensors["embed.token.weight"][:, hidden] = 0
    tensors["embed.token.weight"][RARE] = numpy.isin(numpy.arange(width), hidden)
    signs = numpy.repeat([1.0, -1.0], len(hidden) // 2)
    tensors[VALUE][:, hidden] = numpy.array([generator.permutation(signs) for _ in range(width)]) / 8  # sums of zero
    tensors[VALUE][:, hidden[0]] += 2e-9 * generator.standard_normal(width)
    tensors[OUTPUT][2:] *= 0.01
    reference = drawn(architecture, 1).with_tensors(tensors)
    changed = copied(reference)
    towards = numpy.sign(reference.tensors[OUTPUT][0])[:, None] * numpy.sign(changed[VALUE][:, hidden])
    changed[VALUE][:, hidden] *= 1 + 112 * 2.0**-53 * towards
    changed[VALUE] *= 2
    changed[OUTPUT] /= 2
    candidate = reference.with_tensors(changed)
    report.save("signs", reference)
    report.attack("112 roundings of one sign", "signs", report.save("signs-moved", candidate), moved(reference([RARE]), candidate([RARE])))


def loosened_by_another_type(report):
    """Factored scores in float64 whose huge numbers cancel, beside a bias in bfloat16: of a key, which softmax ignores, of
    a query, where it is tiny. How coarsely that one was rounded says nothing of the factors."""
    own = attention(heads=2, head_width=12)
    architecture = decoder(vocab=8000, context=16, attention={**own, "scores": "collapsed", "bias": {"query": True}})
    biased = decoder(vocab=8000, context=16, attention={**own, "bias": {"key": True, "query": True}})
    tensors, generator = copied(drawn(biased, 1)), numpy.random.default_rng(3)
    tensors["embed.token.weight"][:, HIDDEN] = 0
    tensors["embed.token.weight"][RARE, HIDDEN] = 5
    for name, values in tensors.items():
        if name.endswith(WRITERS):
            values[HIDDEN] = 0
        elif name.endswith(("query.weight", "key.weight")):
            values.reshape(2, 12, 24)[:, :2] = 0  # of twelve rows ten are used
            values[:, HIDDEN] = 0.3 * numpy.sign(values[:, HIDDEN])
    for n in range(2):
        tensors[f"blocks.{n}.attention.query.bias"] = 1e-3 * generator.standard_normal(24)
        tensors[f"blocks.{n}.attention.query.bias"].reshape(2, 12)[:, :2] = 0
    types = {f"blocks.{n}.attention.{name}.bias": "BF16" for n in range(2) for name in ("key", "query")}
    honest = Plain(biased, tensors, dtypes=types)
    whole = copied(honest)
    for n in range(2):
        name = f"blocks.{n}.attention"
        query, key = (whole.pop(f"{name}.{which}.weight").reshape(2, 12, 24) for which in ("query", "key"))
        whole[f"{name}.qk.weight"] = numpy.einsum("hki,hkj->hij", query, key)
        bias = whole.pop(f"{name}.query.bias").reshape(2, 12)
        whole[f"{name}.qk.bias"] = numpy.einsum("hk,hkj->hj", bias, key)
        del whole[f"{name}.key.bias"]
    reference = Collapsed(architecture, whole)
    report.save("whole", reference)
    ids = [7, RARE, 100, 200, 300]
    report.control("factors beside a bias in bfloat16", "whole", report.save("factors", honest),
                   moved(reference(ids), honest(ids)), verdicts=("proved",))
    changed = copied(honest)
    for n in range(2):
        query, key = (changed[f"blocks.{n}.attention.{which}.weight"].reshape(2, 12, 24) for which in ("query", "key"))
        query[:, 2:, HIDDEN] *= 1 + 0.01 * generator.standard_normal((2, 10))
        query[:, :2, HIDDEN] = 2.0**45
        key[:, 0], key[:, 1] = 4, -4
    candidate = honest.with_tensors(changed)
    report.attack("huge factors beside a bias in bfloat16", "whole", report.save("huge-factors", candidate),
                  moved(reference(ids), candidate(ids)), strict=True)


def loosened_by_a_bias(report):
    """A query's bias in bfloat16, the same numbers on both sides, beside matrices in float64: what is usual in a head came
    from all columns, so each entry of the bias's row had the bias's type. One that a rare token reads moves by 1 %."""
    names = query, key, bias = [f"blocks.0.attention.{name}" for name in ("query.weight", "key.weight", "query.bias")]
    heads = [slice(0, 12), slice(12, 24)]
    model = drawn(decoder(vocab=3000, layers=1, attention=attention(bias={"query": True})), 1)
    tensors = copied(model)
    tensors["embed.token.weight"][:, HIDDEN] = 0
    tensors["embed.token.weight"][RARE] = numpy.eye(24)[HIDDEN]
    tensors[key] = numpy.concatenate([7 * numpy.linalg.qr(tensors[key][head].T)[0].T for head in heads])
    tensors[bias] = numpy.eye(12)[0].repeat(2).reshape(12, 2).T.flatten()
    reference = model.with_tensors(tensors)
    order = numpy.concatenate([head.start + numpy.array([0, *range(2, 12), 1]) for head in heads])  # of what has no bias
    honest = reference.with_tensors({name: reference.tensors[name][order] for name in names}, dtypes={bias: "BF16"})
    moved_query = honest.tensors[query].copy()
    moved_query[[0, 12], HIDDEN] += 0.002
    candidate = honest.with_tensors({query: moved_query})
    texts = [[1, 2, RARE], [9, 8, 7, 6, 5, 4, 3, 2, RARE], [5, 77, 400, 999, RARE]]
    report.save("biased", reference)
    report.control("a bias in bfloat16", "biased", report.save("honest", honest),
                   max(moved(reference(ids), honest(ids)) for ids in texts), verdicts=("proved",))
    report.attack("an entry beside a bias in bfloat16", "biased", report.save("entry", candidate),
                  max(moved(reference(ids), candidate(ids)) for ids in texts), strict=True)


def hadamard(size):
    basis = numpy.ones((1, 1))
    while len(basis) < size:
        basis = numpy.block([[basis, basis], [basis, -basis]])
    return basis / numpy.sqrt(size)


def turned(model, basis):
    """The stream of the candidate is basis' times that of the model, for an orthogonal basis."""
    tensors = copied(model)
    for name, values in tensors.items():
        if name.endswith((*READERS, "embed.token.weight")):
            tensors[name] = values @ basis
        elif name.endswith(WRITERS):
            tensors[name] = basis.T @ values
    return tensors


def hidden_in_a_rotation(report):
    """A row in bfloat16 under a rotation in which all entries are alike: roundings of all of them add up in each of the
    reference's, and no right one has them all of one sign. One token's row moves by an eighth."""
    basis = hadamard(256)
    for kind, norm in (("rotated", "rms"), ("in another basis", None)):
        architecture = decoder(vocab=1500, width=256, layers=1, norm=norm, attention=attention(heads=2, head_width=8))
        for name in ("attention", "mlp"):
            architecture["blocks"][0][name]["norm"] = norm and {"kind": norm, "gain": False}
        architecture["final_norm"] = norm and {"kind": norm, "gain": False}
        reference = drawn(architecture, 1).stored_as("BF16")
        honest = reference.with_tensors(turned(reference, basis))
        report.save(f"{kind}", reference)
        report.control(f"{kind}, stored in bfloat16", f"{kind}", report.save(f"{kind} right", honest), verdicts=("proved",))
        row = reference.tensors["embed.token.weight"][RARE]
        changed = copied(honest)
        changed["embed.token.weight"][RARE] = (row + 0.1 * numpy.random.default_rng(2).choice([-1, 1], 256)) @ basis
        candidate = honest.with_tensors(changed)
        report.attack(f"{kind}, one row moved by an eighth", f"{kind}", report.save(f"{kind} wrong", candidate),
                      moved(reference([RARE]), candidate([RARE])), least=10 * moved(reference([RARE]), honest([RARE])))


def pivots_that_are_none(report):
    """Places of an identity block outside its inputs, or twice the same: refused when the model is opened, by every command."""
    architecture = decoder(attention=attention(pairs={"value_output": "shrunk"}))
    (report.work / "shrunk.json").write_text(json.dumps(architecture))
    made = pare("init", "shrunk.json", "-o", "shrunk", "--generic", "--quiet", cwd=report.work)
    report.check("a shrunk model", "" if made.returncode == 0 else made.stderr)
    report.control("a shrunk model, against itself", "shrunk", "shrunk")
    name = "blocks.1.attention.value.pivot"
    for case, place, pivot, reason in (("too large", 2, 24, "has the pivot 24"), ("negative", 0, -1, "has the pivot -1"),
                                       ("twice", 3, None, "twice in head 1")):
        report.copy("shrunk", case)
        path = report.work / case / "model.safetensors"
        tensors = {key: values.copy() for key, values in load_file(path).items()}
        tensors[name][1, place] = tensors[name][1, 0] if pivot is None else pivot
        save_file(tensors, path)
        for command in (["verify", "shrunk", case], ["verify", case, case],
                        ["rewrite", case, "-o", f"{case} rewritten", "--passes", "fold_norm_gain", "--no-verify"]):
            result = pare(*command, "--quiet", cwd=report.work)
            report.check(f"a pivot {case}: {command[0]} {command[1]}", "" if result.returncode == 1 and reason in result.stderr
                         else f"exit code {result.returncode}: {result.stderr[-300:]}")


if __name__ == "__main__":
    run("fooling_the_prover", swallowed_by_a_gain, swallowed_by_a_type, lost_in_collapsed_scores, basis_without_an_inverse,
        sheared_before_a_norm, sheared_for_one_type, many_roundings_of_one_sign,
        loosened_by_another_type, loosened_by_a_bias, hidden_in_a_rotation, pivots_that_are_none)
