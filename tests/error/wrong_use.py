#!/usr/bin/env python3
"""The command used wrongly: each line is a command, and the words its error must contain. Exit code 1, never a crash."""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import Report, pare

ARCHITECTURE = {
    "name": "tiny", "width": 8, "vocab": 16, "context": 12,
    "embedding": {"position": "learned"},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "kv_heads": 1, "head_width": 4},
                "mlp": {"width": 12, "activation": "gelu"}}],
    "head": {"tied": False},
}


def changed(path, value):
    """The architecture with one key set: path 'blocks.0.attention.heads'."""
    copy = json.loads(json.dumps(ARCHITECTURE))
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    place = copy
    for parent in parents:
        place = place[parent]
    place[last] = value
    return copy


USAGE = [  # arguments, words
    ([], ["a command is needed", "audit"]),
    (["adit", "gpt2"], ["no command 'adit'", "did you mean audit"]),
    (["--jsn", "audit", "gpt2"], ["'--jsn'", "--json"]),
    (["audit", "gpt2", "--jsno"], ["'--jsno'", "--json"]),
    (["audit"], ["MODEL", "required"]),
    # A flag that is mistyped is named before what is missing for want of it.
    (["rewrite", "model", "-o", "out", "--pases", "auto"], ["no flag '--pases'", "did you mean --passes"]),
    (["rewrite", "model", "-o", "out", "--pases=auto"], ["no flag '--pases'", "did you mean --passes"]),
    (["rewrite", "model", "--ouptut", "out", "--passes", "auto"], ["no flag '--ouptut'", "did you mean --output"]),
    (["rewrite", "model", "extra", "-o", "out", "--pases", "auto"], ["no flag '--pases'"]),
    (["rewrite", "model", "-o", "out", "--pases", "auto", "--dtype", "int8"], ["no flag '--pases'"]),
    (["init", "--generc"], ["no flag '--generc'", "did you mean --generic"]),
    (["run", "model", "--tokns", "ids.json"], ["no flag '--tokns'", "did you mean --tokens"]),
    (["verify", "model", "--tokns"], ["no flag '--tokns'", "did you mean --tokens"]),
    (["probe", "--withot"], ["no flag '--withot'", "did you mean --without"]),
    (["compare", "--jsn"], ["no flag '--jsn'", "did you mean --json"]),
    (["init", "gpt2", "out"], ["--output", "required"]),
    (["audit", "gpt2", "gpt2-xl"], ["audit", "'gpt2-xl'"]),
    (["audit", "gpt2", "--threads", "0"], ["--threads"]),
    (["audit", "gpt2", "--threads", "many"], ["--threads", "many"]),
    (["audit", "gpt2", "--device", "tpu"], ["--device", "tpu", "cpu", "cuda"]),
    (["audit", "gpt2", "--seed", "-1"], ["--seed", "expected a whole number from 0", "found '-1'"]),
    (["presets", "gtp2"], ["no preset 'gtp2'", "did you mean gpt2", "pare audit"]),
    (["presets", "gpt2", "--reprot", "page.html"], ["no flag '--reprot'", "did you mean --report"]),
    (["presets", "--report", "good.json"], ["'good.json' exists", "--force"]),
    (["audit", "gtp2"], ["'gtp2'", "did you mean gpt2"]),
    (["audit", "mistral7b"], ["did you mean mistral-7b"]),
    (["audit", "no/such/folder"], ["no/such/folder"]),
    (["audit", "two\nlines\x1b[31m"], ["two\\x0alines"]),
    (["audit", "gpt2", "--report", "good.json"], ["'good.json' exists", "--force"]),
    (["audit", "gpt2", "--report", "good.json", "--force"], ["'good.json' is no report of pare"]),
    (["audit", "gpt2", "--report", "missing/page.html"], ["missing"]),
    (["audit", "gpt2", "--report", "model"], ["'model'"]),
    (["audit", "gpt2", "--force"], ["--force", "--report"]),
    (["verify", "model", "model", "--report", "good.json"], ["'good.json' exists"]),
    (["probe", "model", "-o", "good.json"], ["'good.json' exists"]),
    (["init", "gpt2"], ["--output", "required"]),
    (["init", "gpt2", "-o", "out", "--dtype", "int8"], ["--dtype", "int8"]),
    (["init", "gpt2", "-o", "out", "--shard-size", "lots"], ["--shard-size", "lots"]),
    (["init", "gpt2", "-o", "out", "--shard-size", "-1"], ["--shard-size", "-1"]),
    (["init", "gpt2", "-o", "out", "--shard-size", "0"], ["--shard-size", "0"]),
    (["init", "gpt2", "-o", "missing/out"], ["missing"]),
    (["init", "gpt2", "-o", "model"], ["'model' exists", "--force"]),
    (["init", "model", "-o", "out"], ["'model' is a folder"]),
    (["init", "offset.json", "-o", "out", "--dtype", "float16"], ["'norm.weight' begins with -999999, which float16 cannot hold"]),
    (["run", "model", "-o", "out"], ["--tokens", "--inputs"]),
    (["run", "model", "-o", "out", "--tokens", "ids.json", "--inputs", "x.safetensors"], ["--tokens", "--inputs"]),
    (["run", "model", "-o", "out", "--tokens", "nothing.json"], ["nothing.json"]),
    (["run", "model", "-o", "good.json", "--tokens", "ids.json"], ["'good.json' exists", "--force"]),
    (["run", "model", "-o", "ids.json", "--tokens", "ids.json"], ["'ids.json' itself", "what is read"]),
    (["run", "model", "-o", "out", "--tokens", "ids.json", "--taps", "residual.99"], ["--taps", "'residual.99'"]),
    (["run", "gpt2", "-o", "out", "--tokens", "ids.json"], ["gpt2"]),
    (["export", "model", "-o", "out"], ["--to", "required"]),
    (["export", "model", "--to", "hf"], ["--output", "required"]),
    (["export", "model", "-o", "out", "--to", "tflite"], ["--to", "hf", "gguf", "onnx"]),
    (["export", "model", "-o", "out", "--to", "hf", "--dtype", "q8_0"], ["--dtype q8_0", "only --to gguf"]),
    (["export", "model", "-o", "out", "--to", "onnx", "--dtype", "bfloat16"], ["--dtype bfloat16", "float32 or float16"]),
    (["export", "model", "-o", "out", "--to", "gguf", "--dtype", "float64"], ["--dtype float64", "llama.cpp has none"]),
    (["export", "model", "-o", "out", "--to", "hf", "--family", "lama"], ["--family", "did you mean 'llama'?"]),
    (["export", "model", "-o", "out", "--to", "gguf", "--family", "llama"], ["--family belongs to --to hf"]),
    (["export", "gpt2", "-o", "out", "--to", "hf"], ["gpt2"]),
    (["bench"], ["MODEL", "required"]),
    (["bench", "gtp2"], ["'gtp2'", "did you mean gpt2"]),
    (["bench", "model", "--dtpye", "bf16"], ["no flag '--dtpye'", "did you mean --dtype"]),
    (["bench", "model", "--tokens", "0"], ["--tokens", "from 1"]),
    (["bench", "model", "--tokens", "12", "--prompt", "1"], ["'model' reads at most 12 tokens, but 13 are asked for"]),
    (["bench", "model", "--batch", "2"], ["--batch", "--train"]),
    (["generate"], ["MODEL", "required"]),
    (["generate", "gpt2", "a"], ["gpt2"]),
    (["generate", "model", "a"], ["'model' holds no tokenizer", "--tokenizer", "--tokens"]),
    (["generate", "model", ""], ["PROMPT is empty"]),
    (["generate", "model"], ["no prompt is given", "bos_token_id"]),
    (["generate", "model", "a", "--tokens", "ids.json"], ["--tokens", "beside a prompt"]),
    (["generate", "model", "--file", "nothing.txt"], ["holds no tokenizer"]),
    (["generate", "model", "--tokens", "ids.json", "--stop", ""], ["--stop is empty"]),
    (["generate", "model", "--tokens", "ids.json", "--top-k", "3"], ["--top-k changes nothing at temperature 0", "--temperature"]),
    (["generate", "model", "--tokens", "ids.json", "--top-p", "0.5"], ["--top-p changes nothing"]),
    (["generate", "model", "--tokens", "ids.json", "--min-p", "0.5"], ["--min-p changes nothing"]),
    (["generate", "model", "--tokens", "ids.json", "--temperature", "-1"], ["--temperature", "at least 0", "'-1'"]),
    (["generate", "model", "--tokens", "ids.json", "--temperature", "nan"], ["--temperature", "'nan'"]),
    (["generate", "model", "--tokens", "ids.json", "--top-p", "0"], ["--top-p", "above 0 and at most 1"]),
    (["generate", "model", "--tokens", "ids.json", "--min-p", "2"], ["--min-p", "at most 1"]),
    (["generate", "model", "--tokens", "ids.json", "--repetition-penalty", "0"], ["--repetition-penalty", "0.001"]),
    (["generate", "model", "--tokens", "ids.json", "--max-tokens", "0"], ["--max-tokens", "from 1"]),
    (["generate", "model", "--tokens", "ids.json", "--tokenizer", "nothing"], ["there is no tokenizer 'nothing'"]),
    (["run", "model/config.json", "-o", "out", "--tokens", "ids.json"], ["model/config.json"]),
    (["audit", "model/config.json"], ["config.json", "give its folder"]),
    (["probe"], ["MODEL", "required"]),
    (["probe", "gpt2"], ["gpt2"]),
    (["probe", "model", "--tokens", "ids.json", "--random", "2"], ["--tokens", "--random", "not several"]),
    (["probe", "model", "--without", "skips"], ["--without", "skips"]),
    (["verify", "model"], ["CANDIDATE", "--logits"]),
    (["verify", "model", "nothing"], ["'nothing'", "not there"]),
    (["verify", "model", "model", "--tokens", "ids.json", "--random", "3"], ["--tokens", "--random"]),
    (["verify", "model", "model", "--tokens", "nothing.json"], ["nothing.json"]),
    (["verify", "model", "model", "--random", "0"], ["--random"]),
    (["verify", "model", "model", "--dtype", "int8"], ["--dtype", "int8"]),
    (["verify", "model", "model", "--modulo-gauges"], ["--modulo-gauge"]),
    (["verify", "model", "model", "--text", "a"], ["holds no tokenizer", "--tokenizer"]),
]

