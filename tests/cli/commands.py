#!/usr/bin/env python3
"""The commands used rightly: what they print, what they write, and that the same input gives the same bytes."""

import json
import os
import pathlib
import re
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "error"))
from files import integers, read_tensors, write_tensors
from report import ROOT, SHARED, Report, ended, expect, pare

COMMANDS = ["audit", "rewrite", "init", "run", "verify", "train", "compare", "passes", "families", "presets", "reproduce", "demo", "help", "completion"]
PARTS = {"embedding", "query", "key", "value", "output", "mlp", "norm", "bias", "head", "gate", "shape", "query_key", "value_output"}
# The skip of a parallel block goes around both sublayers; heads that are not as wide as the model have no matrix to eliminate.
IN_THE_WAY = {
    "gpt2": ["norms", "MLP skips", "attention skips"], "falcon-7b": ["norms", "attention skips"], "gemma-3-1b": ["norms", "RoPE"],
    "skipless-mistral-7b": [], "olmo-2-7b": ["norms", "MLP skips", "attention skips", "RoPE"],
}
ARCHITECTURE = {
    "name": "tiny", "width": 8, "vocab": 16, "context": 12,
    "embedding": {"position": "learned"},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "kv_heads": 1, "head_width": 4, "norm": {"kind": "rms"}},
                "mlp": {"width": 12, "activation": "gelu"}}],
    "head": {"tied": False},
}
IMAGES = {
    "name": "tiny-vit", "task": "classifier", "width": 8, "context": 5,
    "embedding": {"position": "learned", "class_token": True, "patch": {"size": 2, "image": 4, "channels": 1}},
    "blocks": [{"attention": {"heads": 2, "head_width": 4, "mask": "full"}, "mlp": None}],
    "head": {"classes": 3},
}
POOLER = {"activation": "tanh"}
ENDS = {  # task, head, and the shapes of what is written for a sequence of 5 tokens
    "last": ("classifier", {"classes": 3, "bias": True, "pool": "last"}, {"logits": [3]}),
    "value": ("classifier", {"classes": 1, "bias": True, "pool": "last"}, {"logits": [1]}),
    "tokens": ("token_classifier", {"classes": 3, "bias": True}, {"logits": [5, 3]}),
    "answer": ("question_answering", {"classes": 2, "bias": True}, {"logits": [5, 2]}),
    "next": ("next_sentence", {"classes": 2, "bias": True, "transform": POOLER}, {"logits": [2]}),
    "two": ("masked_lm", {"bias": True, "sequence": {"classes": 2, "transform": POOLER}}, {"logits": [5, 16], "sequence_logits": [2]}),
    "bare": ("encoder", {}, {"hidden": [5, 8]}),
}
# Paper 1, section 4: what `pare audit` prints for its two models.
PAPER = {
    "skipless-pythia-6.9b": {
        "Q+P weights per layer": "33,554,432", "K+V weights per layer": "33,554,432",
        "FFN weights per layer": "134,217,728", "Input+output embed.": "412,876,800", "Total weights": "6.9B",
        "Total w/o Q+P weights": "5.8B", "Weight savings": "16%", "Possible speedup": "1.19x",
    },
    "skipless-mistral-7b": {
        "Q+P weights per layer": "33,554,432", "K+V weights per layer": "8,388,608",
        "FFN weights per layer": "176,160,768", "Input+output embed.": "262,144,000", "Total weights": "7.2B",
        "Total w/o Q+P weights": "6.2B", "Weight savings": "15%", "Possible speedup": "1.17x",
    },
}


def doubles(tensor):
    dtype, _, data = tensor
    assert dtype == "F64", dtype
    return struct.unpack(f"<{len(data) // 8}d", data)


