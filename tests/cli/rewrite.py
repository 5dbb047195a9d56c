#!/usr/bin/env python3
"""`pare rewrite`: what it promises, what it writes, what it refuses, and that its input stays as it was."""

import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "error"))
from files import read_tensors, write_tensors
from report import CERTIFICATE, PARE, Report, ended, expect, pare

WIDTH, VOCAB, LAYERS = 16, 40, 3
BIASES = {"query": True, "key": True, "value": True, "output": True}


def architecture(skips=(True, False), tied=True, norm=None, value_bias_only=False, wiring="serial"):
    """Attention and MLP of three blocks, with the skips asked for: (True, False) is what theorem 4.2 is about."""
    bias = {"value": True} if value_bias_only else BIASES
    return {
        "width": WIDTH, "vocab": VOCAB, "context": 12, "embedding": {"position": "learned"}, "head": {"tied": tied},
        "blocks": [{"repeat": LAYERS, "wiring": wiring,
                    "attention": {"heads": 2, "kv_heads": 1 if value_bias_only else 2, "head_width": 8, "bias": bias,
                                  "skip": skips[0], "norm": norm},
                    "mlp": {"width": 24, "activation": "gelu", "bias": {"up": True, "down": True}, "skip": skips[1],
                            "norm": norm}}],
        "final_norm": norm,
    }


MODELS = {  # name: architecture, stored type
    "plain": (architecture(), "float64"),
    "skipless": (architecture((False, False), tied=False), "float32"),
    "residual": (architecture((True, True)), "float64"),
    "valued": (architecture((True, True), norm={"kind": "rms"}, value_bias_only=True), "float64"),
    "bare": ({"width": 8, "vocab": 20, "context": 8, "blocks": [
        {"attention": {"heads": 2, "head_width": 4, "value": "identity", "output": "identity", "rope": {}},
         "mlp": {"width": 8, "activation": "gelu"}}], "head": {"tied": True}}, "float64"),
    "normed": (architecture((True, True), norm={"kind": "layer", "bias": True}), "float32"),
}
COMPANIONS = ["tokenizer.json", "tokenizer_config.json", "merges.txt", "vocab.json", "special_tokens_map.json",
              "generation_config.json", "chat_template.jinja", "LICENSE", "tokenizer.model", "notes.txt"]
LEFT = ["optimizer.pt", "scheduler.pt", "trainer_state.json", "rng_state.pth"]
SIDE = ["path", "family", "parameters", "bytes", "dtype", "files", "ignored_keys", "unused_tensors"]
METRICS = ["max_relative_logit_error", "mean_kl_nats", "max_kl_nats", "top1_agreement", "reference_nll_nats",
           "candidate_nll_nats"]
PASS = ["id", "options", "applies", "reasons", "saved_parameters", "saved_bytes", "predicted_error", "notes",
        "preconditions", "condition_numbers", "neutral_parameters"]


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def audit(work, name):
    return json.loads(pare("audit", name, "--json", cwd=work).stdout)


def saving(document, passes):
    return next(entry["saved_parameters"] for entry in document["passes"] if entry["id"] == passes)


def doubles(tensor):
    return list(struct.unpack(f"<{len(tensor[2]) // 8}d", tensor[2]))


def changed(work, source, name, change):
    """A copy of a float64 model with its values (tensor name -> numbers, changed in place) changed."""
    shutil.copytree(work / source, work / name)
    path = work / name / "model.safetensors"
    tensors = {key: (tensor[1], doubles(tensor)) for key, tensor in read_tensors(path).items()}
    change({key: values for key, (_, values) in tensors.items()})
    write_tensors(path, {key: ("F64", shape, struct.pack(f"<{len(v)}d", *v)) for key, (shape, v) in tensors.items()})


def nearly_singular(factor):
    """The first input of block 1's projections counts next to nothing: no choice of bases for the heads mends that."""
    def change(tensors):
        for matrix in ("query", "key", "value"):
            values = tensors[f"blocks.1.attention.{matrix}.weight"]
            for row in range(WIDTH):
                values[WIDTH * row] *= factor
    return change


