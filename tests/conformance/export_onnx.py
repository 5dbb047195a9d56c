#!/usr/bin/env python3
"""`pare export --to onnx`: onnx checks the file, and onnxruntime computes what `pare run` computes: every stored form, every task, every
pass; padding on both sides, prefill of any length and decoding with the cache, float32 and float16. An argument chooses models by name.

A row may be off by FACTOR times the noise that the certificate measured: what one rounding of every weight does, to which a runtime adds
one of every activation (measured: up to 2.9 times). Short sums of large numbers have less noise than digits: eight roundings of float32
are allowed besides, where noise is smaller than that."""

import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from report import SHARED, Report, ended, expect, pare  # noqa: E402  (the folder above is not a package)

REPORT = Report("export_onnx")
REPORT.peers("numpy", "safetensors.numpy", "onnx", "onnxruntime")
import numpy  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from native_models import CALLS, MODELS, PASSES, TOKENS, inputs_of  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

FACTOR, LAST_DIGITS = 4, 8 * 2.0**-23
FIRST = "GPT-2's form"
IN_FLOAT16 = [FIRST, "Gemma's form", "slim caches", "shaped and gated", "ViT's form"]
NAMES = {"logits": "logits", "hidden": "last_hidden_state", "pooled": "pooled", "sequence_logits": "sequence_logits"}


def answers_of(folder, inputs, work):
    """What pare says, by name: one tensor for each sequence, without its padding."""
    save_file(inputs, work / "in.safetensors")
    result = pare("run", folder, "--inputs", work / "in.safetensors", "-o", work / "out.safetensors", "--force")
    assert result.returncode == 0, result.stderr
    return load_file(work / "out.safetensors")


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


def within(case, error, allowed):
    REPORT.check(case, f"{error:.3g} off, allowed {allowed:.3g}" if not error <= allowed else "")


class Session:
    """A graph in onnxruntime: told its past as it asks for it."""

    def __init__(self, file, optimised=None):
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        if optimised:
            options.optimized_model_filepath = str(optimised)
        self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.pasts = [name for name in self.inputs if name.startswith("past_key_values.")]

    def feed(self, inputs, past=None):
        feed, batch = dict(inputs), len(next(iter(inputs.values())))
        for name in self.pasts:
            shape = self.inputs[name].shape
            kind = numpy.float16 if "float16" in self.inputs[name].type else numpy.float32
            feed[name] = past[name.replace("past_key_values", "present")] if past else numpy.zeros((batch, shape[1], 0, shape[3]), kind)
        if "pixel_values" in feed and "float16" in self.inputs["pixel_values"].type:
            feed["pixel_values"] = feed["pixel_values"].astype(numpy.float16)
        return feed

    def run(self, inputs, past=None):
        return dict(zip(self.outputs, self.session.run(None, self.feed(inputs, past))))

    def in_steps(self, inputs, cuts):
        """The same tokens in pieces, each after the cache of those before it."""
        pieces, past = [], None
        for begin, end in zip([0, *cuts], [*cuts, TOKENS]):
            piece = {name: tensor[:, begin:end] for name, tensor in inputs.items()} | {"attention_mask": inputs["attention_mask"][:, :end]}
            past = self.run(piece, past)
            pieces.append(past)
        return pieces[-1] | {"logits": numpy.concatenate([piece["logits"] for piece in pieces], 1)}