def distance(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def one_document(result):
    """The JSON on stdout, or what is wrong with it."""
    try:
        return json.loads(result.stdout), ended(result)
    except json.JSONDecodeError as error:
        return {}, ended(result) or f"stdout is no JSON document: {error}"


def check_help(report):
    texts = {"pare": pare("--help")} | {name: pare(name, "--help") for name in COMMANDS}
    for name, result in texts.items():
        wide = [line for line in result.stdout.splitlines() if len(line) > 80]
        missing = [w for w in (["Exit codes", *COMMANDS] if name == "pare" else ["Example: pare"]) if w not in result.stdout]
        report.check(f"help of {name}", ended(result) or (f"wider than 80: {wide}" if wide else f"no {missing}" if missing else ""))
    report.check("version", ended(pare("--version")) or expect(pare("--version").stdout.split()[0], "pare"))


def check_audit(report, work):
    audits = {}
    for preset in sorted(path.stem for path in (ROOT / "presets").glob("*.json")):
        audit, wrong = one_document(pare("audit", preset, "--json"))
        if not wrong:
            unknown = set(audit["parts"]) - PARTS
            wrong = expect(sum(audit["parts"].values()), audit["parameters"]) or (f"parts {unknown}" if unknown else "")
            wrong = wrong or expect(audit["bytes"]["bfloat16"], 2 * audit["parameters"])
            audits[preset] = audit
        text = pare("audit", preset)
        wide = [line for line in text.stdout.splitlines() if len(line) > 80]
        report.check(f"audit {preset}", wrong or ended(text) or (f"wider than 80: {wide}" if wide else ""))
    check_presets(report, audits)
    for preset, rows in PAPER.items():
        lines = pare("audit", preset).stdout.splitlines()
        for label, value in rows.items():
            found = [line.split()[-1] for line in lines if line.startswith(label)]
            report.check(f"audit {preset}: {label}", expect(found, [value]))
    audit, wrong = one_document(pare("--json", "audit", "mistral-7b"))
    report.check("cache of mistral-7b", wrong or expect(audit["kv_cache_bytes_per_token"]["float16"], 2 * 32 * 2 * 8 * 128))
    audit, wrong = one_document(pare("audit", work / "model", "--json"))
    size = (work / "model" / "model.safetensors").stat().st_size
    report.check("audit of a folder", wrong or expect([audit["family"], audit["dtype"], audit["file_bytes"]], ["pare", "float32", size]))


def check_presets(report, audits):
    """Every row of the table is what `audit` says of its model, which asks for less, and in another order."""
    document, wrong = one_document(pare("presets", "--json", "--quiet"))
    rows = {row["name"]: row for row in document.get("presets", [])}
    report.check("presets", wrong or expect(list(rows), list(audits)))
    for name, row in rows.items():
        audit, without = audits[name], {found["what"]: found["removable"] for found in row["removable_without"]}
        halves = any(found["id"] == "cache_keys_only" and found["applies"] for found in audit["passes"])
        report.check(f"presets: {name}", expect(
            [row["parameters"], row["redundant"], row["redundant_is_lower_bound"], row["removable"], 2 * row["cache_elements_per_token"],
             row["cache_elements_left"] < row["cache_elements_per_token"], sum(found["saved_parameters"] for found in row["passes"])],
            [audit["parameters"], audit["redundant"], "lower_bound" in audit, audit["removable"], audit["kv_cache_bytes_per_token"]["bfloat16"],
             halves, audit["removable"]]))
        if "without_norms" in audit:
            away = audit["without_norms"]
            report.check(f"presets: {name} without {away['what']}", expect(without[away["what"].split(" and ")[-1]], away["removable"]))
        report.check(f"presets: {name}: in the way", expect(row["in_the_way"], IN_THE_WAY.get(name, row["in_the_way"])))
        # The passes choose greedily, so that more freedom is no smaller file by construction.
        amounts = [row["removable"], *without.values()]
        report.check(f"presets: {name}, step by step", expect(amounts, sorted(amounts)))
    text = pare("presets", "--quiet", "gpt2", "mistral-7b", "skipless-mistral-7b", env={**os.environ, "COLUMNS": "80"})
    wide = [line for line in text.stdout.splitlines() if len(line) > 80]
    report.check("presets in 80 columns", ended(text) or expect(wide, []))
    report.check("presets as text", expect([name for name in ("gpt2", "mistral-7b") if f"\n{name}: " not in text.stdout], []))


def check_init(report, work):
    (work / "tiny.json").write_text(json.dumps(ARCHITECTURE))
    report.check("init", ended(pare("init", "tiny.json", "-o", "model", "--seed", "3", "--generic", cwd=work)))
    first = (work / "model" / "model.safetensors").read_bytes()
    report.check("init again", ended(pare("init", "tiny.json", "-o", "again", "--seed", "3", "--generic", cwd=work)))
    report.check("same seed, same bytes", expect((work / "again" / "model.safetensors").read_bytes() == first, True))
    report.check("force", ended(pare("init", "tiny.json", "-o", "again", "--seed", "4", "--force", cwd=work)))
    report.check("other seed, other bytes", expect((work / "again" / "model.safetensors").read_bytes() == first, False))
    result = pare("init", "tiny.json", "-o", "shards", "--seed", "3", "--generic", "--shard-size", "1KB", cwd=work)
    files = list((work / "shards").glob("model-*-of-*.safetensors"))
    report.check("shards", ended(result) or ("" if len(files) > 1 else f"{len(files)} shards"))
    result = pare("init", "tiny.json", "-o", "halves/", "--dtype", "bfloat16", cwd=work)
    kinds = {tensor[0] for tensor in read_tensors(work / "halves" / "model.safetensors").values()} if not ended(result) else {}
    report.check("bfloat16, and a slash at the end", ended(result) or expect(kinds, {"BF16"}))


def check_run(report, work):
    ids = [[1, 2, 3, 4, 5], [6, 7, 8], [9, 10, 11]]
    (work / "ids.json").write_text(json.dumps(ids))
    result = pare("run", "model", "-o", "lists", "--tokens", "ids.json", "--taps", "residual.1,*probabilities", "--json", cwd=work)
    summary, wrong = one_document(result)
    report.check("run --json", wrong or expect([summary["sequences"], summary["tokens"], summary["predicted_tokens"]], [3, 11, 8]))
    lists = read_tensors(work / "lists")
    names = {f"{n}.{i}" for n in ("logits", "residual.1", "blocks.0.attention.probabilities", "blocks.1.attention.probabilities") for i in range(3)}
    report.check("names of outputs and taps", expect(set(lists), names))
    report.check("shape of logits", expect(lists["logits.0"][1], [5, 16]))
    report.check("shape of probabilities", expect(lists["blocks.0.attention.probabilities.1"][1], [2, 3, 3]))

    result = pare("run", "shards", "-o", "from-shards", "--tokens", "ids.json", cwd=work)
    far = 0 if ended(result) else distance(doubles(read_tensors(work / "from-shards")["logits.1"]), doubles(lists["logits.1"]))
    report.check("shards run the same", ended(result) or ("" if far < 1e-12 else f"logits differ by {far}"))

    for side in ("left", "right"):  # padded places hold an id that does not exist
        pad = [([99] * (5 - len(s)) + s) if side == "left" else (s + [99] * (5 - len(s))) for s in ids]
        mask = [[int(t != 99) for t in row] for row in pad]
        flat = lambda rows: [x for row in rows for x in row]
        write_tensors(work / "padded", {"input_ids": integers([3, 5], flat(pad)), "attention_mask": integers([3, 5], flat(mask))})
        result = pare("run", "model", "-o", f"out-{side}", "--inputs", "padded", "--taps", "residual.1,*probabilities", cwd=work)
        wrong = ended(result)
        if not wrong:
            padded = read_tensors(work / f"out-{side}")
            shapes = {name: tensor[1] for name, tensor in padded.items()}
            wrong = expect(shapes, {name: tensor[1] for name, tensor in lists.items()})
            worst = wrong or max(distance(doubles(padded[name]), doubles(lists[name])) for name in lists)
            wrong = wrong or ("" if worst < 1e-12 else f"padding changed an answer by {worst}")
        report.check(f"{side} padding", wrong)

    result = pare("run", "model", "-o", "single", "--tokens", "ids.json", "--dtype", "float32", cwd=work)
    report.check("float32", ended(result) or expect(read_tensors(work / "single")["logits.0"][0], "F32"))

    (work / "images.json").write_text(json.dumps(IMAGES))
    report.check("init of an image model", ended(pare("init", "images.json", "-o", "vit", cwd=work)))
    write_tensors(work / "pixels", {"pixel_values": ("F32", [2, 1, 4, 4], struct.pack("<32f", *[i / 32 for i in range(32)]))})
    result = pare("run", "vit", "-o", "classes", "--inputs", "pixels", "--taps", "final", cwd=work)
    shapes = {n: t[1] for n, t in read_tensors(work / "classes").items()} if not ended(result) else {}
    report.check("images", ended(result) or expect(shapes, {"logits.0": [3], "logits.1": [3], "final.0": [5, 8], "final.1": [5, 8]}))


def check_ends(report, work):
    """Whatever a model ends in: made, run, rewritten and verified."""
    (work / "five.json").write_text("[[1, 2, 3, 4, 5]]")
    for name, (task, head, shapes) in ENDS.items():
        end = ARCHITECTURE | {"task": task, "head": head, "final_norm": {"kind": "layer", "bias": True}}
        (work / f"{name}.json").write_text(json.dumps(end))
        report.check(f"init {name}", ended(pare("init", f"{name}.json", "-o", name, "--generic", "--dtype", "float64", cwd=work)))
        result = pare("run", name, "-o", f"{name}.out", "--tokens", "five.json", cwd=work)
        found = {n: t[1] for n, t in read_tensors(work / f"{name}.out").items()} if not ended(result) else {}
        report.check(f"run {name}", ended(result) or expect(found, {f"{n}.0": shape for n, shape in shapes.items()}))
        result = pare("rewrite", name, "-o", f"{name}.less", "--passes", "fold_norm_gain", "--json", cwd=work)
        document, wrong = one_document(result)
        stored = read_tensors(work / f"{name}.less" / "model.safetensors") if not wrong else {}
        found = [document.get("verdict"), "norm.weight" in stored]  # where there is no head, nothing takes the last gain
        report.check(f"rewrite {name}", wrong or expect(found, ["proved", name == "bare"]))


def check_stories(report, work):
    model = SHARED / "models" / "stories260K"
    if not model.exists():
        report.skip("stories260K", f"{model} is not there")
        return
    result = pare("run", model, "-o", "stories", "--tokens", model / "tinystories_40_token_ids.json", "--json", cwd=work)
    summary, wrong = one_document(result)
    report.check("stories260K", wrong or expect([summary["sequences"], round(summary["nats_per_token"], 4)], [40, 1.2451]))


def check_families(report, work):
    """All that are tested against transformers, with their classes; of the others each says what stands in the way."""
    document, wrong = one_document(pare("families", "--json"))
    found = {family["model_type"].replace("-", "_"): family["classes"] for family in document.get("read", [])}
    tested = {path.stem for path in (ROOT / "tests" / "conformance" / "families").glob("*.py")}
    report.check("families read", wrong or expect(set(found), tested) or expect([name for name, classes in found.items() if not classes], []))
    report.check("README counts them", "" if f"[{len(found)} families]" in (ROOT / "README.md").read_text() else f"{len(found)} are read")
    report.check("classes of one", expect("LlamaForCausalLM" in found["llama"] and "LlamaModel" in found["llama"], True))
    unread = {family["model_type"]: family["why"] for family in document["refused"]}
    report.check("none is both", expect([name for name in unread if name.replace("-", "_") in found], []))
    (work / "unread").mkdir()
    for name, why in unread.items():
        (work / "unread/config.json").write_text(json.dumps({"model_type": name}))
        report.check(f"audit of {name}", ended(pare("audit", "unread", cwd=work), 1, [why, "pare families"]))
    text = pare("families", env={**os.environ, "COLUMNS": "80"}).stdout
    report.check("families in 80 columns", expect([line for line in text.splitlines() if len(line) > 80], []))
    report.check("families as text", expect([name for name in (*unread, "llama") if f"  {name} " not in text], []))


def check_demo(report, work):
    (work / "tmp").mkdir()
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(work / "tmp")}
    if "PARE_CAMPAIGN" in os.environ:  # the same steps once more: a minute
        document, wrong = one_document(pare("demo", "--json", cwd=work, env=environment))
        report.check("demo --json", wrong or expect([s["exit_code"] for s in document["steps"]], [0, 0, 0, 0, 0, 1, 3]) or expect(document["folder"], None))
        report.check("demo leaves nothing", expect(list((work / "tmp").iterdir()), []))
    result = pare("demo", "-o", "kept", cwd=work, env=environment, timeout=900)
    report.check("demo", ended(result) or ("" if "What to try next" in result.stdout else "no next step"))
    accuracies = [float(found) for found in re.findall(r"\(([0-9.]+) % right\)", result.stdout)]
    report.check("demo trains", expect([len(accuracies), all(a > 90 for a in accuracies)], [2, True]))
    report.check("demo proves", expect(result.stdout.count(": proved"), 3))
    kept = [(work / "kept" / name).exists() for name in ("report.html", "sabotage.html", "smaller/model.safetensors", "least/certificate.json")]
    report.check("demo keeps", expect(kept, [True] * 4))
    report.check("demo's smaller model is the good one", ended(pare("verify", "runs/attention-skip/checkpoints/400", "smaller", cwd=work / "kept"), 0, ["proved"]))
    verdict = json.loads((work / "kept/least/certificate.json").read_text())["verdict"]
    report.check("demo's second model", expect(verdict, "proved"))
    again = pare("demo", "-o", "kept", cwd=work, env=environment)
    report.check("demo replaces nothing", expect([again.returncode, "exists already" in again.stderr], [1, True]))


def main():
    report = Report("commands")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        check_help(report)
        check_init(report, work)
        check_audit(report, work)
        check_run(report, work)
        check_ends(report, work)
        check_stories(report, work)
        check_families(report, work)
        check_demo(report, work)
    report.finish()


if __name__ == "__main__":
    main()
