#!/usr/bin/env python3
"""What people who tried to break it found: files that were lost, limits that were not kept, hints that led nowhere."""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import PARE, Report, ended, expect, pare

BIASES = {"query": True, "key": True, "value": True, "output": True}
GPT = {"width": 16, "vocab": 40, "context": 16, "embedding": {"position": "learned"}, "head": {"tied": True},
       "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 8, "bias": BIASES, "norm": {"kind": "layer", "bias": True}},
                   "mlp": {"width": 24, "activation": "gelu", "bias": {"up": True, "down": True}, "norm": {"kind": "layer", "bias": True}}}],
       "final_norm": {"kind": "layer", "bias": True}}
GROUPED = {"width": 32, "vocab": 64, "context": 32, "head": {"tied": False},
           "blocks": [{"repeat": 3, "attention": {"heads": 4, "kv_heads": 2, "head_width": 8, "skip": False},
                       "mlp": {"width": 48, "activation": "silu", "gated": True, "skip": False}}]}


def rewrite(work, *arguments, model="gpt"):
    return pare("rewrite", model, "-o", *arguments, "--passes", "auto", "--no-verify", "--force", cwd=work)


def fresh(work, name):
    """A folder that pare wrote and may replace."""
    shutil.rmtree(work / name, ignore_errors=True)
    made = rewrite(work, name)
    assert made.returncode == 0, made.stderr
    return work / name


def check_kept(report, work):
    weights = (work / "gpt" / "model.safetensors").read_bytes()
    shutil.copytree(work / "gpt", work / "trained")
    (work / "ids.json").write_text("[[1, 2, 3]]")
    result = pare("run", "gpt", "-o", "trained/model.safetensors", "--tokens", "ids.json", "--force", cwd=work)
    report.check("run keeps off a model's weights", ended(result, 1, ["not replaced"]) or
                 expect((work / "trained" / "model.safetensors").read_bytes() == weights, True))
    for again in range(2):
        report.check(f"but replaces what run wrote: {again}", ended(pare("run", "gpt", "-o", "x.safetensors", "--tokens", "ids.json", "--force", cwd=work)))

    for name, change in (("config.json", lambda text: text.replace('"name": ""', '"name": "mine"')), ("model.safetensors", None)):
        folder = fresh(work, "own")
        path = folder / name
        path.write_bytes(path.read_bytes()[:-1] + b"\x01") if change is None else path.write_text(change(path.read_text()))
        mine = path.read_bytes()
        report.check(f"a changed {name} stays", ended(rewrite(work, "own"), 1, [name, "changed since pare wrote it"]) or expect(path.read_bytes() == mine, True))

    folder = fresh(work, "own")
    odd = folder / "model-2024 my run 7-of-9 (best).safetensors"
    odd.write_bytes(weights)
    report.check("weights of another name stay", ended(rewrite(work, "own"), 1, ["my run 7"]) or expect(odd.exists(), True))
    folder = fresh(work, "own")
    (folder / "vocab.txt").symlink_to("../ids.json")
    report.check("a link stays", ended(rewrite(work, "own"), 1, ["vocab.txt"]) or expect((folder / "vocab.txt").is_symlink(), True))

    shutil.copytree(work / "gpt", work / "fake")
    (work / "fake" / "thesis.txt").write_text("thesis")
    hashed = hashlib.sha256(b"thesis").hexdigest()
    (work / "fake" / "certificate.json").write_text(json.dumps({"tool": {"name": "pare"}, "companions": {"thesis.txt": hashed}}))
    report.check("a certificate of nothing frees nothing", ended(rewrite(work, "fake"), 1, ["thesis.txt"]) or expect((work / "fake" / "thesis.txt").exists(), True))

    (work / "real" / "deep" / "sub").mkdir(parents=True)
    (work / "models").mkdir()
    (work / "models" / "link").symlink_to("../real/deep/sub")
    fresh(work, "models/out")
    before = (work / "models" / "out" / "certificate.json").stat().st_ino
    report.check("link/../out is where the system says", ended(rewrite(work, "models/link/../out")) or expect(
        [(work / "real" / "deep" / "out").is_dir(), (work / "models" / "out" / "certificate.json").stat().st_ino], [True, before]))

    shutil.copytree(work / "gpt", work / "linked")
    (work / "linked" / "1_Pooling").mkdir()
    fresh(work, "target")
    (work / "linked" / "1_Pooling" / "x.json").symlink_to("../../target/config.json")
    report.check("a link of the source into the output, one folder down", ended(rewrite(work, "target", model="linked"), 1, ["never changed"]))


