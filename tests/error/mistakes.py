#!/usr/bin/env python3
"""What people give in the place of a model, in every command that takes one: the message says what it is and what to do."""

import json
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from files import Broken, read_tensors
from report import Report, pare
from wrong_use import ARCHITECTURE, problem

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 548105171\n"
UP, DOWN = "blocks.0.mlp.up.weight", "blocks.1.mlp.down.weight"


def commands(model):
    """Every command that reads a model."""
    return {
        "audit": ["audit", model],
        "run": ["run", model, "-o", "out", "--tokens", "ids.json"],
        "verify": ["verify", "good", model],
        "verify, reference": ["verify", model, "good"],
        "rewrite": ["rewrite", model, "-o", "out", "--passes", "auto"],
        "export": ["export", model, "-o", "out", "--to", "hf"],
    }


def make(work):
    """The mistakes: what is given, and words of the message."""
    shutil.copytree(work / "good", work / "models" / "a")
    shutil.copytree(work / "good", work / "models" / "org" / "b")
    (work / "empty").mkdir()
    (work / "gguf").mkdir()
    (work / "gguf" / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    (work / "pickled").mkdir()
    (work / "pickled" / "pytorch_model.bin").write_bytes(b"PK")
    Broken(work / "good", work / "pickled2").weights.rename(work / "pickled2" / "pytorch_model.bin")
    Broken(work / "good", work / "gguf2").weights.rename(work / "gguf2" / "model.gguf")
    (work / "gguf3").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (work / "gguf3" / name).write_bytes(b"GGUF")
    Broken(work / "good", work / "bare").config.unlink()
    Broken(work / "good", work / "pointer").weights.write_text(POINTER)
    Broken(work / "good", work / "pointer2").config.write_text(POINTER)
    cached = work / "hub" / "models--org--name"
    shutil.copytree(work / "good", cached / "snapshots" / "0123abcd")
    shutil.copytree(work / "good", cached / "snapshots" / "older")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123abcd")
    (cached / "blobs").mkdir()
    (work / "text.txt").write_text("hello")

    def quantise(tensors):
        for name in (UP, DOWN):
            _, shape, data = tensors[name]
            tensors[name] = ("F8_E4M3", shape, bytes(len(data) // 4))

    Broken(work / "good", work / "fp8").set_tensors(quantise)
    snapshot = "'hub/models--org--name/snapshots/0123abcd'"
    return [
        ("empty", ["'empty' is an empty folder", "config.json"]),
        ("models", ["folder of models", "did you mean one of 'models/a', 'models/org/b'?"]),
        ("models/org", ["folder of models", "did you mean 'models/org/b'?"]),
        ("gguf", ["gguf/model-Q4_K_M.gguf'", "the version at byte 4", "incomplete download"]),
        ("gguf2", ["'model.gguf' is GGUF", "give that file"]),
        ("gguf3", ["'gguf3' holds several GGUF files", "'gguf3/a.gguf', 'gguf3/b.gguf'"]),
        ("gguf/model-Q4_K_M.gguf", ["gguf/model-Q4_K_M.gguf'", "incomplete download"]),
        ("pickled", ["'pytorch_model.bin'", "config.json"]),
        ("pickled2", ["pytorch_model.bin'", "no file of torch.save"]),
        ("pickled/pytorch_model.bin", ["pytorch_model.bin'", "without a config.json beside it"]),
        ("bare", ["'bare' has 'model.safetensors' but no config.json"]),
        ("bare/model.safetensors", ["without a config.json"]),
        ("good/model.safetensors", ["one file of a model", "give its folder, 'good'"]),
        ("pointer", ["pointer/model.safetensors' is a Git LFS pointer", "git lfs pull"]),
        ("pointer2", ["pointer2/config.json is a Git LFS pointer", "git lfs pull"]),
        ("hub/models--org--name", ["Hugging Face cache", f"lies in {snapshot}"]),
        ("hub", ["Hugging Face cache", snapshot]),
        ("meta-llama/Llama-3.1-8B", ["never downloads", "hf download meta-llama/Llama-3.1-8B --local-dir Llama-3.1-8B"]),
        ("https://huggingface.co/meta-llama/Llama-3.1-8B/tree/main", ["hf download meta-llama/Llama-3.1-8B "]),
        ("fp8", ["2 tensors are stored as F8_E4M3", f"'{UP}', '{DOWN}'"]),
    ]


def check_dtypes(report, work):
    """Short names of types, wherever a type is taken; the long ones are what is reported."""
    for word, name, stored in (("bf16", "bfloat16", "BF16"), ("fp16", "float16", "F16"), ("half", "float16", "F16"),
                               ("fp32", "float32", "F32"), ("fp64", "float64", "F64"), ("double", "float64", "F64")):
        result = pare("init", "good.json", "-o", f"as-{word}", "--dtype", word, "--json", cwd=work)
        wrong = problem(result, [], (0,))
        found = "" if wrong else (json.loads(result.stdout)["dtype"], read_tensors(work / f"as-{word}" / "model.safetensors")[UP][0])
        report.check(f"init --dtype {word}", wrong or ("" if found == (name, stored) else f"{found}"))
        result = pare("run", "good", "-o", "out", "--force", "--tokens", "ids.json", "--dtype", word, "--json", cwd=work)
        wrong = problem(result, [], (0,))
        report.check(f"run --dtype {word}", wrong or ("" if json.loads(result.stdout)["compute_dtype"] == name else result.stdout))
        result = pare("verify", "good", "good", "--dtype", word, "--json", cwd=work)
        wrong = problem(result, [], (0,))
        report.check(f"verify --dtype {word}", wrong or ("" if json.loads(result.stdout)["compute_dtype"] == name else result.stdout))
        out = f"rewritten-{word}"
        result = pare("rewrite", "keys", "-o", out, "--passes", "drop_key_bias", "--dtype", word, "--no-verify", cwd=work)
        wrong = problem(result, [], (0,))
        report.check(f"rewrite --dtype {word}", wrong or ("" if read_tensors(work / out / "model.safetensors")[UP][0] == stored else "another type"))
    report.check("a type that is none", problem(pare("init", "good.json", "-o", "x", "--dtype", "int4", cwd=work), ["int4", "bfloat16", "bf16"]))
    (work / "out").unlink(missing_ok=True)


def check_sizes(report, work):
    words = ["'llama-3.1-8b' takes 32.1 GB in float32", "--yes", "--dtype bfloat16 takes 16.1 GB"]
    report.check("init of 32 GB", problem(pare("init", "llama-3.1-8b", "-o", "large", cwd=work), words))
    half = pare("init", "llama-3.1-8b", "-o", "large", "--dtype", "bf16", cwd=work)
    report.check("init of 16 GB", problem(half, ["16.1 GB in bfloat16", "--yes"]) or ("--dtype" in half.stderr and half.stderr))
    # With --yes the next check speaks: the output's folder is not there.
    yes = pare("init", "llama-3.1-8b", "-o", "missing/large", "--yes", cwd=work)
    report.check("init of 32 GB with --yes", problem(yes, ["missing"]) or ("--yes" in yes.stderr and yes.stderr))


def main():
    report = Report("mistakes")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "good.json").write_text(json.dumps(ARCHITECTURE))
        keys = json.loads(json.dumps(ARCHITECTURE))
        keys["blocks"][0]["attention"]["bias"] = {"key": True}
        (work / "keys.json").write_text(json.dumps(keys))
        (work / "ids.json").write_text("[[1, 2, 3]]")
        for name in ("good", "keys"):
            report.check(f"init {name}", problem(pare("init", f"{name}.json", "-o", name, cwd=work), [], (0,)))
        for given, words in make(work):
            for command, arguments in commands(given).items():
                report.check(f"{command} {given}", problem(pare(*arguments, cwd=work), words))
        report.check("run of a preset", problem(pare(*commands("gpt2")["run"], cwd=work), ["'gpt2' is not there", "pare init gpt2"]))
        report.check("init of a file of weights", problem(pare("init", "good/model.safetensors", "-o", "x", cwd=work), ["give its folder"]))
        report.check("init of a hub id", problem(pare("init", "org/name", "-o", "x", cwd=work), ["hf download org/name"]))
        report.check("tokens that are a pointer", problem(
            pare("run", "good", "-o", "x", "--tokens", "pointer2/config.json", cwd=work), ["Git LFS pointer"]))
        report.check("nothing was written", "out or x exists" if (work / "out").exists() or (work / "x").exists() else "")
        check_dtypes(report, work)
        check_sizes(report, work)
    report.finish()


if __name__ == "__main__":
    main()
