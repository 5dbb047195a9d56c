#!/usr/bin/env python3
"""Every number of `pare probe --json`, computed anew in NumPy and SciPy from what `pare run --taps` writes.

Written from docs/probes.md: plain singular values of each matrix, SciPy's subspace_angles, no shortcut of ours.
"""

import json
import math
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import Report, pare

Report("probes").peers("numpy", "scipy.linalg", "safetensors.numpy")
import numpy
import scipy.linalg
from safetensors.numpy import load_file, save_file

LAYER = {"kind": "layer", "bias": True}
MODELS = {
    "encoder, norms after the skip": {
        "task": "encoder", "width": 24, "vocab": 61, "context": 40, "embedding": {"position": "learned", "norm": LAYER},
        "blocks": [{"repeat": 2, "attention": {"heads": 3, "head_width": 8, "mask": "full", "norm": LAYER | {"place": "post"},
                                               "bias": {"query": True, "key": True, "value": True, "output": True}},
                    "mlp": {"width": 50, "activation": "gelu", "norm": LAYER | {"place": "post"}}}]},
    "decoder, grouped keys, RoPE, RMSNorm": {
        "width": 24, "vocab": 61, "context": 40,
        "blocks": [{"repeat": 2, "attention": {"heads": 4, "kv_heads": 2, "head_width": 6, "rope": {}, "norm": {"kind": "rms"}},
                    "mlp": {"width": 40, "activation": "silu", "gated": True, "norm": {"kind": "rms"}}}],
        "final_norm": {"kind": "rms"}},
    "decoder, LayerNorm, few dimensions": {  # more tokens than dimensions: H2 and H4 the other way round
        "width": 8, "vocab": 61, "context": 40, "embedding": {"position": "learned"},
        "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 4, "window": 7, "norm": LAYER},
                    "mlp": {"width": 20, "activation": "gelu", "norm": LAYER}}],
        "final_norm": LAYER},
    "output norms, no MLP in between": {
        "width": 20, "vocab": 61, "context": 40,
        "blocks": [{"attention": {"heads": 2, "head_width": 10, "norm": {"kind": "rms"}, "output_norm": {"kind": "rms", "offset": 1.0}},
                    "mlp": {"width": 30, "activation": "gelu", "norm": {"kind": "rms"}, "output_norm": {"kind": "rms"}}},
                   {"attention": {"heads": 5, "head_width": 4, "norm": {"kind": "dyt"}}}]},
    "parallel, shared blocks": {
        "width": 16, "vocab": 61, "context": 40, "layers": [0, 0, 0],
        "blocks": [{"wiring": "parallel", "attention": {"heads": 4, "head_width": 4, "norm": LAYER, "bias": {"output": True}},
                    "mlp": {"width": 30, "activation": "gelu"}}], "final_norm": LAYER},
    "long sequences": {  # of the attention matrices only two singular values are computed
        "width": 16, "vocab": 61, "context": 300,
        "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 8, "rope": {}, "norm": LAYER},
                    "mlp": {"width": 40, "activation": "gelu", "norm": LAYER}}]},
    "images": {
        "task": "encoder", "width": 18, "context": 17, "embedding": {"position": "learned", "class_token": True,
                                                                     "patch": {"size": 2, "image": 8, "channels": 2}},
        "blocks": [{"repeat": 2, "attention": {"heads": 3, "head_width": 6, "mask": "full", "norm": LAYER},
                    "mlp": {"width": 40, "activation": "gelu", "norm": LAYER}}]},
}
THRESHOLD = 1e-3
EPSILON = 2.0**-52


class Means:
    """Numbers by name, one for each sequence; None where it is not defined."""

    def __init__(self):
        self.values = {}

    def add(self, name, value):
        self.values.setdefault(name, []).append(value)

    def problem(self, name, found):
        """Empty where a spread of the document is that of these numbers."""
        all_of_them = self.values.get(name, [])
        defined = numpy.array([value for value in all_of_them if value is not None])
        if found["count"] != len(defined) or found.get("undefined", 0) != len(all_of_them) - len(defined):
            return f"{name}: {found['count']} defined, {found.get('undefined', 0)} not, expected {len(defined)} of {len(all_of_them)}"
        wanted = {"mean": defined.mean(), "min": defined.min(), "max": defined.max()} if len(defined) else {}
        if len(defined) > 1:
            wanted["std"] = defined.std(ddof=1)
        for key in ("mean", "min", "max", "std"):
            if (found[key] is None) != (key not in wanted):
                return f"{name}: {key} is {found[key]}"
            if key in wanted and not abs(found[key] - wanted[key]) <= 1e-10 * max(1, abs(wanted[key])):
                return f"{name}: {key} is {found[key]!r}, expected {wanted[key]!r}"
        return ""


