#!/usr/bin/env python3
"""pare train from a model: from, teacher, morph; killed while it changes, and continued; then rewritten exactly."""

import itertools
import json
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
from report import PARE, Report, curve, ended, expect, pare

NORM = {"kind": "rms"}
ARCHITECTURE = {"width": 16, "vocab": 16, "context": 32, "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 8, "norm": NORM},
                "mlp": {"width": 32, "activation": "gelu", "norm": NORM}}], "final_norm": NORM, "head": {"tied": True}}
CONFIG = {"task": "sorting", "data": {"length": 5}, "batch": 8, "steps": 60, "optimiser": {"lr": 3e-3, "min_lr": 1e-3, "warmup": 5},
          "evaluate": {"every": 20, "batches": 2}, "checkpoint": {"every": 7}}
MORPH = ["from=source", "morph.to.norms=none", "morph.steps=40"]


def check_morph(report, work):
    result = pare("train", "config.json", "-o", "run", *MORPH, "teacher=source", cwd=work)
    report.check("norms go", ended(result, 0, ["run: 60 steps", "18 of 18 tensors taken"]))
    at = {line["step"]: line for line in curve(work / "run") if "loss" in line}
    shown = [f"step 20 of 60  loss {at[20]['cross_entropy']:.4f}  ", f"run: 60 steps, loss {at[60]['cross_entropy']:.4f}, validation"]
    report.check("the loss that stands beside the validation loss is of the same kind", ended(result, 0, shown))
    report.check("which is not what is minimised", expect([abs(at[step]["cross_entropy"] - at[step]["loss"]) > 1e-3 for step in (20, 60)], [True, True]))
    start = json.loads((work / "run/start.json").read_text())
    report.check("who it was", expect([sorted(start), start["from"]["path"], start["from"]["not_taken"]], [["from", "teacher"], "source", []]))
    import hashlib
    hashed = hashlib.sha256((work / "source/model.safetensors").read_bytes()).hexdigest()
    report.check("its hash", expect(start["from"]["sha256"]["model.safetensors"], hashed))
    configs = {step: json.loads((work / f"run/checkpoints/{step}/config.json").read_text())["architecture"] for step in (0, 60)}
    report.check("norms before", expect(configs[0]["final_norm"]["kind"], "rms"))
    report.check("none after", expect("rms" in json.dumps(configs[60]), False))
    document = json.loads(pare("train", "-o", "run", "--resume", "--json", "--quiet", cwd=work).stdout)["runs"][0]
    count = json.loads(pare("audit", "run/checkpoints/60", "--json", cwd=work).stdout)["parameters"]
    report.check("its parameters are those of the end", expect(document["parameters"], count))
    report.check("what the norms forbade", ended(pare("rewrite", "source", "-o", "no", "--passes", "eliminate_projection", cwd=work), 2))
    report.check("is exact now", ended(pare("rewrite", "run/checkpoints/60", "-o", "less", "--passes", "eliminate_projection", cwd=work), 0))
    verdict = json.loads((work / "less/certificate.json").read_text())["verdict"]
    report.check("and proved", expect(verdict, "proved"))


