#!/usr/bin/env python3
"""`pare export --to onnx`: onnx checks the file, and onnxruntime computes what `pare run` computes: every stored form, every task, every
pass; padding on both sides, prefill of any length and decoding with the cache, float32 and float16.

A row may be off by FACTOR times the noise that the certificate measured (what one rounding of every weight does, computed in the type
of the graph), and LAST_DIGITS: sums are taken in another order."""

import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from report import Report, ended, expect, pare  # noqa: E402  (the folder above is not a package)

REPORT = Report("export_onnx")
REPORT.peers("numpy", "safetensors.numpy", "onnx", "onnxruntime")
import numpy  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from native_models import CALLS, MODELS, PASSES, TOKENS, inputs_of  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

FACTOR, LAST_DIGITS = 4, {"float32": 2e-6, "float16": 2e-3}
IN_FLOAT16 = ["GPT-2's form", "Gemma's form", "slim caches", "shaped and gated", "ViT's form"]


def answers_of(folder, inputs, work):
    """By name, one tensor for each sequence, without its padding."""
    save_file(inputs, work / "in.safetensors")
    result = pare("run", folder, "--inputs", work / "in.safetensors", "-o", work / "out.safetensors", "--force")
    assert result.returncode == 0, result.stderr
    return load_file(work / "out.safetensors")


NAMES = {"logits": "logits", "hidden": "last_hidden_state", "pooled": "pooled", "sequence_logits": "sequence_logits"}


def gap(found, wanted, mask):
    """The largest error of a row, of the largest number in it; `found` by the graph's names, for the whole batch."""
    worst = 0
    for name, theirs in wanted.items():
        kind, row = name.rsplit(".", 1)
        ours = found[NAMES[kind]][int(row)].astype(numpy.float64)
        if theirs.ndim == 2 and mask is not None:
            ours = ours[mask[int(row)].astype(bool)]
        if ours.shape != theirs.shape:
            return numpy.inf
        error = numpy.abs(ours - theirs).max(-1) / numpy.abs(theirs).max(-1)
        worst = max(worst, float(numpy.nan_to_num(error, nan=numpy.inf).max()))
    return worst


class Session:
    """A graph in onnxruntime: told its past as it asks for it."""

    def __init__(self, file):
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.pasts = [name for name in self.inputs if name.startswith("past_key_values.")]

    def run(self, feed, past=None):
        feed = dict(feed)
        for name in self.pasts:
            shape = self.inputs[name].shape
            kind = numpy.float16 if "float16" in self.inputs[name].type else numpy.float32
            feed[name] = past[name.replace("past_key_values", "present")] if past else numpy.zeros((4, shape[1], 0, shape[3]), kind)
        if "pixel_values" in feed and "float16" in self.inputs["pixel_values"].type:
            feed["pixel_values"] = feed["pixel_values"].astype(numpy.float16)
        return dict(zip(self.outputs, self.session.run(None, feed)))

    def in_steps(self, inputs, cuts):
        """The same tokens in pieces, each after the cache of those before it."""
        pieces, past = [], None
        for begin, end in zip([0, *cuts], [*cuts, TOKENS]):
            piece = {name: tensor[:, begin:end] for name, tensor in inputs.items()} | {"attention_mask": inputs["attention_mask"][:, :end]}
            past = self.run(piece, past)
            pieces.append(past)
        joined = {name: numpy.concatenate([piece[name] for piece in pieces], 1) for name in ("logits",)}
        return pieces[-1] | joined