def rank(x, threshold=THRESHOLD):
    values = numpy.linalg.svd(x, compute_uv=False)
    return int((values > threshold * values[0]).sum()), values


def ranks(means, name, x):
    count, values = rank(x)
    shares = values[values > 0] / values.sum()
    centred = x - x.mean(0)
    rounding = max(x.shape) * EPSILON * values[0]
    affine, spread = rank(centred)
    same = spread[0] <= rounding
    means.add(f"{name} rank", count)
    means.add(f"{name} effective_rank", math.exp(-(shares * numpy.log(shares)).sum()))
    means.add(f"{name} stable_rank", (values**2).sum() / values[0]**2)
    means.add(f"{name} distance_to_rank_one", 0 if same else numpy.linalg.norm(centred) / numpy.linalg.norm(x))
    means.add(f"{name} affine_rank", 0 if same else affine)
    return count, 0 if same else affine


def outside(vector, columns):
    """Sine of the angle between a vector and the space of some columns, by its numerical rank."""
    basis = scipy.linalg.orth(columns, rcond=max(columns.shape) * EPSILON)
    unit = vector / numpy.linalg.norm(vector)
    if basis.shape[1] == len(vector):
        return 0.0
    return numpy.linalg.norm(unit - basis @ (basis.T @ unit))


def hypotheses(means, name, kind, x):
    if kind == "dyt":
        return
    centred = x - x.mean(1, keepdims=True) if kind == "layer" else x
    scales, sizes = numpy.sqrt((centred**2).mean(1)), numpy.sqrt((x**2).mean(1))
    means.add(f"{name} H1", (scales / sizes).min() if kind == "layer" else (sizes / sizes.max()).min())
    if kind == "layer":
        means.add(f"{name} H2", outside(numpy.ones(x.shape[1]), x.T))
    means.add(f"{name} H4", outside(scales, centred))


def visible(attention, tokens):
    back = numpy.arange(tokens)[:, None] - numpy.arange(tokens)
    allowed = back >= 0 if attention["mask"] == "causal" else numpy.ones_like(back, bool)
    if attention["window"]:
        allowed = allowed & (abs(back) < attention["window"])
    return allowed.sum(1)


def gap(p):
    values = numpy.linalg.svd(p, compute_uv=False)
    return (None, None) if len(values) < 2 else (values[0] / values[1], values[1] / values[0])


def heads(means, layer, attention, probabilities, written, output):
    """Of one layer and sequence: probabilities [heads, n, n], written [n, heads, k], output [d, heads * k]."""
    spaces, k = [], written.shape[2]
    seen = numpy.log(visible(attention, written.shape[0]))
    for h, p in enumerate(probabilities):
        entropy = -(numpy.where(p > 0, p, 1) * numpy.log(numpy.where(p > 0, p, 1))).sum(1)
        means.add(f"{layer}.{h} entropy", entropy.mean())
        means.add(f"{layer}.{h} distance_to_uniform", (seen - entropy).mean())
        several = seen > 0
        means.add(f"{layer}.{h} relative_entropy", (entropy[several] / seen[several]).mean() if several.any() else None)
        ratio, inverse = gap(p)
        means.add(f"{layer}.{h} gap", ratio)
        means.add(f"{layer}.{h} inverse_gap", inverse)
        product = written[:, h] @ output[:, h * k:(h + 1) * k].T
        dimension, _ = rank(product)
        means.add(f"{layer}.{h} output_dimension", dimension)
        spaces.append(numpy.linalg.svd(product)[2][:dimension].T)
    for g in range(len(spaces)):
        for h in range(g + 1, len(spaces)):
            angles = scipy.linalg.subspace_angles(spaces[g], spaces[h])
            means.add(f"{layer}.{g}.{h} smallest_angle", angles.min())
            means.add(f"{layer}.{g}.{h} mean_angle", angles.mean())
            means.add(f"{layer}.{g}.{h} alignment", math.cos(angles.min())**2)
    together = written.reshape(len(written), -1) @ output.T
    means.add(f"{layer} multi_head_rank", rank(together)[0])
    means.add(f"{layer} recovery_ambiguity", len(written) * (len(spaces) - 1) * k)
    return together


