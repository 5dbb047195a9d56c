#!/usr/bin/env python3
"""pare train and pare compare: a run, killed with -9, interrupted, locked out, on a full disk; a sweep, compared."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
from report import PARE, Report, ended, pare

ARCHITECTURE = {"width": 16, "vocab": 16, "context": 32, "embedding": {"position": "learned"},
                "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 8}, "mlp": {"width": 32, "activation": "gelu"}}]}
CONFIG = {"architecture": ARCHITECTURE, "task": "sorting", "data": {"length": 5}, "batch": 8, "steps": 60,
          "optimiser": {"lr": 1e-2, "min_lr": 1e-3, "warmup": 5}, "evaluate": {"every": 20, "batches": 2}, "checkpoint": {"every": 7}}


def expect(found, wanted):
    return "" if found == wanted else f"found {found!r}, expected {wanted!r}"


def curve(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def same_curve(found, wanted):
    for a, b in zip(found, wanted):
        if a != b:
            return f"first differs where {a} should be {b}"
    return expect(len(found), len(wanted))


def begin(work, *arguments, **options):
    return subprocess.Popen([str(PARE), "train", *arguments], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def wait_for(run, steps, process):
    """Until the run has measured so many steps, or its process has ended."""
    while process.poll() is None:
        if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text().count('"loss"') >= steps:
            return
        time.sleep(0.01)


def check_run(report, work):
    result = pare("train", "config.json", "-o", "whole", cwd=work)
    report.check("a run", ended(result, 0, ["whole: 60 steps", "validation"]))
    report.check("plain lines where there is no terminal", expect([c for c in "\r\x1b" if c in result.stderr], []))
    report.check("progress", ended(result, 0, ["step 20 of 60  loss", "tokens/s", "left"]))
    report.check("what is in it", expect(sorted(p.name for p in (work / "whole").iterdir()),
                                         ["checkpoints", "config.json", "data.json", "metrics.jsonl"]))
    report.check("its checkpoints", expect(sorted(p.name for p in (work / "whole/checkpoints").iterdir()), ["0", "56", "60"]))
    report.check("a checkpoint is a model", ended(pare("audit", "whole/checkpoints/60", cwd=work)))
    report.check("and can be rewritten", ended(pare("rewrite", "whole/checkpoints/60", "-o", "less", "--passes", "shrink_head_pairs", cwd=work)))
    report.check("not twice", ended(pare("train", "config.json", "-o", "whole", cwd=work), 1, ["exists already"]))
    document = json.loads(pare("train", "config.json", "-o", "again", "--json", "--quiet", cwd=work).stdout)["runs"][0]
    report.check("the document", expect([document["steps"], document["resumed_from"]], [60, 0]))
    report.check("the same seed, the same curve", same_curve(curve(work / "again"), curve(work / "whole")))


def check_kill(report, work):
    for steps in (3, 20, 41):
        name = f"killed-{steps}"
        process = begin(work, "config.json", "-o", name)
        wait_for(work / name, steps, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        done = len([line for line in (work / name / "metrics.jsonl").read_text().splitlines() if '"loss"' in line])
        if done >= 60:
            report.skip(f"killed at {steps}", "it had ended by then")
            continue
        report.check(f"killed at {steps}, continued", ended(pare("train", "-o", name, "--resume", cwd=work)))
        report.check(f"killed at {steps}: the same curve", same_curve(curve(work / name), curve(work / "whole")))
        models = [(work / run / "checkpoints/60/model.safetensors").read_bytes() for run in (name, "whole")]
        report.check(f"killed at {steps}: the same weights", expect(models[0] == models[1], True))


def check_interrupt(report, work):
    process = begin(work, "config.json", "-o", "stopped", "steps=100000", "checkpoint.every=100000")
    wait_for(work / "stopped", 5, process)
    locked = pare("train", "-o", "stopped", "--resume", cwd=work)
    report.check("a second process", ended(locked, 1, ["is in use", "another process"]))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    report.check("Ctrl-C", expect(process.returncode, 130))
    saved = max(int(p.name) for p in (work / "stopped/checkpoints").iterdir())
    report.check("it saved what it had done", expect(saved, max(line["step"] for line in curve(work / "stopped"))))


def check_full_disk(report, work):
    """A limit on the size of files is as near as one gets to a full disk without being root."""
    script = f'ulimit -f 40; exec "{PARE}" train config.json -o full "architecture.blocks.*.mlp.width=64"'
    result = subprocess.run(["bash", "-c", script], cwd=work, capture_output=True, text=True)
    report.check("a start that cannot be written", expect([result.returncode, (work / "full").exists()], [1, False]))
    result = pare("train", "config.json", "-o", "wide", "steps=3", cwd=work)
    script = f'ulimit -f 20; exec "{PARE}" train config.json -o wide --resume steps=3'
    for checkpoint in (work / "wide/checkpoints").iterdir():
        if checkpoint.name == "3":
            subprocess.run(["rm", "-r", str(checkpoint)])
    result = subprocess.run(["bash", "-c", script], cwd=work, capture_output=True, text=True)
    report.check("a checkpoint that cannot be written", ended(result, 1, ["kept as it was at step 0", "--resume"]))
    report.check("is not half there", expect(sorted(p.name for p in (work / "wide/checkpoints").iterdir() if not p.name.startswith(".")), ["0"]))
    report.check("and the run goes on", ended(pare("train", "config.json", "-o", "wide", "--resume", "steps=3", cwd=work), 0, ["3 steps"]))


def check_sweep(report, work):
    sweep = CONFIG | {"steps": 20, "sweep": {"seeds": [0, 1], "variants": {
        "base": {}, "no-query": {"architecture.blocks.*.attention.query": "identity"}}}}
    (work / "sweep.json").write_text(json.dumps(sweep))
    result = pare("train", "sweep.json", "-o", "sweep", cwd=work)
    names = ["base-seed0", "base-seed1", "no-query-seed0", "no-query-seed1"]
    report.check("a sweep", ended(result, 0, [f"sweep/{name}" for name in names]))
    report.check("is resumed", ended(pare("train", "sweep.json", "-o", "sweep", "--resume", cwd=work)))
    runs = [f"sweep/{name}" for name in names]
    report.check("compare", ended(pare("compare", *runs, cwd=work), 0, ["base", "no-query", "2 (±", "difference", "after 20 steps"]))
    rows = json.loads(pare("compare", *runs, "--json", cwd=work).stdout)["runs"]
    report.check("two rows of two seeds", expect([(r["name"], len(r["losses"])) for r in rows], [("base", 2), ("no-query", 2)]))
    report.check("parameters", expect(rows[0]["parameters"] - rows[1]["parameters"], 2 * 16 * 16))
    report.check("a sweep nowhere", ended(pare("train", "sweep.json", "-o", "no/such/place", cwd=work), 1, ["no folder 'no/such'"]))
    refused = pare("compare", "sweep/base-seed0", "whole", "model", cwd=work)
    report.check("not a run", ended(refused, 1, ["is not a run"]))
    pare("train", "config.json", "-o", "other", "data.seed=4", "steps=5", cwd=work)
    report.check("other data", ended(pare("compare", "sweep/base-seed0", "other", cwd=work), 1, ["same data", "order.seed"]))


def check_text(report, work):
    (work / "text").write_text("to be or not to be, that is the question. " * 60)
    config = CONFIG | {"task": "causal_lm", "data": {"train": ["text"]}, "steps": 20, "architecture": ARCHITECTURE | {"vocab": 128}}
    (work / "text.json").write_text(json.dumps(config))
    report.check("a text", ended(pare("train", "text.json", "-o", "text-run", cwd=work)))
    manifest = json.loads((work / "text-run/data.json").read_text())
    import hashlib
    report.check("the hash", expect(manifest["data"]["train"][0]["sha256"], hashlib.sha256((work / "text").read_bytes()).hexdigest()))
    report.check("the hash of the order", expect(manifest["order"]["sha256"], hashlib.sha256((work / "text-run/order.i32").read_bytes()).hexdigest()))
    with open(work / "text", "a") as file:
        file.write("more")
    report.check("a text that changed", ended(pare("train", "-o", "text-run", "--resume", cwd=work), 1, ["other data"]))
    for name, content, words in (("empty", "", "is empty"), ("short", "abc", "too few")):
        (work / name).write_text(content)
        result = pare("train", "text.json", "-o", f"{name}-run", f'data.train=["{name}"]', cwd=work)
        report.check(f"a text that is {name}", ended(result, 1, [words]))
        report.check(f"{name}: nothing is left", expect((work / f"{name}-run").exists(), False))


def check_edited(report, work):
    """A run folder that somebody edited: said, never a bug."""
    def edited(name, change):
        shutil.copytree(work / "whole", work / "edited")
        change(work / "edited")
        report.check(f"edited: {name}", ended(pare("train", "-o", "edited", "--resume", cwd=work), 1))
        shutil.rmtree(work / "edited")

    for text in ("[1, 2]", "null", '"x"', "{}"):
        edited(f"data.json is {text}", lambda run: (run / "data.json").write_text(text))
    for line in ('{"step":40,"validation":"x"}', '{"step":1,"loss":[]}', '{"step":1,"loss":null,"lr":1}'):
        edited(f"metrics end with {line}", lambda run: (run / "metrics.jsonl").open("a").write(line + "\n"))
    edited("an optimiser's file that is a model", lambda run: shutil.copy(run / "checkpoints/60/model.safetensors", run / "checkpoints/60/optimizer.safetensors"))


def check_wrong_use(report, work):
    for arguments, words in (([], "-o RUN"), (["-o", "x"], "CONFIG.json"), (["config.json", "-o", "x", "bacth=3"], "did you mean 'batch'?"),
                             (["config.json", "-o", "x", "optimiser.lrr=3"], "did you mean 'lr'?"), (["config.json", "-o", "x", "steps"], "KEY=VALUE"),
                             (["config.json", "-o", "x", "architecture=gpt3"], "gpt2"), (["config.json", "-o", "no/such/place"], "no/such"),
                             (["config.json", "-o", "x", "architecture.blocks.9.wiring=serial"], "list of"), (["missing.json", "-o", "x"], "missing.json"),
                             (["config.json", "-o", "x", "optimiser.lr=1e9", "optimiser.clip=0", "steps=50"], "likely cause")):
        report.check(" ".join(["train", *arguments]), ended(pare("train", *arguments, cwd=work), 1, [words]))
    listed = pare("train", "--print-config").stdout
    keys = [entry["key"] for entry in json.loads(pare("train", "--print-config", "--json").stdout)["keys"]]
    report.check("every key is listed", expect([key for key in keys if f"{key} [" not in listed], []))
    report.check("and every key of a run", expect([key for key in ("optimiser.betas", "data.train", "evaluate.every", "init.recipe") if key not in keys], []))
    report.check("80 columns", expect([line for line in listed.splitlines() if len(line) > 80], []))


def main():
    report = Report("train")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "config.json").write_text(json.dumps(CONFIG))
        check_run(report, work)
        check_kill(report, work)
        check_interrupt(report, work)
        check_full_disk(report, work)
        check_sweep(report, work)
        check_text(report, work)
        check_edited(report, work)
        check_wrong_use(report, work)
    report.finish()


if __name__ == "__main__":
    main()
