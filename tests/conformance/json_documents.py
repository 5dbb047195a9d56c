#!/usr/bin/env python3
"""`--json` prints one document, whatever happens: each against its schema in docs/json, each way to fail included.

The exit code is not 0 if and only if the document has `error`.
"""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "error")]
from files import Broken  # noqa: E402  (the folders above are not a package)
from report import PARE, Report, pare  # noqa: E402

SCHEMAS = ROOT / "docs" / "json"
ARCHITECTURE = {
    "name": "tiny", "width": 8, "vocab": 16, "context": 12, "embedding": {"position": "learned"}, "head": {"tied": False},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 4, "bias": {"key": True}},
                "mlp": {"width": 12, "activation": "gelu", "skip": False}}],
}
NORMED = ARCHITECTURE | {"blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 4, "norm": {"kind": "rms"}},
                                     "mlp": {"width": 12, "activation": "gelu", "norm": {"kind": "rms"}}}]}
NEARLY = ["--passes", "lower_mlp_to_heads{approximate=gelu}", "--allow-growth"]
WIDER = "architecture.blocks.*.mlp.width=20"
DRY = ["--passes", "eliminate_projection,drop_key_bias"]

GOOD = [  # schema, arguments
    ("audit", ["audit", "gpt2"]),
    ("audit", ["audit", "skipless-pythia-6.9b"]),
    ("audit", ["audit", "albert-base"]),
    ("audit", ["audit", "model"]),
    ("audit", ["audit", "normed", "--conditions"]),
    ("init", ["init", "model.json", "-o", "again"]),
    ("run", ["run", "model", "-o", "out", "--tokens", "ids.json"]),
    ("run", ["run", "encoder", "-o", "hidden", "--tokens", "ids.json"]),
    ("generate", ["generate", "model", "--tokens", "ids.json"]),
    ("generate", ["generate", "model", "--tokens", "ids.json", "--temperature", "1", "--top-k", "5", "--min-p", "0.1", "-n", "1"]),
    ("bench", ["bench", "model", "encoder", "--dtype", "float32,bfloat16", "--rounds", "2", "--train"]),
    ("bench", ["bench", "model.json", "--rounds", "6", "--tokens", "2", "--prompt", "2"]),
    ("generate", ["generate", "talking", "--chat", "ab", "--system", "c", "-n", "2"]),
    ("generate", ["generate", "talking", "--chat", "ab", "--stop", "j", "--stop", "c"]),
    ("rewrite", ["rewrite", "model", "-o", "strict", *DRY, "--dtype", "float64"]),
    ("rewrite", ["rewrite", "model", "-o", "compat", *DRY, "--dtype", "float64", "--form", "compat"]),
    ("rewrite", ["rewrite", "model", "-o", "unverified", *DRY, "--no-verify"]),
    ("rewrite", ["rewrite", "model", "-o", "approximate", *NEARLY, "--max-error", "1"]),
    ("export", ["export", "model", "-o", "for-hf", "--to", "hf"]),
    ("verify", ["verify", "model", "model"]),
    ("verify", ["verify", "model", "model", "--modulo-gauge"]),
    ("verify", ["verify", "model", "strict"]),
    ("verify", ["verify", "model", "model", "--tokens", "ids.json", "--dtype", "bf16"]),
    ("probe", ["probe", "model"]),
    ("probe", ["probe", "normed", "--tokens", "ids.json", "--heads", "--permute-heads", "--zero-gains", "0.5"]),
    ("probe", ["probe", "normed", "--random", "2", "--length", "1", "--dtype", "bf16", "--zero-gains", "1"]),
    ("probe", ["probe", "encoder", "--random", "2", "--without", "attention-residual", "--gauge", "3"]),
    ("train", ["train", "train.json", "-o", "trained"]),
    ("train", ["train", "train.json", "-o", "trained-again", "seed=1"]),
    ("train", ["train", "train.json", "-o", "wider-trained", WIDER]),
    ("train", ["train", "train.json", "-o", "wider-again", WIDER, "seed=1"]),
    ("train", ["train", "text.json", "-o", "shards", "--prepare"]),
    ("train", ["train", "--print-config"]),
    ("compare", ["compare", "trained", "trained"]),
    ("compare", ["compare", "trained", "trained-again", "wider-trained", "wider-again"]),
    ("families", ["families"]),
    ("presets", ["presets", "gpt2", "modernbert-base", "skipless-mistral-7b"]),
    ("passes", ["passes"]),
    ("passes", ["passes", "merge_skipless"]),
    ("reproduce", ["reproduce", "--list"]),
    ("reproduce", ["reproduce", "linear-recovery"]),
    ("reproduce", ["reproduce", "affine-rank-hypotheses"]),
    ("reproduce", ["reproduce", "pgop-overhead", "-o", "claim"]),
    ("demo", ["demo"]),
    ("help", ["help"]),
    ("help", ["help", "audit"]),
    ("help", ["--help"]),
    ("help", ["--version"]),
    ("completion", ["completion", "bash"]),
]
BAD = [  # kind, exit code, fewest reasons, arguments
    ("input", 1, 1, []),
    ("input", 1, 1, ["adit"]),
    ("input", 1, 1, ["audit", "--jsno"]),
    ("input", 1, 1, ["audit", "gpt2", "--threads", "many"]),
    ("input", 1, 1, ["audit", "nothing/there"]),
    ("input", 1, 2, ["audit", "wrong.json"]),
    ("input", 1, 2, ["audit", "incomplete"]),
    ("input", 1, 1, ["init", "gpt2", "-o", "model"]),
    ("input", 1, 1, ["init", "llama-3.1-8b", "-o", "large"]),
    ("input", 1, 1, ["run", "model", "-o", "new"]),
    ("input", 1, 1, ["run", "nan", "-o", "new", "--tokens", "ids.json"]),
    ("input", 1, 1, ["generate", "nan", "--tokens", "ids.json"]),
    ("input", 1, 1, ["generate", "encoder", "--tokens", "ids.json"]),
    ("input", 1, 1, ["generate", "model", "a prompt"]),
    ("input", 1, 1, ["bench", "model", "--prompt", "100"]),
    ("input", 1, 1, ["generate", "model", "--chat", "a message"]),
    ("input", 1, 1, ["generate", "talking", "--chat", "abcdefghijklmnop"]),
    ("input", 1, 1, ["probe", "nan"]),
    ("input", 1, 2, ["probe", "model", "--without", "mlp-residual", "--zero-gains", "0.5"]),
    ("input", 1, 1, ["probe", "model", "--tokens", "wrong.json"]),
    ("input", 1, 1, ["verify", "model", "nothing"]),
    ("input", 1, 2, ["train", "train.json", "-o", "untrained", "bacth=3", "step=5"]),
    ("input", 1, 1, ["compare", "trained", "model"]),
    ("input", 1, 1, ["passes", "merge_skiples"]),
    ("input", 1, 1, ["presets", "gpt2", "gtp2"]),
    ("input", 1, 1, ["help", "adit"]),
    ("input", 1, 1, ["completion", "tcsh"]),
    ("io", 1, 1, ["init", "model.json", "-o", "/proc/out"]),
    ("refused", 2, 2, ["rewrite", "normed", "-o", "new", "--passes", "eliminate_projection,merge_skipless"]),
    ("refused", 2, 1, ["rewrite", "model", "-o", "new", *DRY, "--max-error", "1e-30"]),
    ("refused", 2, 1, ["rewrite", "model", "-o", "new", *NEARLY]),
    ("input", 1, 1, ["rewrite", "model", "-o", "new", "--passes", "lower_mlp_to_heads{sharpness=0}"]),
    ("refused", 2, 2, ["export", "model", "-o", "new", "--to", "hf", "--family", "llama"]),
    ("input", 1, 1, ["export", "model", "-o", "new", "--to", "onnx", "--family", "llama"]),
    ("verification_failed", 3, 1, ["verify", "model", "other"]),
]