class Subject:
    """A stored model: its architecture, its tensors, and what it computes on given inputs."""

    def __init__(self, work, architecture, seed):
        (work / "architecture.json").write_text(json.dumps(architecture))
        self.work, self.folder = work, work / "model"
        made = pare("init", work / "architecture.json", "-o", self.folder, "--generic", "--dtype", "float64", "--seed", seed)
        assert made.returncode == 0, made.stderr
        self.architecture = json.loads((self.folder / "config.json").read_text())["architecture"]
        self.tensors = load_file(self.folder / "model.safetensors")
        blocks = [block for block in self.architecture["blocks"] for _ in range(block.get("repeat", 1))]
        self.order = self.architecture["layers"] or list(range(len(blocks)))
        self.blocks = [blocks[n] for n in self.order]  # by layer

    def run(self, *inputs):
        out = self.work / "taps.safetensors"
        result = pare("run", self.folder, "-o", out, *inputs, "--taps", "*", "--force")
        assert result.returncode == 0, result.stderr
        return load_file(out)

    def tensor(self, layer, name):
        return self.tensors[f"blocks.{self.order[layer]}.{name}"]

    def before(self, norm, taps, s):
        """What a norm reads, where that is no tap."""
        layer, part = norm["layer"], "attention" if ".attention." in norm["name"] else "mlp"
        prefix = f"blocks.{layer}.{part}"
        if norm["name"].endswith("output_norm"):
            hidden = taps[f"{prefix}.{'heads' if part == 'attention' else 'hidden'}.{s}"]
            return hidden.reshape(len(hidden), -1) @ self.tensor(layer, f"{part}.{'output' if part == 'attention' else 'down'}.weight").T
        stream = taps[f"residual.{layer}{'' if part == 'attention' else '.mid'}.{s}"]
        return stream + taps[f"{prefix}.output.{s}"]