def check_strict(report, work):
    source = work / "plain"
    for name in COMPANIONS + LEFT:
        (source / name).write_text(f"this is {name}\n")
    before, promised = hashes(source), audit(work, "plain")
    result = pare("rewrite", "plain", "-o", "out", "--passes", "eliminate_projection", "--json", cwd=work)
    report.check("rewrite", ended(result))
    certificate = json.loads(result.stdout)
    report.check("--json is the certificate", expect(json.loads((work / "out" / "certificate.json").read_text()), certificate))
    after = audit(work, "out")
    report.check("the promised parameters went", expect(
        promised["parameters"] - after["parameters"], saving(promised, "eliminate_projection")))
    report.check("one matrix a layer went", expect(saving(promised, "eliminate_projection"), LAYERS * WIDTH * WIDTH))
    stored = sum(len(tensor[2]) // 8 for tensor in read_tensors(work / "out" / "model.safetensors").values())
    report.check("the file holds that many", expect(stored, after["parameters"]))
    report.check("verify", ended(pare("verify", "plain", "out", cwd=work), 0, ["verdict: proved"]))
    report.check("the input is unchanged", expect(hashes(source), before))

    report.check("certificate", expect(list(certificate), CERTIFICATE))
    for side, folder in (("reference", "plain"), ("candidate", "out")):
        report.check(f"certificate, {side}", expect(list(certificate[side]), SIDE))
        files = {name: hash for name, hash in hashes(work / folder).items() if name in ("config.json", "model.safetensors")}
        report.check(f"hashes of the {side} as hashlib's", expect(certificate[side]["files"], files))
        report.check(f"path and parameters of the {side}", expect(
            [certificate[side]["path"], certificate[side]["parameters"]], [folder, audit(work, folder)["parameters"]]))
    report.check("metrics", expect(list(certificate["metrics"]), METRICS))
    report.check("noise floor", expect(list(certificate["noise_floor"]), ["dtype", *METRICS]))
    [step] = certificate["passes"]
    report.check("its pass", expect([list(step), step["id"]], [PASS, "eliminate_projection"]))
    measured = [p for p in step["preconditions"] if p["measured"] is not None and p["measured"] <= p["limit"]]
    report.check("preconditions are measured", "" if len(measured) == len(step["preconditions"]) >= LAYERS else f"{step['preconditions']}")
    report.check("condition numbers", expect(sum(c["chosen"] for c in step["condition_numbers"]), LAYERS))
    predicted, error = certificate["predicted_error"], certificate["metrics"]["max_relative_logit_error"]
    report.check("the error is as predicted", "" if 0 < error < 100 * predicted and predicted < 1e-10 else f"{error}, {predicted}")
    report.check("verdict", expect(certificate["verdict"], "proved"))

    for name in COMPANIONS:
        copy = work / "out" / name
        report.check(f"{name} is copied", expect(copy.exists() and copy.read_text(), f"this is {name}\n"))
    extra = sorted(set(hashes(work / "out")) - set(COMPANIONS) - {"config.json", "model.safetensors", "certificate.json"})
    report.check("nothing else is copied", expect(extra, []))
    report.check("what no longer fits is named", ended(result, 0, [f"{', '.join(sorted(LEFT))} were not copied: training state"]))


def check_ids_of_texts(report, work):
    """generate asks config.json with which tokens texts begin and end, where no other file says so."""
    source = work / "ending"
    shutil.copytree(work / "plain", source)
    ids = {"bos_token_id": 1, "eos_token_id": [2, 3]}
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **ids, "pad_token_id": None}))
    report.check("ids of texts", ended(pare("rewrite", "ending", "-o", "ended", "--passes", "eliminate_projection", cwd=work)))
    written = json.loads((work / "ended" / "config.json").read_text())
    report.check("ids of texts are kept", expect({key: written.get(key) for key in [*ids, "pad_token_id"]}, {**ids, "pad_token_id": None}))


def check_bytes(report, work):
    """The same twice, in folders of its own so that the certificate names the same paths."""
    for run in ("first", "second"):
        (work / run).mkdir()
        result = pare("rewrite", "../skipless", "-o", "out", "--passes", "merge_skipless", "--shard-size", "3KB", "--threads", "1", cwd=work / run)
        report.check(f"{run} run, in shards", ended(result))
    first, second = hashes(work / "first" / "out"), hashes(work / "second" / "out")
    report.check("the same bytes twice", expect(first, second))
    shards = sorted(name for name in first if name.startswith("model-"))
    report.check("shards and their index", "" if len(shards) > 2 and "model.safetensors.index.json" in first else f"{list(first)}")
    report.check("shards verify", ended(pare("verify", "skipless", "first/out", cwd=work)))