def check_race(report, work):
    """A file that appears while it is written stays. The lock of the temporary is there, and held."""
    folder = fresh(work, "raced")
    (work / "large.json").write_text(json.dumps({**GPT, "width": 512, "vocab": 20000, "blocks": [{**GPT["blocks"][0], "attention": {
        **GPT["blocks"][0]["attention"], "heads": 8, "head_width": 64}, "mlp": {**GPT["blocks"][0]["mlp"], "width": 2048}}]}))
    report.check("init large", ended(pare("init", "large.json", "-o", "large", cwd=work)))
    process = subprocess.Popen([str(PARE), "rewrite", "large", "-o", "raced", "--passes", "auto", "--force"], cwd=work,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(work.glob(".raced.partial-*")):
        time.sleep(0.005)
    (folder / "thesis.txt").write_text("thesis")
    _, error = process.communicate()
    report.check("a file that appeared meanwhile", expect([process.returncode, "thesis.txt" in error, (folder / "thesis.txt").exists()], [1, True, True]))
    report.check("nothing is left of it", expect([path.name for path in work.glob(".raced*")], []))

    process = subprocess.Popen([str(PARE), "rewrite", "large", "-o", "hung", "--passes", "auto"], cwd=work,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(work.glob(".hung.partial-*")):
        time.sleep(0.005)
    process.send_signal(signal.SIGHUP)
    report.check("a closed terminal", expect([process.wait(), [path.name for path in work.glob(".hung*")]], [130, []]))


def check_copies(report, work):
    source = work / "private"
    shutil.copytree(work / "gpt", source)
    (source / "token.txt").write_text("secret")
    (source / "token.txt").chmod(0o600)
    (source / "2_Normalize").mkdir()
    (source / "modules.json").write_text('[{"path": "2_Normalize"}]')
    (source / os.fsdecode(b"bad\xff.txt")).write_text("x")
    result = rewrite(work, "copied", model="private")
    report.check("copies", ended(result, 0, ["bad\\xff.txt was not copied"]))
    report.check("as private as they were", expect(oct((work / "copied" / "token.txt").stat().st_mode & 0o777), "0o600"))
    report.check("an empty folder goes along", expect((work / "copied" / "2_Normalize").is_dir(), True))
    (work / "copied").chmod(0o700)
    report.check("and again", ended(rewrite(work, "copied", model="private")) or expect(oct((work / "copied").stat().st_mode & 0o777), "0o700"))


def check_limits(report, work):
    def asked(*flags, passes="drop_key_bias", model="gpt"):
        return pare("rewrite", model, "-o", "limited", "--force", "--passes", passes, *flags, cwd=work)
    report.check("--max-error is kept by what is measured", ended(asked("--dtype", "bf16", "--max-error", "1e-9"), 2, ["storing it so", "allowed 1e-09 (--max-error)"]))
    report.check("narrowing is predicted", ended(asked("--dtype", "bf16"), 0, ["noise of bfloat16"], ["predicted 0,"]))
    report.check("a looser --max-error loses nothing", ended(asked("--max-error", "1e-3", passes="auto", model="grouped"), 0, [": proved"]))
    report.check("no target is advised that is no other", ended(asked("--dtype", "bf16", passes="merge_skipless{target=q}", model="grouped"), 3, ["--dtype float64"], ["target=best"]))
    report.check("compat in fewer digits claims no size", ended(asked("--form", "compat", "--dtype", "fp16", passes="auto"), 0, ["keeps every tensor in its shape"], ["size"]))
    for value in ("0", "-1", "1%", "nan", "inf"):
        report.check(f"--max-error {value}", ended(asked(f"--max-error={value}"), 1, ["not a positive number"]))


def check_words(report, work):
    def asked(passes, *flags):
        return pare("rewrite", "gpt", "-o", "worded", "--force", "--no-verify", "--passes", passes, *flags, cwd=work)
    report.check("a space after the comma", ended(asked("drop_key_bias, fold_value_bias")))
    report.check("atuo", ended(asked("atuo"), 1, ["did you mean auto"]))
    report.check("auto and more", ended(asked("auto,drop_key_bias"), 1, ["'auto' stands alone"]))
    report.check("auto has no options", ended(asked("auto{x=1}"), 1, ["'auto' has no options"], ["did you mean"]))
    report.check("nothing to sharpen", ended(asked("lower_mlp_to_heads{sharpness=7}"), 1, ["only approximate=relu"]))
    for word in ("BF16", "torch.bfloat16", "Half"):
        report.check(f"--dtype {word}", ended(asked("drop_key_bias", "--dtype", word)))
    report.check("names that a shell takes", ended(pare("rewrite", "gpt", "-o", "x", "--passes", "eliminate_projection{target=q}", cwd=work), 2, ["refused: 'eliminate_projection{target=q}':"]))
    (work / "zoo").mkdir()
    shutil.copytree(work / "gpt", work / "zoo" / "gpt2-f32")
    report.check("a path mistyped", ended(pare("audit", "zoo/gpt2-f23", cwd=work), 1, ["did you mean 'zoo/gpt2-f32'"], ["hf download"]))
    for word in ("bert-base-uncased", "https://huggingface.co/gpt2"):
        report.check(f"a hub id: {word}", ended(pare("audit", word, cwd=work), 1, ["hf download"]))


def check_reader_gone(report, work):
    """The exit code is the verdict's, also where nobody reads what is printed."""
    report.check("init other", ended(pare("init", "gpt.json", "-o", "other", "--seed", "7", cwd=work)))
    for flags in ([], ["--json"]):
        reading, writing = os.pipe()
        os.close(reading)
        process = subprocess.run([str(PARE), "verify", "gpt", "other", *flags], cwd=work, stdout=writing, stderr=subprocess.DEVNULL)
        os.close(writing)
        report.check(f"verify {flags} into a closed pipe", expect(process.returncode, 3))


def main():
    report = Report("found by trying")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name, model in (("gpt", GPT), ("grouped", GROUPED)):
            (work / f"{name}.json").write_text(json.dumps(model))
            report.check(f"init {name}", ended(pare("init", f"{name}.json", "-o", name, "--generic", cwd=work)))
        check_kept(report, work)
        check_race(report, work)
        check_copies(report, work)
        check_limits(report, work)
        check_words(report, work)
        check_reader_gone(report, work)
    report.finish()


if __name__ == "__main__":
    main()