def asymmetry(subject, layer, h):
    attention = subject.blocks[layer]["attention"]
    k, group = attention["head_width"], attention["heads"] // attention["kv_heads"]
    query = subject.tensor(layer, "attention.query.weight")[h * k:(h + 1) * k]
    key = subject.tensor(layer, "attention.key.weight")[h // group * k:(h // group + 1) * k]
    product = query.T @ key
    return numpy.linalg.norm((product - product.T) / 2) / numpy.linalg.norm(product)


def expected(subject, document, taps, count):
    """Everything of a document, from taps of `count` sequences."""
    means, together = Means(), [[] for _ in subject.blocks]
    for s in range(count):
        found = {}
        for point in document["points"]:
            name = f"{point['name']}.{s}"
            if name in taps:
                x = taps[name]
            else:
                x = subject.before(next(norm for norm in document["norms"] if norm["before"] == point["name"]), taps, s)
            found[point["name"]] = (x, *ranks(means, point["name"], x))
        for norm in document["norms"]:
            before, after = found[norm["before"]], found[norm["after"]]
            means.add(f"{norm['name']} rank_change", abs(after[1] - before[1]))
            means.add(f"{norm['name']} affine_rank_change", abs(after[2] - before[2]))
            hypotheses(means, norm["name"], norm["kind"], before[0])
        for layer, block in enumerate(subject.blocks):
            together[layer].append(heads(means, layer, block["attention"], taps[f"blocks.{layer}.attention.probabilities.{s}"],
                                         taps[f"blocks.{layer}.attention.heads.{s}"], subject.tensor(layer, "attention.output.weight")))
    return means, [rank(numpy.concatenate(rows))[0] for rows in together]


def compare(report, title, subject, document, means, corpus_ranks):
    def check(name, *problems):
        report.check(f"{title}: {name}", next((problem for problem in problems if problem), ""))

    measures = ("rank", "effective_rank", "stable_rank", "distance_to_rank_one", "affine_rank")
    for point in document["points"]:
        check(point["name"], *(means.problem(f"{point['name']} {measure}", point[measure]) for measure in measures))
    for norm in document["norms"]:
        problems = [means.problem(f"{norm['name']} {change}", norm[change]) for change in ("rank_change", "affine_rank_change")]
        for hypothesis in ("H1", "H2", "H4"):
            if f"{norm['name']} {hypothesis}" in means.values:
                problems.append(means.problem(f"{norm['name']} {hypothesis}", norm[hypothesis]["number"]))
                holds = sum(value > 1e-11 for value in means.values[f"{norm['name']} {hypothesis}"])
                problems.append("" if norm[hypothesis]["holds"] == holds else f"{hypothesis} holds {norm[hypothesis]['holds']}, expected {holds}")
            else:
                problems.append("" if norm[hypothesis]["holds"] is None else f"{hypothesis}: {norm[hypothesis]}")
        check(norm["name"], *problems)
    width = subject.architecture["width"]
    for layer in document["layers"]:
        n = layer["layer"]
        for h, head in enumerate(layer["heads"]):
            problems = [means.problem(f"{n}.{h} {key}", head[key]) for key in
                        ("entropy", "distance_to_uniform", "relative_entropy", "gap", "inverse_gap", "output_dimension")]
            wanted = asymmetry(subject, n, h)
            check(f"layer {n}, head {h}", *problems, "" if abs(head["asymmetry"] - wanted) < 1e-10 else f"asymmetry {head['asymmetry']}, expected {wanted}")
        for pair in layer["pairs"]:
            g, h = pair["heads"]
            check(f"layer {n}, heads {g} and {h}", *(means.problem(f"{n}.{g}.{h} {key}", pair[key]) for key in ("smallest_angle", "mean_angle", "alignment")))
        bound = 2 * width - corpus_ranks[n] if layer["mlp_width"] else None
        check(f"layer {n}", means.problem(f"{n} multi_head_rank", layer["multi_head_rank"]),
              means.problem(f"{n} recovery_ambiguity", layer["recovery_ambiguity"]),
              "" if layer["corpus_rank"] == corpus_ranks[n] else f"corpus rank {layer['corpus_rank']}, expected {corpus_ranks[n]}",
              "" if layer["width_bound"] == bound else f"width bound {layer['width_bound']}, expected {bound}")


def check_prefixes(report, title, subject, document, sequences):
    """σ1/σ2 of prefixes, each run by itself."""
    means = Means()
    wanted = [2**power for power in range(2, 10) if 2**power < max(map(len, sequences))]
    for tokens in wanted:
        prefixes = [ids[:tokens] for ids in sequences if len(ids) > tokens]
        (subject.work / "prefix.json").write_text(json.dumps(prefixes))
        taps = subject.run("--tokens", subject.work / "prefix.json")
        for layer in range(len(subject.blocks)):
            for s in range(len(prefixes)):
                for h, p in enumerate(taps[f"blocks.{layer}.attention.probabilities.{s}"]):
                    means.add(f"{layer}.{h} at {tokens}", gap(p)[0])
    for layer in document["layers"]:
        for h, head in enumerate(layer["heads"]):
            lengths = [context["tokens"] for context in head["gap_by_context"]]
            problems = [means.problem(f"{layer['layer']}.{h} at {context['tokens']}", context["gap"]) for context in head["gap_by_context"]]
            report.check(f"{title}: prefixes of layer {layer['layer']}, head {h}",
                         f"lengths {lengths}" if lengths != wanted else next(filter(None, problems), ""))


def main():
    report = Report("probes")
    random = numpy.random.default_rng(5)
    for number, (title, architecture) in enumerate(MODELS.items()):
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            subject = Subject(work, architecture, number)
            if title == "images":
                save_file({"pixel_values": random.standard_normal((5, 2, 8, 8))}, work / "pixels.safetensors")
                inputs, count = ("--inputs", work / "pixels.safetensors"), 5
            else:
                lengths = (260, 7, 300, 260) if title == "long sequences" else (20, 20, 31, 6, 1, 2, 20)
                sequences = [random.integers(0, 61, n).tolist() for n in lengths]
                (work / "ids.json").write_text(json.dumps(sequences))
                inputs, count = ("--tokens", work / "ids.json"), len(sequences)
            result = pare("probe", subject.folder, *inputs, "--json", "--quiet")
            report.check(f"{title}: pare probe", result.stderr if result.returncode else "")
            if result.returncode:
                continue
            document = json.loads(result.stdout)
            means, corpus_ranks = expected(subject, document, subject.run(*inputs), count)
            compare(report, title, subject, document, means, corpus_ranks)
            if title != "images":
                check_prefixes(report, title, subject, document, sequences)
    report.finish()


if __name__ == "__main__":
    main()