def check_auto(report, work):
    alone = audit(work, "skipless")
    result = pare("rewrite", "skipless", "-o", "auto", "--passes", "auto", "--json", cwd=work)
    saved = alone["parameters"] - audit(work, "auto")["parameters"] if result.returncode == 0 else 0
    best = max(entry["saved_parameters"] for entry in alone["passes"])
    report.check("auto saves what the audit promises", ended(result) or expect(saved, alone["removable"]))
    report.check("no less than the best pass alone", "" if saved >= best > 0 else f"{saved}, alone {best}")

    # A norm's bias goes while its readers still have biases to take it: first, then those of keys and values.
    result = pare("rewrite", "normed", "-o", "auto-normed", "--passes", "auto", "--json", "--no-verify", cwd=work)
    steps = json.loads(result.stdout)["passes"][:3] if result.returncode == 0 else []  # and then heads shrink
    saved = sum(step["saved_parameters"] for step in steps)
    report.check("auto takes the better order", ended(result) or expect(saved, LAYERS * (4 * WIDTH + 2 * WIDTH)))
    changed(work, "plain", "singular", nearly_singular(1e-6))
    changed(work, "plain", "hopeless", nearly_singular(1e-12))
    ask = ["--passes", "eliminate_projection", "--no-verify"]
    result = pare("rewrite", "singular", "-o", "kept", *ask, "--max-error", "1e-10", cwd=work)
    report.check("more than --max-error is refused", ended(result, 2, ["predicted error", "allowed 1e-10", "--max-error"]))
    report.check("refusals write nothing", expect((work / "kept").exists(), False))
    report.check("--max-error allows it", ended(pare("rewrite", "singular", "-o", "risky", *ask, "--max-error", "1e-8", cwd=work)))
    for name, error, why in (("singular", "1e-10", "stays: its condition number"), ("hopeless", "1", "")):
        result = pare("rewrite", name, "-o", f"auto-{name}", "--passes", "auto", "--max-error", error, "--json", cwd=work)
        steps = json.loads(result.stdout)["passes"] if result.returncode == 0 else []
        step = next((s for s in steps if s["id"] == "eliminate_projection"), {"condition_numbers": []})
        chosen = sorted(c["matrix"].split(".")[1] for c in step["condition_numbers"] if c["chosen"])
        report.check(f"auto leaves the {name} layer out", ended(result) or expect(chosen, ["0", "2"]))
        said = step["notes"] if why else [f"{r['where']} {r['expected']} {r['found']}" for r in step["reasons"]]
        report.check(f"and says so of the {name} one", "" if any("blocks.1.attention" in text and why in text for text in said) else f"{said}")
    result = pare("rewrite", "bare", "-o", "kept", "--passes", "auto", cwd=work)
    report.check("auto with nothing to save", ended(result, 2, ["no pass saves anything", "pare audit"]))


def check_growth(report, work):
    for name, passes, words in (("valued", "fold_value_bias", ["output biases have to be created"]),
                                ("residual", "eliminate_projection", ["the head must be untied", "640 parameters more"])):
        before = audit(work, name)
        result = pare("rewrite", name, "-o", f"{name}-grown", "--passes", passes, cwd=work)
        report.check(f"{passes} grows {name}", ended(result, 2, ["--allow-growth", *words]))
        report.check(f"{name}: nothing is written", expect((work / f"{name}-grown").exists(), False))
        result = pare("rewrite", name, "-o", f"{name}-grown", "--passes", passes, "--allow-growth", cwd=work)
        report.check(f"{name} with --allow-growth", ended(result, 0, ["proved", *words]))
        more = audit(work, f"{name}-grown")["parameters"] - before["parameters"]
        report.check(f"{name}: as audited, and more", "" if more == -saving(before, passes) > 0 else f"{more}, {saving(before, passes)}")
    result = pare("rewrite", "residual", "-o", "kept", "--passes", "eliminate_projection,auto", cwd=work)
    report.check("auto stands alone", ended(result, 1, ["'auto'"]))