OTHERS = [  # what a candidate cannot take is a difference
    (["verify", "model", "wider"], ["vocab is 16 in the reference, 17 in the candidate"]),
    (["verify", "model", "short", "--tokens", "ids.json"], ["context is 12 in the reference, 2 in the candidate"]),
]

TOKENS = [  # content of the file, words
    ("[[1, 2, 16]]", ["sequence 0, position 2", "16", "vocabulary of 16"]),
    ("[[1], [2, -1]]", ["sequence 1, position 1", "-1"]),
    ("[[1, 2.5]]", ["position 1", "2.5"]),
    ('[[1, "a"]]', ["position 1", '"a"']),
    ("[[1, 99999999999999999999]]", ["position 1"]),
    ("[[]]", ["sequence 0", "empty"]),
    ("[]", ["empty"]),
    ("{}", ["object", "list of lists"]),
    ("[1, 2]", ["sequence 0", "number"]),
    ("[[1, 2]", ["tokens.json"]),
    ("", ["tokens.json"]),
    (json.dumps([[1] * 13]), ["sequence 0", "13 tokens", "context of 12"]),
    ("[" * 100000, ["tokens.json"]),
]

ARCHITECTURES = [  # an architecture, words
    (changed("blocks.0.attention.kv_heads", 3), ["blocks[0].attention.kv_heads", "3"]),
    (changed("blocks.0.attention.heads", 0), ["blocks[0].attention.heads"]),
    (changed("blocks.0.attention.heads", "two"), ["blocks[0].attention.heads"]),
    (changed("blocks.0.attention.heds", 2), ["heds", "heads"]),
    (changed("blocks.0.attention.query", "identty"), ["blocks[0].attention.query", "identity"]),
    (changed("blocks.0.repeat", 10**9), ["blocks[0].repeat"]),
    (changed("blocks.0.mlp.activation", "swoosh"), ["blocks[0].mlp.activation", "swoosh"]),
    (changed("blocks", []), ["blocks"]),
    (changed("layers", [0, 5]), ["layers"]),
    (changed("width", -8), ["width"]),
    (changed("width", 2**62), ["width"]),
    (changed("vocab", 10**18), ["vocab"]),
    (changed("width", 8.5), ["width"]),
    (changed("task", "causal"), ["task", "causal"]),
    ({**ARCHITECTURE, "final_norm": {"kind": "layer", "offset": 1e308}}, ["final_norm.offset: 1e+308 is beyond what float32 can hold"]),
    (changed("blocks.0.attention.softcap", 1e39), ["blocks[0].attention.softcap: 1e+39 is beyond"]),
    ({**ARCHITECTURE, "width": -1, "vocab": -2}, ["2 problems", "width: -1", "vocab: -2"]),
    ({"width": 8}, ["2 problems", "context", "blocks"]),
    ([], ["architecture.json"]),
]