def check_killed(report, work):
    arguments = ["config.json", "-o", "killed", *MORPH, "teacher=source"]
    process = subprocess.Popen([str(PARE), "train", *arguments], cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = work / "killed/metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count('"loss"') >= 25):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    report.check("killed while it changes, continued", ended(pare("train", "-o", "killed", "--resume", cwd=work)))
    report.check("the same curve", expect(curve(work / "killed") == curve(work / "run"), True))
    models = [(work / run / "checkpoints/60/model.safetensors").read_bytes() for run in ("killed", "run")]
    report.check("the same weights", expect(models[0] == models[1], True))


def check_stopped(report, work):
    """A morph that its loss ends goes on as if nothing had been: what the bad step measured is not in its constants."""
    report.check("with all checkpoints", ended(pare("train", "config.json", "-o", "stopped", *MORPH, "teacher=source", "checkpoint.keep=0", cwd=work)))
    for checkpoint in (work / "stopped/checkpoints").iterdir():
        if int(checkpoint.name) > 7:
            shutil.rmtree(checkpoint)
    losses = [line["loss"] for line in curve(work / "run") if "loss" in line]
    bad = next(n for n in range(9, 40) if losses[n] > max(losses[7:n]))  # more than all since the checkpoint
    result = pare("train", "-o", "stopped", "--resume", f"stop_above={max(losses[7:bad])}", cwd=work)
    report.check("stopped while it changes", ended(result, 1, [f"after step {bad} ", "its last checkpoint is stopped/checkpoints/7"]))
    report.check("and continued", ended(pare("train", "-o", "stopped", "--resume", "stop_above=1000", cwd=work)))
    report.check("the same curve again", expect(curve(work / "stopped") == curve(work / "run"), True))


STUDENT = {1: 12.7062047, 2: 4.3026527, 3: 3.1824463, 4: 2.7764451, 5: 2.5705818, 6: 2.4469119}  # 97.5 % of Student's t, by degrees of freedom: any table


def costs_wrong(measured):
    """What the kept runs say, computed anew: each seed against the model that it began as."""
    runs = {run["name"]: run for run in json.loads((ROOT / "experiments/norm-removal/runs.json").read_text())["runs"]}
    expected = []
    kinds = {"norms": "norms", "norms and MLP skips": "norms-and-skips", "a narrower MLP instead": "smaller-mlp", "W_Q = I instead": "no-query"}
    for model, (what, variant), length in itertools.product(("stories260K", "bytes"), kinds.items(), ("long-", "", "short-")):
        found = [run for name, run in runs.items() if re.fullmatch(re.escape(f"own-{length}{variant}-{model}") + r"-lr[0-9.]+-seed[0-9]+", name)]
        ended_well = [run for run in found if "stopped" not in run]
        (nats, half), (stories, stories_half) = (mean_and_half([of(run) for run in ended_well]) for of in (
            lambda run: run["loss"] - run["validation"]["0"], lambda run: run["seen"]["stories"]))
        for run in ended_well[:1]:
            expected.append({"what": what, "model": model, "parameters": run["parameters"], "steps": run["config"]["steps"],
                             "morph_steps": run["config"]["morph"]["steps"], "nats": nats, "half_width": half, "stories": stories,
                             "stories_half_width": stories_half, "seeds": len(ended_well), "stopped": len(found) - len(ended_well)})
    near = lambda cost: {key: round(value, 5) if isinstance(value, float) else value for key, value in cost.items()}
    return expect([near(cost) for cost in measured], [near(cost) for cost in expected])


def mean_and_half(numbers):
    numbers = [number for number in numbers if number is not None]
    half = STUDENT[len(numbers) - 1] * statistics.stdev(numbers) / len(numbers) ** 0.5 if len(numbers) > 1 else None
    return statistics.mean(numbers) if numbers else None, half


def check_command_line(report, work):
    """No file at all, and what audit says can be run."""
    data = ["task=sorting", "data.length=5", "steps=3", "batch=2", "morph.steps=2"]
    report.check("all on the command line", ended(pare("train", "from=source", "morph.to.mlp.skip=false", *data, "-o", "line", cwd=work)))
    skips = json.loads((work / "line/checkpoints/3/config.json").read_text())["architecture"]["blocks"]
    report.check("it did what it says", expect([block["mlp"]["skip"] for block in skips], [False]))
    for model, what in (("untied", "norms"), ("source", "norms and MLP skips")):  # a tied table leaves no basis where all is one stream
        found = json.loads(pare("audit", model, "--json", cwd=work).stdout)["without_norms"]
        report.check(f"audit of {model} names the way", expect([found["what"], "eliminate_projection" in found["passes"], found["obstacles"]], [what, True, []]))
        text = pare("audit", model, cwd=work)
        report.check(f"audit of {model}: what it cost", costs_wrong(found["measured"]))
        report.check(f"audit of {model}, in words", ended(text, 0, [f"without its {what}", f"pare train from={model} teacher={model}", "Measured on one H200", "+0."]))
    smaller = {"batch=64": "batch=4", "steps=12000": "steps=6", "morph.steps=6000": "morph.steps=4", "morph.steps=4000": "morph.steps=4",
               "data.samples.count=32768": "data.samples.count=40", "[TOKEN]": "[3]", "--device cuda": "--device cpu", "dtype=bfloat16": "dtype=float32"}
    for command in found["commands"]:
        for old, new in smaller.items():
            command = command.replace(f" {old}", f" {new}") if not old.startswith("[") else command.replace(old, new)
        result = subprocess.run(["bash", "-c", command.replace("pare ", f"'{PARE}' ", 1)], cwd=work, capture_output=True, text=True)
        report.check(f"the command works: {command.split()[2]}", ended(result, 0))
    report.check("it went as far as it says", expect(json.loads((work / "RUN/config.json").read_text())["steps"], 6))
    report.check("no norms, no way", expect("without_norms" in json.loads(pare("audit", "RUN/checkpoints/6", "--json", cwd=work).stdout), False))
    one = pare("train", "from=source", "morph.to.blocks.1.mlp.skip=false", *data, "-o", "one", cwd=work)
    skips = [block["mlp"]["skip"] for block in json.loads((work / "one/checkpoints/3/config.json").read_text())["architecture"]["blocks"]]
    report.check("a block is that of the tensors' names", ended(one) or expect(skips, [True, False]))
    changed = pare("train", "from=source", "architecture.blocks.*.mlp.width=8", *data[:-1], "-o", "narrow", cwd=work)
    report.check("a change of what it starts from", ended(changed, 0, ["not taken: blocks.0.mlp.down.weight (it is [16, 32] there, [16, 8] here)"]))


def check_bytes(report, work):
    """A text that is read as bytes by a model of other tokens is worth a word."""
    (work / "TEXT").write_bytes(bytes(i * i % 16 for i in range(4000)))
    arguments = ["train", "from=source", 'data.train=["TEXT"]', "steps=1", "batch=2", "optimiser.warmup=0"]
    report.check("sixteen tokens may be bytes", ended(pare(*arguments, "-o", "bytes", cwd=work), 0, [], ["warning"]))
    (work / "source/vocab.txt").write_text("[UNK]\n##a\n")
    report.check("a tokenizer is there", ended(pare(*arguments, "-o", "as-bytes", cwd=work), 0, ["warning: each byte of the text is a token", "data.tokenizer=source"]))
    (work / "source/vocab.txt").unlink()
    (work / "large.json").write_text(json.dumps(ARCHITECTURE | {"vocab": 300}))
    report.check("a large vocabulary", ended(pare("init", "large.json", "-o", "large", cwd=work)) or ended(pare(*arguments, "from=large", "-o", "large-run", cwd=work), 0, ["has 300 tokens"]))
    (work / "sorter.json").write_text(json.dumps(ARCHITECTURE | {"task": "classifier", "head": {"classes": 3, "pool": "last"}}))
    pare("init", "sorter.json", "-o", "sorter", cwd=work)
    found = json.loads(pare("audit", "sorter", "--json", cwd=work).stdout).get("without_norms", {})
    report.check("a classifier draws no text: nothing is advised that was not measured", expect([found.get("commands"), "classifier" in found.get("unmeasured", "")], [[], True]))


def check_own_teacher(report, work):
    """A model that learns from itself begins with a loss of nearly zero: three times that is no limit."""
    own = pare("train", "from=source", "teacher=source", "distillation.weight=1", "task=sorting", "data.length=5", "steps=6", "batch=2", "-o", "own", cwd=work)
    report.check("its own teacher", ended(own, 0, ["own: 6 steps"]))
    stopped = pare("train", "from=source", "task=sorting", "data.length=5", "steps=6", "batch=2", "stop_above=0.001", "-o", "low", cwd=work)
    report.check("a limit is named", ended(stopped, 1, ["training stopped: after step 0", "stop_above"]))
    report.check("and may be changed", ended(pare("train", "-o", "low", "--resume", "stop_above=100", cwd=work), 0, ["low: 6 steps"]))


def check_wrong_use(report, work):
    data = ["task=sorting", "data.length=5", "steps=3"]
    for arguments, words in ((["from=nothing"], "nothing"), (["from=source", "morph.to.vocab=3", "morph.steps=2"], "vocab: 16 cannot be turned into 3"),
                             (["from=source", "morph.to.norms=none"], "morph.steps: 0"), (["from=source", "morph.to.nroms=none", "morph.steps=2"], "nroms"),
                             (["from=source", "morph.to.attention.query=identity", "morph.to.norms=none", "morph.steps=2"], "let the norm go in this run and that projection stay"),
                             (["from=source", "morph.to={}", "morph.steps=2"], "{} changes nothing"),
                             (["from=source", "morph.to.mlp.skip=true", "morph.steps=2"], "the model is that already"),
                             (["from=source", "morph.to.blocks.1.mlp.width=64", "morph.steps=2"], "blocks.1.mlp.width: 32 cannot be turned into 64: an MLP can lose neurons, and gain none"),
                             (["from=line/checkpoints/3", "morph.to.mlp.skip=true", "morph.steps=2"], "a skip can go, and none can come"),
                             (["from=source", "teacher=gpt3"], "gpt3"), (["from=source", "teacher=other"], "its vocabulary has 9 tokens, this run's 16"),
                             (["from=source", "distillation.weight=2"], "more than 1"), (["morph.steps=2"], "or a model to start from")):
        result = pare("train", *arguments, *data, "-o", "wrong", cwd=work)
        report.check(" ".join(arguments), ended(result, 1, [words]))
        report.check(f"{' '.join(arguments)}: nothing is left", expect((work / "wrong").exists(), False))


def main():
    report = Report("morph")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "config.json").write_text(json.dumps(CONFIG))
        (work / "source.json").write_text(json.dumps(ARCHITECTURE))
        (work / "other.json").write_text(json.dumps(ARCHITECTURE | {"vocab": 9}))
        (work / "untied.json").write_text(json.dumps(ARCHITECTURE | {"head": {"tied": False}}))
        for name in ("source", "other", "untied"):
            report.check(f"a {name} model", ended(pare("init", f"{name}.json", "-o", name, cwd=work)))
        check_morph(report, work)
        check_killed(report, work)
        check_stopped(report, work)
        check_command_line(report, work)
        check_bytes(report, work)
        check_own_teacher(report, work)
        check_wrong_use(report, work)
    report.finish()


if __name__ == "__main__":
    main()