def check_approximate(report, work):
    """Another function only where somebody asked for one, said how far off, and is told that it is one."""
    nearly = ["rewrite", "bare", "-o", "nearly", "--allow-growth", "--passes", "lower_mlp_to_heads{approximate=gelu}"]
    report.check("approximate: not unasked", ended(pare(*nearly, cwd=work), 2, ["is approximate", "--max-error says"]))
    report.check("approximate: not unmeasured", ended(pare(*nearly, "--max-error", 1, "--no-verify", cwd=work), 2, ["--no-verify"]))
    report.check("approximate: not further off", ended(pare(*nearly, "--max-error", 1e-9, cwd=work), 3, ["of an approximate rewrite is", "Nothing was written"]))
    report.check("approximate: nothing was written", "" if not (work / "nearly").exists() else "it was")
    kept = pare(*nearly, "--max-error", 1, cwd=work)
    report.check("approximate: kept and said", ended(kept, 0, ["approximate: GELU(z)", "approximate, not the same function"]))
    report.check("approximate: nothing is called the same", "" if not any(w in kept.stdout for w in ("proved", "equivalent", "within_noise")) else kept.stdout)
    certificate = json.loads((work / "nearly" / "certificate.json").read_text())
    said = certificate["approximate"]
    report.check("approximate: its certificate", expect(
        [certificate["verdict"], said["max_error"], said["measured_error"], [p["id"] for p in said["passes"]]],
        ["different", 1, certificate["metrics"]["max_relative_logit_error"], ["lower_mlp_to_heads"]]))
    report.check("approximate: verify sees it", ended(pare("verify", "bare", "nearly", cwd=work), 3, ["verdict: different"]))
    report.check("approximate: a sharpness in words", ended(
        pare("rewrite", "bare", "-o", "no", "--passes", "lower_mlp_to_heads{sharpness=much}", cwd=work), 1, ["expected a whole number"]))


def kinds(folder):
    return {tensor[0] for tensor in read_tensors(folder / "model.safetensors").values()}


def check_types(report, work):
    for dtype, kind in (("keep", "F32"), ("float64", "F64"), ("bfloat16", "BF16"), ("float16", "F16")):
        result = pare("rewrite", "skipless", "-o", f"as-{dtype}", "--passes", "merge_skipless", "--dtype", dtype,
                      "--max-error", "1", cwd=work)
        wrong = ended(result, 0, ["proved"])
        report.check(f"--dtype {dtype}", wrong or expect(kinds(work / f"as-{dtype}"), {kind}))

    def huge(tensors):
        tensors["blocks.1.mlp.down.bias"][3] = 70000.0
    changed(work, "valued", "huge", huge)
    result = pare("rewrite", "huge", "-o", "kept", "--passes", "fold_norm_gain", "--dtype", "float16", cwd=work)
    report.check("float16 would overflow", ended(result, 2, ["'blocks.1.mlp.down.bias'", "7e+04", "65504"]))
    result = pare("rewrite", "huge", "-o", "huge-16", "--passes", "fold_norm_gain", "--dtype", "bfloat16", "--no-verify", cwd=work)
    report.check("bfloat16 would not", ended(result))
    left = sorted(path.name for path in work.iterdir() if path.name.startswith(".") or path.name == "kept")
    report.check("nothing is left of it", expect(left, []))


def check_compat(report, work):
    """Of a native model: every tensor it had, the removed one an identity."""
    result = pare("rewrite", "plain", "-o", "compat", "--passes", "eliminate_projection{target=q},drop_key_bias",
                  "--form", "compat", cwd=work)
    report.check("compat", ended(result, 0, ["proved"]))
    old, new = (read_tensors(work / name / "model.safetensors") for name in ("plain", "compat"))
    report.check("every tensor is there", expect({n: t[:2] for n, t in new.items()}, {n: t[:2] for n, t in old.items()}))
    identity = [float(row == column) for row in range(WIDTH) for column in range(WIDTH)]
    for block in range(LAYERS):
        name = f"blocks.{block}.attention."
        report.check(f"query {block} is the identity", expect(doubles(new[name + "query.weight"]) == identity, True))
        report.check(f"key bias {block} is zero", expect(set(doubles(new[name + "key.bias"])), {0.0}))
    config = json.loads((work / "compat" / "config.json").read_text())
    report.check("the same architecture", expect(config, json.loads((work / "plain" / "config.json").read_text())))
    result = pare("rewrite", "normed", "-o", "normed-compat", "--passes", "fold_norm_gain", "--form", "compat", cwd=work)
    report.check("gains of one", ended(result) or expect(
        set(struct.unpack(f"<{WIDTH}f", read_tensors(work / "normed-compat" / "model.safetensors")
                          ["blocks.0.attention.norm.weight"][2])), {1.0}))