def check_file(case, file):
    """What the reference implementation says of it, and that it gives what it says it gives."""
    try:
        onnx.checker.check_model(str(file), full_check=True)
        loaded = onnx.load(str(file), load_external_data=False)
        inferred = onnx.shape_inference.infer_shapes(loaded, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:  # of many classes
        REPORT.check(f"{case}: onnx", f"{type(error).__name__}: {error}"[:600])
        return None
    REPORT.check(f"{case}: onnx", expect([output.type for output in inferred.graph.output], [output.type for output in loaded.graph.output]))
    return loaded


def kinds_of_cache(architecture):
    """What a decoder remembers of each layer."""
    blocks = [block for block in architecture["blocks"] for _ in range(block.get("repeat", 1))]
    kept = []
    for layer, number in enumerate(architecture.get("layers") or range(len(blocks))):
        t = blocks[number]["attention"]
        collapsed = t.get("scores") == t.get("values") == "collapsed"
        kinds = {"kv": ["key"] if collapsed else ["key", "value"], "k": ["key"], "v": ["value"], "x": ["input"]}[t.get("cache", "kv")]
        kept += [f"present.{layer}.{kind}" for kind in kinds]
    return kept


def names_expected(architecture):
    task, head = architecture.get("task", "causal_lm"), architecture.get("head", {})
    if task == "encoder":
        return ["last_hidden_state"] + ["pooled"] * (bool(head.get("transform")) and head.get("pool") != "none")
    names = ["logits"] + ["sequence_logits"] * bool(head.get("sequence"))
    looks_ahead = any(block["attention"].get("mask") == "full" for block in architecture["blocks"])
    return names + (kinds_of_cache(architecture) if task == "causal_lm" and not looks_ahead else [])


def check_steps(case, session, inputs, wanted, allowed, whole):
    """Any prefill, and then the rest at once or token by token."""
    mask = inputs["attention_mask"]
    for cuts in [[1], [9], list(range(6, TOKENS))]:
        found = session.in_steps(inputs, cuts)
        error = gap(found, {name: theirs for name, theirs in wanted.items() if name.startswith("logits")}, mask)
        REPORT.check(f"{case}: cut at {cuts}", f"{error:.3g} off, allowed {allowed:.3g}" if not error <= allowed else "")
    for name in session.pasts:  # the cache in steps is that of the whole, for every token that somebody sees
        name = name.replace("past_key_values", "present")
        apart = numpy.abs(found[name].astype(numpy.float64) - whole[name]) * mask[:, None, :, None]
        size = numpy.abs(whole[name].astype(numpy.float64)).max()
        REPORT.check(f"{case}: {name}", f"{apart.max() / size:.3g} apart" if not apart.max() <= 10 * allowed * size else "")


def check_graph(case, folder, source, architecture, work, dtype="float32"):
    """`source`: the model that the graph is compared with."""
    certificate = json.loads((folder / "certificate.json").read_text())
    REPORT.check(f"{case}: verdict", "" if certificate["verdict"] in ("within_noise", "equivalent") else certificate["verdict"])
    loaded = check_file(case, folder / "model.onnx")
    inputs = inputs_of(case, architecture)
    mask = inputs.get("attention_mask")
    wanted = answers_of(source, inputs, work)
    session = Session(folder / "model.onnx")
    allowed = FACTOR * certificate["noise_floor"]["max_relative_logit_error"] + LAST_DIGITS[dtype]
    whole = session.run(inputs)
    error = gap(whole, wanted, mask)
    REPORT.check(f"{case}: {dtype}", f"{error:.3g} off, allowed {allowed:.3g}" if not error <= allowed else "")
    if session.pasts and "by length" not in case:
        check_steps(case, session, inputs, wanted, allowed, whole)
    return loaded, session, inputs, wanted, allowed


def exported(case, source, folder, *options):
    result = pare("export", source, "-o", folder, "--to", "onnx", "--random", "2", "--budget", "1", "--force", *options)
    REPORT.check(f"{case}: export", ended(result))
    return result.returncode == 0


def init(name, architecture, work):
    (work / "architecture.json").write_text(json.dumps(architecture))
    folder = work / name.replace(" ", "-").replace("'", "")
    result = pare("init", work / "architecture.json", "-o", folder, "--generic")
    assert result.returncode == 0, result.stderr
    return folder


def check_model(name, architecture, work):
    source, folder = init(name, architecture, work), work / "graph"
    if not exported(name, source, folder):
        return
    loaded, session, inputs, wanted, allowed = check_graph(name, folder, source, architecture, work)
    expected = names_expected(architecture)
    REPORT.check(f"{name}: outputs", expect(sorted(session.outputs), sorted(expected)))
    REPORT.check(f"{name}: what it is asked", expect(
        list(session.inputs), [*inputs, *(out.replace("present", "past_key_values") for out in session.outputs if out.startswith("present"))]))
    if "by length" in name:  # the cache knows the angles of its day: steps that change no angles
        short = {key: tensor[:, :8] for key, tensor in inputs.items()}
        first = session.run({key: tensor[:, :5] for key, tensor in short.items()})
        second = session.run({key: tensor if key == "attention_mask" else tensor[:, 5:] for key, tensor in short.items()}, first)
        whole = session.run(short)
        error = numpy.abs(second["logits"] - whole["logits"][:, 5:])[[0, 1, 2]].max() / numpy.abs(whole["logits"]).max()
        REPORT.check(f"{name}: steps within the first context", f"{error:.3g} off" if not error <= 1e-4 else "")
    if name in IN_FLOAT16 and exported(f"{name} in float16", source, folder, "--dtype", "float16"):
        check_graph(f"{name} in float16", folder, source, architecture, work, "float16")


def check_disturbed(work):
    """A comparison that cannot fail is worth nothing: one number of one weight off by a thousandth must show."""
    name = "GPT-2's form"
    architecture, source = MODELS[name], work / "GPT-2s-form"
    exported("disturbed", source, work / "graph")
    inputs = inputs_of(name, architecture)
    wanted = answers_of(source, inputs, work)
    graph = onnx.load(str(work / "graph" / "model.onnx"))
    [weight] = [tensor for tensor in graph.graph.initializer if tensor.name == "blocks.1.mlp.down.weight"]
    numbers = numpy.frombuffer(weight.raw_data, numpy.float32).copy()
    numbers[0] += 1e-3
    weight.raw_data = numbers.tobytes()
    onnx.save(graph, str(work / "disturbed.onnx"))
    error = gap(Session(work / "disturbed.onnx").run(inputs), wanted, inputs["attention_mask"])
    REPORT.check("one weight off by a thousandth", f"not noticed: {error:.3g}" if error < 1e-5 else "")


def check_outside(work):
    """Weights beside the graph: asked for by a small size, as nobody draws a gigabyte for a test."""
    name = "GPT-2's form"
    exported("weights outside", work / "GPT-2s-form", work / "outside", "--shard-size", "1KB")
    if not (work / "outside" / "model.onnx.data").exists():
        REPORT.skip("weights outside", "--shard-size does not put them there")
        return
    loaded, *_ = check_graph("weights outside", work / "outside", work / "GPT-2s-form", MODELS[name], work)
    places = [{entry.key: entry.value for entry in tensor.external_data} for tensor in loaded.graph.initializer if tensor.external_data]
    REPORT.check("they begin at pages", expect([place["offset"] for place in places if int(place["offset"]) % 4096], []))
    REPORT.check("all of the large ones are there", expect(
        [tensor.name for tensor in loaded.graph.initializer if not tensor.external_data and len(tensor.raw_data) >= 1024], []))


def check_passes(work):
    known = [each["id"] for each in json.loads(pare("passes", "--json").stdout)["passes"]]
    for name in known:
        if name not in PASSES:
            REPORT.check(f"{name}", "no model here for this pass")
            continue
        source = init(name, PASSES[name], work)
        result = pare("rewrite", source, "-o", work / "rewritten", "--passes", name, "--allow-growth", "--no-verify", "--force")
        REPORT.check(f"{name}: applies", ended(result))
        if result.returncode == 0 and exported(name, work / "rewritten", work / "graph"):
            architecture = json.loads((work / "rewritten" / "config.json").read_text())["architecture"]
            check_graph(name, work / "graph", work / "rewritten", architecture, work)


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name, architecture in MODELS.items():
            if len(sys.argv) < 2 or sys.argv[1] in name:
                check_model(name, architecture, work)
        if len(sys.argv) < 2:
            check_disturbed(work)
            check_outside(work)
            check_passes(work)
    REPORT.finish()


if __name__ == "__main__":
    main()