def problem(result, words, codes=(1,)):
    """What is wrong with how a command ended, or nothing."""
    if result.returncode not in codes:
        return f"exit code {result.returncode}, expected {codes}: {result.stderr.strip()[-300:]}"
    if codes == (1,) and not result.stderr.startswith("pare: error: "):
        return f"stderr does not start with 'pare: error: ' but: {result.stderr.strip()[:300]}"
    if ".partial-" in result.stderr:
        return f"a temporary name in: {result.stderr.strip()[:600]}"
    missing = [word for word in words if word not in result.stderr]
    return f"no {missing} in: {result.stderr.strip()[:600]}" if missing else ""


def main():
    report = Report("wrong use")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "good.json").write_text(json.dumps(ARCHITECTURE))
        (work / "ids.json").write_text("[[1, 2, 3]]")
        (work / "offset.json").write_text(json.dumps({**ARCHITECTURE, "final_norm": {"kind": "layer", "offset": 1e6}}))
        made = pare("init", "good.json", "-o", "model", cwd=work)
        report.check("init of a good architecture", problem(made, [], (0,)))
        for name, key, value in (("wider", "vocab", 17), ("short", "context", 2)):
            (work / f"{name}.json").write_text(json.dumps(changed(key, value)))
            report.check(f"init {name}", problem(pare("init", f"{name}.json", "-o", name, cwd=work), [], (0,)))
        before = sorted(path.name for path in work.iterdir())

        for arguments, words in USAGE:
            result = pare(*arguments, cwd=work)
            report.check(" ".join(["pare", *arguments]), problem(result, words))
        for arguments, words in OTHERS:
            report.check(" ".join(["pare", *arguments]), problem(pare(*arguments, cwd=work), words, (3,)))
        for content, words in TOKENS:
            (work / "tokens.json").write_text(content)
            result = pare("run", "model", "-o", "out", "--tokens", "tokens.json", cwd=work)
            report.check(f"tokens {content[:40]}", problem(result, words))
        for architecture, words in ARCHITECTURES:
            (work / "architecture.json").write_text(json.dumps(architecture))
            result = pare("audit", "architecture.json", cwd=work)
            report.check(f"architecture with wrong {words[0]}", problem(result, words))
        for name in ("tokens.json", "architecture.json"):
            (work / name).unlink()
        after = sorted(path.name for path in work.iterdir())
        report.check("nothing is left behind", "" if before == after else f"{before} became {after}")
    report.finish()


if __name__ == "__main__":
    main()