def check_dumps(report, work):
    """The model after each pass, as a folder that every command reads; none of them is called verified."""
    for form, passes, name in (("strict", "auto", "skipless"), ("compat", "fold_norm_gain,drop_key_bias", "normed")):
        out = f"dumped-{form}"
        result = pare("rewrite", name, "-o", out, "--passes", passes, "--form", form, "--dump-after", "all", cwd=work)
        taken = [step["id"] for step in json.loads((work / out / "certificate.json").read_text())["passes"]] if result.returncode == 0 else []
        dumps = [f"{out}.after-{number}-{id}" for number, id in enumerate(taken, 1)]
        report.check(f"{form}: each is named", ended(result, 0, [f"also wrote {dump}, not verified" for dump in dumps]))
        report.check(f"{form}: and nothing else is there", expect(sorted(path.name for path in work.glob(f"{out}.*")), sorted(dumps)))
        for dump in dumps:
            report.check(f"verify {dump}", ended(pare("verify", name, dump, cwd=work), 0, ["verdict: proved"]))
        weights = [hashes(work / folder)["model.safetensors"] for folder in (dumps[-1], out)]
        report.check(f"{form}: the last is the output", "" if len(dumps) > 1 and weights[0] == weights[1] else f"{dumps}, {weights}")
    one = ["rewrite", "normed", "-o", "one", "--passes", "fold_norm_gain,drop_key_bias", "--no-verify", "--dump-after"]
    report.check("one of them", ended(pare(*one, "drop_key_bias", cwd=work)) or expect(
        sorted(path.name for path in work.glob("one*")), ["one", "one.after-2-drop_key_bias"]))
    (work / "ids.json").write_text("[[1, 2, 3]]")
    report.check("it runs", ended(pare("run", "one.after-2-drop_key_bias", "--tokens", "ids.json", "-o", "logits.safetensors", cwd=work)))
    shutil.rmtree(work / "one")
    report.check("a dump that is there stays", ended(pare(*one, "drop_key_bias", cwd=work), 1, ["'one.after-2-drop_key_bias' exists", "--force"]))
    report.check("and nothing is written beside it", expect((work / "one").exists(), False))
    report.check("--force replaces it", ended(pare(*one, "drop_key_bias", "--force", cwd=work)))


USES = [  # flags after `rewrite plain -o kept`, exit code, words
    (["--passes", "eliminate_projektion"], 1, ["'eliminate_projektion'", "did you mean eliminate_projection"]),
    (["--passes", "drop_key_bias,"], 1, ["there is no pass ''"]),
    (["--passes", ""], 1, ["--passes is empty"]),
    (["--passes", "drop_key_bias{target=q}"], 1, ["drop_key_bias has no option 'target'", "options: none"]),
    (["--passes", "eliminate_projection{targt=q}"], 1, ["'targt'", "did you mean target"]),
    (["--passes", "eliminate_projection{target=x}"], 1, ["target=x", "q|k|v|best"]),
    (["--passes", "eliminate_projection{target}"], 1, ["target", "q|k|v|best"]),
    (["--passes", "eliminate_projection{target=q"], 1, ["{option=value,...}"]),
    (["--passes", "eliminate_projection{layer=9}"], 1, ["layer=9", "3 layers"]),
    (["--passes", "drop_key_bias", "--form", "loose"], 1, ["--form", "loose", "strict"]),
    (["--passes", "drop_key_bias", "--dtype", "int8"], 1, ["--dtype", "int8"]),
    (["--passes", "drop_key_bias", "--max-error", "0"], 1, ["--max-error"]),
    (["--passes", "drop_key_bias", "--max-error", "nan"], 1, ["--max-error"]),
    (["--passes", "drop_key_bias", "--shard-size", "0"], 1, ["--shard-size"]),
    (["--passes", "drop_key_bias", "--dump-after", "drop_kye_bias"], 1, ["'drop_kye_bias'", "did you mean drop_key_bias"]),
    (["--passes", "drop_key_bias", "--dump-after", "fold_value_bias"], 1, ["--dump-after fold_value_bias", "none of the passes"]),
    (["--passes", "drop_key_bias", "--dump-after", ""], 1, ["--dump-after is empty"]),
    ([], 1, ["--passes", "required"]),
    (["--passes", "merge_skipless,fold_norm_gain"], 2,
     ["merge_skipless:", "blocks.0-2: expected no skip, found: a skip around the attention",
      "fold_norm_gain:", "it has no norms", "what would help: eliminate_projection takes what skips leave free"]),
]