def check_file(case, file):
    """What the reference implementation says of it, and that it gives what it says it gives."""
    try:
        onnx.checker.check_model(str(file), full_check=True)
        loaded = onnx.load(str(file), load_external_data=False)
        inferred = onnx.shape_inference.infer_shapes(loaded, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:  # of many classes
        REPORT.check(f"{case}: onnx", f"{type(error).__name__}: {error}"[:600])
        return
    REPORT.check(f"{case}: onnx", expect([output.type for output in inferred.graph.output], [output.type for output in loaded.graph.output]))


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
    mask, logits = inputs["attention_mask"], {name: theirs for name, theirs in wanted.items() if name.startswith("logits")}
    for cuts in [[1], [9], list(range(6, TOKENS))]:
        found = session.in_steps(inputs, cuts)
        within(f"{case}: cut at {cuts}", gap(found, logits, mask), allowed)
    for name in session.pasts:  # the cache in steps is that of the whole, for every token that somebody sees
        name = name.replace("past_key_values", "present")
        apart = numpy.abs(found[name].astype(numpy.float64) - whole[name]) * mask[:, None, :, None]
        size = numpy.abs(whole[name].astype(numpy.float64)).max()
        within(f"{case}: {name}", apart.max() / size, 10 * allowed)


def check_steps_by_length(case, session, inputs):
    """A cache keeps the angles of its day: steps that change none."""
    short = {name: tensor[:, :8] for name, tensor in inputs.items()}
    first = session.run({name: tensor[:, :5] for name, tensor in short.items()})
    second = session.run({name: tensor if name == "attention_mask" else tensor[:, 5:] for name, tensor in short.items()}, first)
    whole = session.run(short)["logits"][[0, 1, 2]]
    within(f"{case}: steps within the first context", numpy.abs(second["logits"][[0, 1, 2]] - whole[:, 5:]).max() / numpy.abs(whole).max(), 1e-5)


def check_graph(case, folder, inputs, wanted, dtype="float32"):
    """The session, or nothing where there is none."""
    try:
        return compare_graph(case, folder, inputs, wanted, dtype)
    except Exception as error:  # of many classes: what a runtime says of a file that it does not take
        REPORT.check(f"{case}: it runs", f"{type(error).__name__}: {error}"[:600])


def compare_graph(case, folder, inputs, wanted, dtype):
    certificate = json.loads((folder / "certificate.json").read_text())
    REPORT.check(f"{case}: verdict", "" if certificate["verdict"] in ("within_noise", "equivalent") else certificate["verdict"])
    check_file(case, folder / "model.onnx")
    mask, session = inputs.get("attention_mask"), Session(folder / "model.onnx")
    allowed = FACTOR * certificate["noise_floor"]["max_relative_logit_error"] + (LAST_DIGITS if dtype == "float32" else 0)
    whole = session.run(inputs)
    within(f"{case}: {dtype}", gap(whole, wanted, mask), allowed)
    first = {name: theirs for name, theirs in wanted.items() if name.endswith(".0")}
    within(f"{case}: alone", gap(session.run({name: tensor[:1] for name, tensor in inputs.items()}), first, mask), allowed)
    if session.pasts and "by length" not in case:
        check_steps(case, session, inputs, wanted, allowed, whole)
    if dtype == "float16":  # which onnxruntime computes in float32 on a CPU, and numpy does not
        reference = ReferenceEvaluator(str(folder / "model.onnx")).run(None, session.feed(inputs))
        REPORT.check(f"{case}: type", expect(reference[0].dtype, numpy.dtype("float16")))
        within(f"{case}: float16 throughout", gap(dict(zip(session.outputs, reference)), wanted, mask), allowed)
    return session


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


def check_axes(session):
    """What people read off the file: which axes may vary, and which vary together."""
    cache = ["batch_size", 4, "past_sequence_length", 6], ["batch_size", 4, "total_sequence_length", 6]
    wanted = {"input_ids": ["batch_size", "sequence_length"], "attention_mask": ["batch_size", "total_sequence_length"],
              "logits": ["batch_size", "sequence_length", 50]}
    wanted |= {f"{name}.{layer}.{kind}": axes for name, axes in zip(("past_key_values", "present"), cache) for layer in (0, 1) for kind in ("key", "value")}
    found = {value.name: value.shape for value in [*session.session.get_inputs(), *session.session.get_outputs()]}
    REPORT.check("axes", expect(found, wanted))


def check_model(name, architecture, work):
    source, folder = init(name, architecture, work), work / "graph"
    if not exported(name, source, folder):
        return
    inputs = inputs_of(name, architecture)
    wanted = answers_of(source, inputs, work)
    session = check_graph(name, folder, inputs, wanted)
    if not session:
        return
    REPORT.check(f"{name}: outputs", expect(sorted(session.outputs), sorted(names_expected(architecture))))
    REPORT.check(f"{name}: what it is asked", expect(
        list(session.inputs), [*inputs, *(out.replace("present", "past_key_values") for out in session.outputs if out.startswith("present"))]))
    if "by length" in name:
        check_steps_by_length(name, session, inputs)
    if name == FIRST:
        check_axes(session)
        check_disturbed(folder / "model.onnx", inputs, wanted, work)
        check_outside(source, inputs, wanted, work)
        check_too_large(source, work)
    if name in IN_FLOAT16 and exported(f"{name} in float16", source, folder, "--dtype", "float16"):
        check_graph(f"{name} in float16", folder, inputs, wanted, "float16")
    if name == "slim caches":
        check_written_out(folder, work)


def check_disturbed(file, inputs, wanted, work):
    """A comparison that cannot fail is worth nothing: one number of one weight off by a thousandth must show."""
    graph = onnx.load(str(file))
    [weight] = [tensor for tensor in graph.graph.initializer if tensor.name == "blocks.1.mlp.down.weight"]
    numbers = numpy.frombuffer(weight.raw_data, numpy.float32).copy()
    numbers[0] += 1e-3
    weight.raw_data = numbers.tobytes()
    onnx.save(graph, str(work / "disturbed.onnx"))
    error = gap(Session(work / "disturbed.onnx").run(inputs), wanted, inputs["attention_mask"])
    REPORT.check("one weight off by a thousandth", f"not noticed: {error:.3g}" if error < 1e-5 else "")


def check_outside(source, inputs, wanted, work):
    """Weights beside the graph: asked for by a small size, as nobody draws a gigabyte for a test."""
    case, folder = "weights outside", work / "outside"
    if not exported(case, source, folder, "--shard-size", "1KB"):
        return
    check_graph(case, folder, inputs, wanted)
    tensors = onnx.load(str(folder / "model.onnx"), load_external_data=False).graph.initializer
    places = [{entry.key: entry.value for entry in tensor.external_data} for tensor in tensors if tensor.external_data]
    REPORT.check(f"{case}: their file", expect({place["location"] for place in places}, {"model.onnx.data"}))
    REPORT.check(f"{case}: they begin at pages", expect([place["offset"] for place in places if int(place["offset"]) % 4096], []))
    inside = [tensor.name for tensor in tensors if not tensor.external_data and len(tensor.raw_data) >= 1024]
    REPORT.check(f"{case}: all of the large ones are there", expect(inside, []))
    (folder / "model.onnx.data").rename(folder / "elsewhere")
    try:
        Session(folder / "model.onnx")
        REPORT.check(f"{case}: they are read", "onnxruntime does without")
    except Exception as error:  # of its own classes
        REPORT.check(f"{case}: they are read", "" if "model.onnx.data" in str(error) else str(error))


def check_too_large(source, work):
    """Where float16 would make infinities, nothing is written; float32 is."""
    tensors = load_file(source / "model.safetensors")
    for name in ("blocks.1.mlp.up.weight", "blocks.1.mlp.down.weight"):
        tensors[name] = tensors[name] * numpy.float32(3000)
    folder = work / "large"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    exported("large numbers in float32", folder, work / "graph-of-large")
    result = pare("export", folder, "-o", work / "never", "--to", "onnx", "--dtype", "float16")
    REPORT.check("large numbers in float16", ended(result, 1, ["beyond what float16 can hold", "export it in float32", "blocks.1.mlp"]))
    REPORT.check("large numbers: nothing is left", "" if not (work / "never").exists() else "something is there")


def check_written_out(folder, work):
    """A shrunk matrix is made whole when a session is, as its note says, and not in each run."""
    Session(folder / "model.onnx", work / "optimised.onnx")
    nodes = onnx.load(str(work / "optimised.onnx")).graph.node
    left = [node.name for node in nodes if node.op_type in ("Expand", "GatherElements", "Where") and node.name.startswith("blocks.")]
    REPORT.check("shrunk matrices in float16 are written out once", expect(left, []))


def check_passes(work):
    known, sources = [each["id"] for each in json.loads(pare("passes", "--json").stdout)["passes"]], {}
    for name in known:
        if name not in PASSES:
            REPORT.check(f"{name}", "no model here for this pass")
            continue
        architecture = json.dumps(PASSES[name])
        source = sources[architecture] = sources.get(architecture) or init(name, PASSES[name], work)
        result = pare("rewrite", source, "-o", work / "rewritten", "--passes", CALLS[name], "--allow-growth", "--no-verify", "--force")
        REPORT.check(f"{name}: applies", ended(result))
        if result.returncode == 0 and exported(name, work / "rewritten", work / "graph"):
            inputs = inputs_of(name, PASSES[name])
            check_graph(name, work / "graph", inputs, answers_of(work / "rewritten", inputs, work))


def check_story(work):
    """A trained model continues a text with the same tokens: a prompt, then one token at a time."""
    model, prompt = SHARED / "models" / "stories260K", [1, 403, 407, 261, 378]
    if not model.exists():
        return REPORT.skip("stories260K", "not in shared/models")
    (work / "prompt.json").write_text(json.dumps([prompt]))
    said = pare("generate", model, "--tokens", work / "prompt.json", "--max-tokens", "100", "--json")
    REPORT.check("stories260K: generate", ended(said))
    for dtype in ("float32", "float16"):
        if not exported(f"stories260K in {dtype}", model, work / "story", "--dtype", dtype):
            continue
        session = Session(work / "story" / "model.onnx")
        ids, new, past = list(prompt), prompt, None
        for _ in range(100):
            past = session.run({"input_ids": numpy.array([new]), "attention_mask": numpy.ones((1, len(ids)), numpy.int64)}, past)
            new = [int(past["logits"][0, -1].argmax())]
            ids += new
        REPORT.check(f"stories260K in {dtype}", expect(ids[len(prompt):], json.loads(said.stdout)["generations"][0]["tokens"]))


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name, architecture in MODELS.items():
            if len(sys.argv) < 2 or sys.argv[1] in name:
                check_model(name, architecture, work)
        if len(sys.argv) < 2:
            check_passes(work)
            check_story(work)
    REPORT.finish()


if __name__ == "__main__":
    main()