def read_schemas():
    import jsonschema
    import referencing

    schemas = {path.name.removesuffix(".schema.json"): json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    registry = referencing.Registry().with_resources(
        (schema["$id"], referencing.Resource.from_contents(schema)) for schema in schemas.values())
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    return {name: jsonschema.Draft202012Validator(schema, registry=registry) for name, schema in schemas.items()}


def document_of(text):
    """The one document, or what is wrong: json.loads takes neither two nor none."""
    try:
        return json.loads(text), ""
    except json.JSONDecodeError as error:
        return {}, f"stdout is not one document: {error}: {text[:200]!r}"


def invalid(validator, document):
    errors = sorted(validator.iter_errors(document), key=lambda error: error.json_path)
    return "; ".join(f"{error.json_path}: {error.message[:200]}" for error in errors[:4])


def judge(schemas, result, name, kind, code, reasons=1):
    """Empty where a command ended as it should, with the document that belongs to that."""
    document, wrong = document_of(result.stdout)
    wrong = wrong or ("" if result.returncode == code else f"exit code {result.returncode}, expected {code}: {result.stderr[-300:]}")
    if not wrong and ("error" in document) != (result.returncode != 0):
        wrong = f"exit code {result.returncode}, but error is {document.get('error')}"
    wrong = wrong or invalid(schemas[name], document)
    if not wrong and kind:
        found = document["error"]
        wrong = "" if found["kind"] == kind else f"kind {found['kind']}: {found['message'][:200]}"
        wrong = wrong or ("" if len(found["reasons"]) >= reasons else f"{len(found['reasons'])} reasons: {found}")
    return wrong


def make(work, report):
    def store(name, architecture, *flags):
        (work / f"{name}.json").write_text(json.dumps(architecture))
        result = pare("init", f"{name}.json", "-o", name, *flags, cwd=work)
        report.check(f"init {name}", "" if result.returncode == 0 else result.stderr)

    store("model", ARCHITECTURE, "--generic")
    store("other", ARCHITECTURE, "--generic", "--seed", "1")
    store("normed", NORMED)
    store("wider", ARCHITECTURE | {"vocab": 17})
    store("encoder", {key: value for key, value in ARCHITECTURE.items() if key != "head"} | {"task": "encoder"})
    store("talking", ARCHITECTURE, "--generic")
    (work / "talking" / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {letter: n for n, letter in enumerate("abcdefghijklmnop")}, "merges": []}, "decoder": {"type": "Fuse"}}))
    (work / "talking" / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    (work / "wrong.json").write_text(json.dumps(ARCHITECTURE | {"width": -1, "vocab": -2}))
    (work / "ids.json").write_text("[[1, 2, 3], [4, 5]]")
    (work / "train.json").write_text(json.dumps({"architecture": ARCHITECTURE, "task": "sorting", "data": {"length": 4}, "steps": 3}))
    (work / "text").write_text("abc" * 100)
    (work / "text.json").write_text(json.dumps({"architecture": ARCHITECTURE | {"vocab": 128}, "data": {"train": ["text"]}, "context": 4}))
    Broken(work / "model", work / "incomplete").set_tensors(
        lambda tensors: (tensors.pop("head.weight"), tensors.update(extra=tensors["embed.token.weight"])))
    up = "blocks.0.mlp.up.weight"
    Broken(work / "model", work / "nan").set_tensors(
        lambda tensors: tensors.update({up: (*tensors[up][:2], b"\x00\x00\xc0\x7f" * (len(tensors[up][2]) // 4))}))


def check_refusal(report, work):
    """A refusal's reasons, part by part."""
    result = pare("rewrite", "normed", "-o", "new", "--passes", "merge_skipless", "--json", "--quiet", cwd=work)
    document, wrong = document_of(result.stdout)
    first = document.get("error", {}).get("reasons", [{}])[0]
    wrong = wrong or ("" if set(first) == {"message", "pass", "where", "expected", "found", "remedy"} else f"{first}")
    report.check("a refusal's fields", wrong or ("" if first["pass"] == "merge_skipless" and first["where"] in first["message"] else f"{first}"))
    report.check("--quiet keeps stderr empty", result.stderr)
    spoken = pare("rewrite", "normed", "-o", "new", "--passes", "merge_skipless", "--json", cwd=work)
    report.check("stderr has the message without it", "" if spoken.stderr.startswith("pare: refused: merge_skipless:") else spoken.stderr)
    plain = pare("rewrite", "normed", "-o", "new", "--passes", "merge_skipless", "--quiet", cwd=work)
    report.check("and without --json always", "" if plain.stderr and not plain.stdout else f"{plain.stdout!r}")


def check_system(report, schemas, work):
    (work / "big.json").write_text(json.dumps(ARCHITECTURE | {"width": 1024, "vocab": 60000, "blocks": [
        {"repeat": 12, "attention": {"heads": 8, "head_width": 128}, "mlp": {"width": 4096, "activation": "gelu"}}]}))
    process = subprocess.Popen([str(PARE), "init", "big.json", "-o", "big", "--json"], cwd=work, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not any(".partial-" in path.name for path in work.iterdir()):
        pass
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    result = subprocess.CompletedProcess(process.args, process.returncode, out, errors)
    report.check("Ctrl-C", judge(schemas, result, "error", "interrupted", 130))

    if "asan" in str(PARE):
        report.skip("out of memory", "the sanitizer needs all addresses")
    else:
        (work / "large.json").write_text(json.dumps(ARCHITECTURE | {"vocab": 2**17, "width": 8192, "head": {"tied": True}}))
        result = pare("init", "large.json", "-o", "large", "--json", cwd=work,
                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9, 4 * 10**9)))
        report.check("out of memory", judge(schemas, result, "error", "out_of_memory", 1))

    with open("/dev/full", "w") as full:
        result = pare("audit", "nothing", "--json", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    report.check("stdout takes nothing", "" if result.returncode == 1 and "nothing" in result.stderr else f"{result.returncode}: {result.stderr}")


def main():
    report = Report("JSON documents")
    report.peers("jsonschema", "referencing")
    schemas = read_schemas()
    commands = {arguments[0] for _, arguments in GOOD}
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        make(work, report)
        listed = pare("--help").stdout.split("Commands:\n")[1].split("\n\n")[0].splitlines()
        missing = {line.split()[0] for line in listed if line.startswith("  ") and line[2] != " "} - commands
        report.check("every command is here", f"not {missing}" if missing else "")
        for name, arguments in GOOD:
            for flags in ([*arguments, "--json"],) if arguments[0] in ("init", "run", "rewrite", "export", "reproduce", "demo", "train") else ([*arguments, "--json"], ["--json", *arguments]):
                result = pare(*flags, cwd=work, stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(work)})
                report.check(" ".join(flags), judge(schemas, result, name, "", 0))
        for kind, code, reasons, arguments in BAD:
            result = pare(*arguments, "--json", cwd=work, stdin=subprocess.DEVNULL)
            name = "verify" if kind == "verification_failed" else "error"
            report.check(" ".join([*arguments, "--json"]), judge(schemas, result, name, kind, code, reasons))
        for path in [*sorted((ROOT / "docs" / "certificates").glob("*.json")), work / "strict" / "certificate.json"]:
            report.check(f"{path.parent.name}/{path.name}", invalid(schemas["rewrite"], json.loads(path.read_text())))
        # A schema that takes anything is worth nothing.
        audit = json.loads(pare("audit", "gpt2", "--json").stdout)
        for change in ({"unheard_of": 1}, {"layers": "12"}, {"passes": [{**audit["passes"][0], "unheard_of": 1}]}):
            report.check(f"an audit with {list(change)} is caught", "" if invalid(schemas["audit"], audit | change) else "it was not")
        said = json.loads(pare("generate", "talking", "--chat", "ab", "-n", "2", "--json", cwd=work, stdin=subprocess.DEVNULL).stdout)
        for change in ({"generations": []}, {"messages": [{"role": "user", "content": "a", "tokens": [1]}]}, {"messages": [{"role": "assistant", "content": "a"}]}, {"messages": [{**said["messages"][1], "finish": "stop"}]}):
            report.check(f"a conversation with {change} is caught", "" if invalid(schemas["generate"], said | change) else "it was not")
        check_refusal(report, work)
        check_system(report, schemas, work)
    report.finish()


if __name__ == "__main__":
    main()