def check_use(report, work):
    for flags, code, words in USES:
        result = pare("rewrite", "plain", "-o", "kept", *flags, cwd=work)
        report.check(" ".join(["rewrite", *flags]), ended(result, code, words))
    report.check("they write nothing", expect((work / "kept").exists(), False))
    result = pare("rewrite", "plain", "-o", "out", "--passes", "drop_key_bias", cwd=work)
    report.check("an output that exists", ended(result, 1, ["'out' exists", "--force"]))
    before = hashes(work / "plain")
    for same in ("plain", "./plain/", "../" + work.name + "/plain"):
        result = pare("rewrite", "plain", "-o", same, "--passes", "drop_key_bias", "--force", cwd=work)
        report.check(f"onto the model itself: {same}", ended(result, 1, ["is 'plain' itself"]))
    report.check("it is still there", expect(hashes(work / "plain"), before))
    result = pare("rewrite", "plain", "-o", "out", "--passes", "drop_key_bias", "--force", "--no-verify", "--quiet", cwd=work)
    query = "blocks.0.attention.query.weight" in read_tensors(work / "out" / "model.safetensors")
    report.check("--force replaces it", ended(result) or expect(query, True))
    certificate = json.loads((work / "out" / "certificate.json").read_text())
    nothing = [certificate[key] for key in ("inputs", "metrics", "noise_floor", "self_test", "verdict")]
    report.check("--no-verify claims nothing", expect([list(certificate), nothing], [CERTIFICATE, [None] * 5]))
    report.check("and verify can still", ended(pare("verify", "plain", "out", cwd=work), 0, ["proved"]))
    result = pare("rewrite", "skipless", "-o", "ordered", "--passes", "merge_skipless,fold_value_bias",
                  "--allow-growth", "--no-verify", cwd=work)
    report.check("an order that loses", ended(result, 0, ["warning: this order saves", "less than 'fold_value_bias,merge_skipless{target=best}'"]))
    result = pare("rewrite", "nowhere", "-o", "kept", "--passes", "auto", cwd=work)
    report.check("no model", ended(result, 1, ["nowhere"]))


def peak(work, *arguments):
    process = subprocess.Popen([str(PARE), *arguments], cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss * 1024


def check_memory(report, work):
    """A table of 128 MB is rewritten in less: rows come and go, and blocks one at a time."""
    if "asan" in str(PARE):
        report.skip("memory", "the sanitizer keeps what is freed")
        return
    width, vocab = 512, 65536
    large = architecture() | {"width": width, "vocab": vocab}
    large["blocks"][0]["attention"] |= {"heads": 8, "kv_heads": 8, "head_width": 64}
    large["blocks"][0]["mlp"]["width"] = 4 * width
    large["blocks"][0]["repeat"] = 4
    (work / "large.json").write_text(json.dumps(large))
    report.check("init", ended(pare("init", "large.json", "-o", "large", cwd=work)))
    flags = ["--passes", "eliminate_projection", "--no-verify", "--quiet"]
    _, base = peak(work, "rewrite", "plain", "-o", "small-out", *flags)
    code, held = peak(work, "rewrite", "large", "-o", "large-out", *flags)
    block, table = 8 * 12 * width * width, 8 * width * vocab
    most = base + 3 * block + 30e6
    size = (work / "large" / "model.safetensors").stat().st_size
    print(f"a model of {size / 1e6:.0f} MB: held {(held - base) / 1e6:.0f} MB more than a tiny one")
    report.check("neither the model nor its table is held", f"exit code {code}" if code else "" if held <= most < base + table else
                 f"held {held / 1e6:.0f} MB, expected at most {most / 1e6:.0f}")


def main():
    report = Report("rewrite")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name, (model, dtype) in MODELS.items():
            (work / f"{name}.json").write_text(json.dumps(model))
            report.check(f"init {name}", ended(pare("init", f"{name}.json", "-o", name, "--generic", "--seed", "1", "--dtype", dtype, cwd=work)))
        check_strict(report, work)
        check_ids_of_texts(report, work)
        check_bytes(report, work)
        check_auto(report, work)
        check_growth(report, work)
        check_approximate(report, work)
        check_types(report, work)
        check_compat(report, work)
        check_dumps(report, work)
        check_use(report, work)
        check_memory(report, work)
    report.finish()


if __name__ == "__main__":
    main()
