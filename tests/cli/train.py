#!/usr/bin/env python3
"""pare train and pare compare: a run, on packed text, shards and images; killed with -9, interrupted, locked out, on a full disk; a sweep, compared."""

import gzip
import hashlib
import json
import lzma
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
from report import PARE, SHARED, Report, curve, ended, expect, interrupted_at, pare

ARCHITECTURE = {"width": 16, "vocab": 16, "context": 32, "embedding": {"position": "learned"},
                "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 8}, "mlp": {"width": 32, "activation": "gelu"}}]}
CONFIG = {"architecture": ARCHITECTURE, "task": "sorting", "data": {"length": 5}, "batch": 8, "steps": 60,
          "optimiser": {"lr": 1e-2, "min_lr": 1e-3, "warmup": 5}, "evaluate": {"every": 20, "batches": 2}, "checkpoint": {"every": 7}}


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
                                         ["checkpoints", "config.json", "data.json", "metrics.jsonl", "run.sha256"]))
    report.check("its checkpoints", expect(sorted(p.name for p in (work / "whole/checkpoints").iterdir()), ["0", "56", "60"]))
    report.check("a checkpoint is a model", ended(pare("audit", "whole/checkpoints/60", cwd=work)))
    report.check("and can be rewritten", ended(pare("rewrite", "whole/checkpoints/60", "-o", "less", "--passes", "shrink_head_pairs", cwd=work)))
    report.check("not twice", ended(pare("train", "config.json", "-o", "whole", cwd=work), 1, ["exists already", "--resume"], ["--force"]))
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
    _, said = process.communicate(timeout=120)
    report.check("Ctrl-C", expect(process.returncode, 130))
    report.check("is answered", expect("pare: stopping, and saving what was done; press Ctrl-C again to stop at once, without saving\n" in said, True))
    report.check("it says how to go on", expect("'pare train --resume -o stopped' goes on from there" in said, True))
    saved = max(int(p.name) for p in (work / "stopped/checkpoints").iterdir())
    report.check("it saved what it had done", expect(saved, max(line["step"] for line in curve(work / "stopped"))))
    shown, code, _ = interrupted_at("loss", "train", "config.json", "-o", "drawn", "steps=100000", cwd=work)
    report.check("Ctrl-C on a terminal", expect([code, "\r\x1b[Kpare: stopping, and saving" in shown], [130, True]))
    process = begin(work, "config.json", "-o", "silent", "steps=100000", "--json", "--quiet")
    wait_for(work / "silent", 5, process)
    process.send_signal(signal.SIGTERM)
    out, said = process.communicate(timeout=120)
    report.check("with --json --quiet stderr stays empty", expect([process.returncode, json.loads(out)["error"]["kind"], said], [130, "interrupted", ""]))


def check_long_step(report, work):
    """A step of many batches is not waited for: it is given up, and what was before it is saved."""
    process = begin(work, "config.json", "-o", "long-step", "steps=5", "accumulate=100000")
    while process.poll() is None and not (work / "long-step").exists():
        time.sleep(0.01)
    time.sleep(0.3)  # into it; which of its batches it is matters not
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    report.check("Ctrl-C in a long step", expect([process.returncode, "saved after step 0" in said], [130, True]))


def check_second_signal(report, work):
    """A second one kills at once, and what has its name is whole."""
    process = begin(work, "config.json", "-o", "twice", "steps=100000", "accumulate=1000")
    wait_for(work / "twice", 0, process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    report.check("killed by the second, or saved before it", expect(process.returncode in (-signal.SIGTERM, 130), True))
    for checkpoint in (p for p in (work / "twice/checkpoints").iterdir() if not p.name.startswith(".")):
        report.check(f"checkpoint {checkpoint.name} is whole", ended(pare("audit", str(checkpoint), cwd=work)))


def check_two_at_once(report, work):
    """Two that begin the same run: one has it, whole, and the other leaves nothing."""
    for attempt in range(2):
        name = f"two-{attempt}"
        processes = [begin(work, "config.json", "-o", name, "steps=10") for _ in range(2)]
        said = [process.communicate(timeout=300)[1] for process in processes]
        codes = sorted(process.returncode for process in processes)
        if codes == [0, 0]:
            report.check("both", f"both say that they wrote it: {said}")
            continue
        report.check("one of two", expect([codes, any(f"'{name}' exists already" in text for text in said)], [[0, 1], True]))
        report.check("nothing is left", expect([p.name for p in work.glob(f".{name}.*")], []))
        report.check("whole", expect(len([line for line in curve(work / name) if "loss" in line]), 10))


def check_stopped(report, work):
    """A run that its loss ends keeps what last measured well, beside the older checkpoints, and goes on."""
    limit = sorted(line["loss"] for line in curve(work / "whole") if "loss" in line)[-3]  # above it are two steps, and the last of them is no first one
    result = pare("train", "config.json", "-o", "high", f"stop_above={limit}", cwd=work)
    bad = [line["step"] for line in curve(work / "whole") if line.get("loss", 0) > limit]
    last = bad[0] - 1
    report.check("stopped", ended(result, 1, [f"training stopped: after step {last} ", "high/checkpoints/", "stop_above"], ["good step"]))
    report.check("and the run goes on", ended(pare("train", "-o", "high", "--resume", "stop_above=1000", cwd=work)))
    report.check("as if nothing had been", same_curve(curve(work / "high"), curve(work / "whole")))
    result = pare("train", "config.json", "-o", "burst", "optimiser.lr=1e30", "optimiser.warmup=0", "optimiser.clip=0", "optimiser.min_lr=0", cwd=work)
    report.check("weights that are no numbers", ended(result, 1, ["training stopped", "What last measured well, step 0 (validation", "is kept as burst/checkpoints/0", "try optimiser.lr=0.001"]))
    report.check("checkpoints hold numbers", ended(pare("audit", str(max((work / "burst/checkpoints").iterdir(), key=lambda p: int(p.name))), cwd=work)))


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


def check_memory(report, work):
    """Scores of 6,000,000 tokens by 6,000,000 of four heads, 576 TB: more than there are addresses."""
    (work / "long").write_bytes(b"words of a text. " * 750_000)
    config = {"architecture": {"width": 8, "vocab": 256, "context": 6_000_000,
                               "blocks": [{"attention": {"heads": 4, "head_width": 2, "softcap": 30}, "mlp": None}]},
              "data": {"train": ["long"], "validation_share": 0.5}, "batch": 1, "steps": 1, "optimiser": {"warmup": 0}, "evaluate": {"batches": 1}}
    (work / "long.json").write_text(json.dumps(config))
    result = pare("train", "long.json", "-o", "too-long", cwd=work)
    report.check("out of memory", ended(result, 1, ["out of memory with batch=1, context=6000000", "Make batch smaller", "accumulate larger"]))


def check_sweep(report, work):
    sweep = CONFIG | {"steps": 20, "sweep": {"seeds": [0, 1], "variants": {
        "base": {}, "no-query": {"architecture.blocks.*.attention.query": "identity"}}}}
    (work / "sweep.json").write_text(json.dumps(sweep))
    report.check("seeds said twice", ended(pare("train", "sweep.json", "-o", "sweep", "--seed", "7", cwd=work), 1, ["by --seed 7 and by the sweep"]))
    result = pare("train", "sweep.json", "-o", "sweep", cwd=work)
    names = ["base-seed0", "base-seed1", "no-query-seed0", "no-query-seed1"]
    report.check("a sweep", ended(result, 0, [f"sweep/{name}" for name in names]))
    report.check("is resumed", ended(pare("train", "sweep.json", "-o", "sweep", "--resume", cwd=work)))
    runs = [f"sweep/{name}" for name in names]
    report.check("compare", ended(pare("compare", *runs, cwd=work), 0, ["base", "no-query", "2 (±", "difference", "after 20 steps"]))
    rows = json.loads(pare("compare", *runs, "--json", cwd=work).stdout)["runs"]
    report.check("two rows of two seeds", expect([(r["name"], len(r["losses"])) for r in rows], [("base", 2), ("no-query", 2)]))
    report.check("parameters", expect(rows[0]["parameters"] - rows[1]["parameters"], 2 * 16 * 16))
    bad = CONFIG | {"steps": 4, "sweep": {"variants": {"a": {}, "bad": {"optimiser.lr": 1e6, "optimiser.warmup": 0}, "c": {}}}}
    (work / "bad.json").write_text(json.dumps(bad))
    result = pare("train", "bad.json", "-o", "uneven", cwd=work)
    report.check("a bad variant does not end the others", ended(result, 1, ["uneven/a: 4 steps", "uneven/c: 4 steps", "1 of 3 runs came to no end", "uneven/bad"]))
    report.check("one run twice is no spread", ended(pare("compare", "uneven/a", "uneven/a", cwd=work), 0, ["2 alike"], ["±"]))
    short = CONFIG | {"steps": 4, "sweep": {"seeds": [0, 1]}, "data": {"train": ["short.txt"]}}
    (work / "short.txt").write_text("x")
    (work / "short.json").write_text(json.dumps({key: value for key, value in short.items() if key != "task"}))
    report.check("a sweep that cannot begin", ended(pare("train", "short.json", "-o", "nothing", cwd=work), 1))
    report.check("leaves no folder", expect((work / "nothing").exists(), False))
    report.check("an empty sweep", ended(pare("train", "config.json", "-o", "hollow", "sweep={}", cwd=work), 1, ["sweep is empty"]))
    report.check("leaves nothing", expect((work / "hollow").exists(), False))
    report.check("no sweep within a run", ended(pare("train", "-o", "whole", "--resume", 'sweep={"seeds":[1,2]}', cwd=work), 1, ["'whole' is a run", "a sweep is a folder of runs"]))
    report.check("nothing is in the run", expect((work / "whole/seed1").exists(), False))
    pare("train", "config.json", "-o", "named", "steps=2", 'sweep={"seeds":[1],"data.seed":[2,3],"optimiser.lr":[1e-3]}', cwd=work)
    report.check("names of a sweep", expect(sorted(p.name for p in (work / "named").iterdir()), ["data.seed2-lr0.001-seed1", "data.seed3-lr0.001-seed1"]))
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
    report.check("the hash", expect(manifest["data"]["train"][0]["sha256"], hashlib.sha256((work / "text").read_bytes()).hexdigest()))
    report.check("the hash of the order", expect(manifest["order"]["sha256"], hashlib.sha256((work / "text-run/order.i32").read_bytes()).hexdigest()))
    report.check("one file is a list of one", ended(pare("train", "text.json", "-o", "one-run", "data.train=text", cwd=work)))
    report.check("the same curve", same_curve(curve(work / "one-run"), curve(work / "text-run")))
    with open(work / "text", "a") as file:
        file.write("more")
    report.check("a text that changed", ended(pare("train", "-o", "text-run", "--resume", cwd=work), 1, ["other data"]))
    for name, content, words in (("empty", "", "is empty"), ("short", "abc", "too few")):
        (work / name).write_text(content)
        result = pare("train", "text.json", "-o", f"{name}-run", f'data.train=["{name}"]', cwd=work)
        report.check(f"a text that is {name}", ended(result, 1, [words]))
        report.check(f"{name}: nothing is left", expect((work / f"{name}-run").exists(), False))


def check_bytes(report, work):
    """A model that learned bytes takes text: run, verify, probe, rewrite, and what is rewritten of it."""
    model = "text-run/checkpoints/20"
    (work / "asked.txt").write_text("to be, or not to be. " * 3)
    report.check("--text: run", ended(pare("run", model, "--text", "asked.txt", "-o", "bytes.safetensors", cwd=work)))
    ids = json.dumps([list((work / "asked.txt").read_bytes())[at:at + 32] for at in range(0, 63, 32)])
    (work / "asked.json").write_text(ids)
    report.check("by hand", ended(pare("run", model, "--tokens", "asked.json", "-o", "ids.safetensors", cwd=work)))
    report.check("the same logits", expect((work / "bytes.safetensors").read_bytes() == (work / "ids.safetensors").read_bytes(), True))
    report.check("--text: probe", ended(pare("probe", model, "--text", "asked.txt", cwd=work)))
    report.check("--text: rewrite", ended(pare("rewrite", model, "-o", "less-bytes", "--passes", "shrink_head_pairs", "--text", "asked.txt", cwd=work)))
    report.check("--text: verify", ended(pare("verify", model, "less-bytes", "--text", "asked.txt", cwd=work)))
    report.check("what is rewritten remembers", ended(pare("run", "less-bytes", "--text", "asked.txt", "-o", "less.safetensors", cwd=work)))
    (work / "foreign.txt").write_text("Grüße")
    report.check("bytes that it never learned", ended(pare("run", model, "--text", "foreign.txt", "-o", "foreign.safetensors", cwd=work), 0, ["warning", "4 characters or bytes of it have no token"]))
    report.check("goes on to learn bytes", ended(pare("train", "text.json", "-o", "further", f"from={model}", "steps=2", "optimiser.warmup=0", cwd=work), 0, [], ["warning"]))
    report.check("prepared bytes", ended(pare("train", "--prepare", "text.json", "-o", "byte-shards", cwd=work)))
    report.check("are bytes", ended(pare("train", "text.json", "-o", "byte-shard-run", "data.train=[]", "data.shards=byte-shards", "steps=2", "optimiser.warmup=0", cwd=work)))
    names = [(work / run / "checkpoints/0/tokenizer.json").exists() for run in ("byte-shard-run", "text-run", "whole")]
    report.check("and nothing else is", expect(names, [True, True, False]))


def check_first_tokens(report, work):
    """A model whose texts begin with a token: warned of where no training window has it, and only there."""
    model = work / "begins"
    letters = {chr(ord("a") + n): n for n in range(26)}
    begins = {"added_tokens": [{"id": 30, "content": "<s>", "special": True}], "model": {"type": "BPE", "vocab": letters, "merges": []},
              "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                 "special_tokens": {"<s>": {"id": "<s>", "ids": [30], "tokens": ["<s>"]}}}}
    architecture = ARCHITECTURE | {"vocab": 40, "context": 8}
    (work / "begins-architecture.json").write_text(json.dumps(architecture))
    report.check("a model whose texts begin so", ended(pare("init", "begins-architecture.json", "-o", "begins", cwd=work)))
    shutil.copytree(model, work / "begins-bare")
    (model / "tokenizer.json").write_text(json.dumps(begins))
    plain = [n % 26 for n in range(200)]
    texts = {"never": plain, "in-training": [*plain[:50], 30, *plain[50:]], "in-validation": [*plain[:190], 30, *plain[190:]], "first": [30, *plain]}
    for name, tokens in texts.items():
        (work / f"{name}.u16").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    config = {"architecture": architecture, "data": {"train": ["never.u16"], "format": "uint16"}, "batch": 2, "steps": 1, "optimiser": {"warmup": 0}}
    (work / "begins.json").write_text(json.dumps(config))
    report.check("prepared", ended(pare("train", "--prepare", "begins.json", "-o", "begins-shards", cwd=work)))
    says = ["warning: ", "tokenizer.json' puts token 30 (<s>) before each text, and no training window contains it", "data.samples"]
    said = {"from": ["from=begins"], "teacher": ["teacher=begins"], "seen in validation only": ["from=begins", "data.train=in-validation.u16"],
            "shards": ["from=begins", "data.train=[]", "data.format=bytes", "data.shards=begins-shards"],
            "data.tokenizer": ["from=begins-bare", "data.tokenizer=begins", "data.format=bytes", "data.train=letters.txt"]}
    not_said = {"in a window": ["from=begins", "data.train=in-training.u16"], "in a window, teacher": ["teacher=begins", "data.train=first.u16"],
                "no model before": [], "a model that says nothing": ["from=begins-bare"]}
    (work / "letters.txt").write_text("abcdefgh" * 30)
    for name, settings in (said | not_said).items():
        result = pare("train", "begins.json", "-o", f"begins-run-{name.replace(' ', '-')}", *settings, cwd=work)
        report.check(f"first tokens: {name}", ended(result, 0, says if name in said else [], [] if name in said else ["training window"]))
        if name in said:
            report.check(f"first tokens: {name}: once", expect(result.stderr.count("training window"), 1))
    report.check("first tokens: not again", ended(pare("train", "-o", "begins-run-from", "--resume", cwd=work), 0, [], ["warning"]))
    stories = SHARED / "models/stories260K"
    if not stories.exists():
        return report.skip("bos_token_id", f"{stories} is not there")
    shutil.copytree(stories, work / "stories", ignore=shutil.ignore_patterns("tok*"))
    (work / "stories.json").write_text(json.dumps({"from": "stories", "data": {"train": ["never.u16"], "format": "uint16"}, "context": 8, "batch": 2, "steps": 1, "optimiser": {"warmup": 0}}))
    words = "texts of 'stories' begin with token 1 (bos_token_id in its config.json), and no training window contains it"
    (work / "no-one.u16").write_bytes(struct.pack("<200H", *(n % 20 + 2 for n in range(200))))
    report.check("bos_token_id", ended(pare("train", "stories.json", "-o", "stories-run", "data.train=no-one.u16", cwd=work), 0, ["warning: ", words]))
    report.check("bos_token_id, in a window", ended(pare("train", "stories.json", "-o", "stories-seen", cwd=work), 0, [], ["training window"]))
    shutil.copy(stories / "tok512.bin", work / "stories")
    result = pare("train", "stories.json", "-o", "stories-both", "data.train=no-one.u16", cwd=work)
    report.check("both say it: once", ended(result, 0, ["tok512.bin' puts token 1 (<s>) before each text"]) or expect(result.stderr.count("training window"), 1))


def check_packed(report, work):
    """The same text packed, as shards, and by a tokenizer: the same bytes are the same run."""
    text = (work / "text").read_bytes()
    (work / "text.gz").write_bytes(gzip.compress(text))
    (work / "text.xz").write_bytes(lzma.compress(text))
    report.check("plain", ended(pare("train", "text.json", "-o", "plain-run", cwd=work)))
    for name in ("gz", "xz"):
        report.check(f".{name}", ended(pare("train", "text.json", "-o", f"{name}-run", f'data.train=["text.{name}"]', cwd=work)))
        report.check(f".{name}: the same curve", same_curve(curve(work / f"{name}-run"), curve(work / "plain-run")))
    report.check("a shorter run", ended(pare("train", "text.json", "-o", "shorter-run", "steps=10", "evaluate.every=10", cwd=work)))
    report.check("saw the beginning of what a longer one saw", ended(pare("compare", "plain-run", "shorter-run", cwd=work), 1, ["no step after their start"]))
    report.check("a run as often looked at", ended(pare("train", "text.json", "-o", "often", "evaluate.every=10", cwd=work)))
    report.check("side by side", ended(pare("compare", "often", "shorter-run", cwd=work), 0, ["after 10 steps", "often is not at its end there: step 10 of 20"]))
    (work / "cut.xz").write_bytes(lzma.compress(text)[:-30])
    (work / "cut.gz").write_bytes(gzip.compress(text)[:-30])
    for name in ("cut.xz", "cut.gz"):
        report.check(name, ended(pare("train", "text.json", "-o", "cut-run", f'data.train=["{name}"]', cwd=work), 1, [name, "incomplete download"]))
    prepared = pare("train", "--prepare", "text.json", "-o", "shards", cwd=work)
    report.check("--prepare", ended(prepared, 0, [f"shards: {len(text):,} tokens for training", "uint16 in 1 file"]))
    words = struct.unpack(f"<{len(text)}H", (work / "shards/train-00000.u16").read_bytes())
    report.check("what it wrote", expect(bytes(words) == text, True))
    report.check("not twice", ended(pare("train", "--prepare", "text.json", "-o", "shards", cwd=work), 1, ["exists already", "remove it"], ["--force"]))
    report.check("a run on shards", ended(pare("train", "text.json", "-o", "shard-run", "data.train=[]", "data.shards=shards", cwd=work)))
    report.check("the same curve", same_curve(curve(work / "shard-run"), curve(work / "plain-run")))
    report.check("all of them are the same data", ended(pare("compare", "plain-run", "gz-run", "xz-run", "shard-run", cwd=work), 0, ["shard-run"]))
    report.check("no shards of a generated task", ended(pare("train", "--prepare", "config.json", "-o", "none", cwd=work), 1, ["only text is prepared"]))
    report.check("no --prepare and --resume", ended(pare("train", "--prepare", "--resume", "text.json", "-o", "none", cwd=work), 1, ["nothing to continue"]))
    (work / "vocab.txt").write_text("[UNK]\nto\nbe\nor\nnot\nthat\nis\nthe\nquest\n##ion\n,\n.\n")
    tokenized = pare("train", "text.json", "-o", "token-run", "data.tokenizer=vocab.txt", cwd=work)
    report.check("a tokenizer", ended(tokenized))
    manifest = json.loads((work / "token-run/data.json").read_text())["data"]
    report.check("its hash", expect(manifest["tokenizer"]["sha256"], hashlib.sha256((work / "vocab.txt").read_bytes()).hexdigest()))
    report.check("its tokens", expect(manifest["contents"]["train"]["tokens"], len(re.findall(r"[a-z]+|[,.]", text.decode().replace("question", "quest ion").replace("more", " more")))))
    (work / "vocab.txt").rename(work / "elsewhere.txt")
    last = max((work / "token-run/checkpoints").iterdir(), key=lambda path: int(path.name))
    report.check("it goes along", expect((last / "vocab.txt").read_bytes(), (work / "elsewhere.txt").read_bytes()))
    (work / "question.txt").write_text("to be, or not to be, that is the question. " * 4)
    report.check("and is found there", ended(pare("run", str(last), "--text", "question.txt", "-o", "question.safetensors", cwd=work)))
    report.check("other tokens, other data", ended(pare("compare", "plain-run", "token-run", cwd=work), 1, ["contents.train.sha256"]))


def png(pixels):
    """A grey PNG of rows of bytes, with nothing but the standard library."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(row) for row in pixels)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def check_images(report, work):
    """Dark and bright pictures in folders: learned, and every way to spoil one is said before anything is written."""
    for label, (name, base) in enumerate((("bright", 160), ("dark", 10))):
        (work / "pictures" / name).mkdir(parents=True)
        for i in range(20):
            (work / "pictures" / name / f"{i}.png").write_bytes(png([[base + (7 * i + 3 * x + y) % 60 for x in range(4)] for y in range(4)]))
    architecture = {"task": "classifier", "width": 16, "context": 5, "embedding": {"position": "learned", "class_token": True, "patch": {"size": 2, "channels": 1, "image": 4}},
                    "blocks": [{"attention": {"heads": 2, "head_width": 8, "mask": "full"}, "mlp": {"width": 32, "activation": "gelu"}}], "head": {"classes": 2}}
    config = CONFIG | {"task": "classifier", "architecture": architecture, "data": {"train": ["pictures"], "format": "folders", "mean": [0.5], "deviation": [0.25]}}
    (work / "images.json").write_text(json.dumps(config))
    result = json.loads(pare("train", "images.json", "-o", "image-run", "--json", "--quiet", cwd=work).stdout)["runs"][0]
    report.check("dark and bright are told apart", expect(result["accuracy"], 1.0))
    manifest = json.loads((work / "image-run/data.json").read_text())
    listed = "".join(f"{hashlib.sha256(png.read_bytes()).hexdigest()}  {png.relative_to(work / 'pictures')}\n" for png in sorted((work / "pictures").glob("*/*"), key=str))
    report.check("the hash of the folder", expect(manifest["data"]["train"][0]["sha256"], hashlib.sha256(listed.encode()).hexdigest()))
    report.check("the classes", expect(manifest["data"]["classes"], ["bright", "dark"]))
    report.check("the images", expect([manifest["training_sequences"], manifest["validation_sequences"], manifest["data"]["mean"]], [36, 4, [0.5]]))
    pixels = b"".join(bytes([base + (7 * i + 3 * x + y) % 60 for y in range(4) for x in range(4)]) for base in (160, 10) for i in sorted(range(20), key=str))
    report.check("the hash of the pixels", expect(manifest["data"]["contents"]["train"]["sha256_of_pixels"], hashlib.sha256(pixels).hexdigest()))
    report.check("continued", ended(pare("train", "-o", "image-run", "--resume", cwd=work)))
    report.check("a checkpoint is a model", ended(pare("audit", "image-run/checkpoints/60", cwd=work)))
    good = png([[9] * 4] * 4)
    for name, content, words in (("wide.png", png([[9] * 5] * 4), "5 x 4 pixels, expected 4 x 4"), ("cut.png", good[:-20], "cannot be decoded"),
                                 ("bad.png", good[:45] + b"xx" + good[47:], "cannot be decoded"), ("text.jpg", b"text", "no JPEG and no PNG"), ("notes.txt", b"", "is no .jpg")):
        (work / "pictures/dark" / name).write_bytes(content)
        report.check(f"images: {name}", ended(pare("train", "images.json", "-o", "spoiled", cwd=work), 1, [name, words]))
        (work / "pictures/dark" / name).unlink()
    (work / "pictures/empty").mkdir()
    report.check("images: an empty class", ended(pare("train", "images.json", "-o", "spoiled", "architecture.head.classes=3", cwd=work), 1, ["empty' has no images"]))
    report.check("images: a class too many", ended(pare("train", "images.json", "-o", "spoiled", cwd=work), 1, ["folders of 3 classes"]))
    report.check("images: nothing is left", expect((work / "spoiled").exists(), False))


def check_damaged(report, work):
    """A checkpoint that a full disk left empty is said and left out."""
    shutil.copytree(work / "whole", work / "damaged")
    for file in (work / "damaged/checkpoints/60").iterdir():
        file.write_bytes(b"")
    report.check("an empty checkpoint", ended(pare("train", "-o", "damaged", "--resume", cwd=work), 0, ["warning", "checkpoints/60' is not whole", "damaged: 60 steps"]))
    report.check("the same curve", same_curve(curve(work / "damaged"), curve(work / "whole")))
    models = [(work / run / "checkpoints/60/model.safetensors").read_bytes() for run in ("damaged", "whole")]
    report.check("the same weights", expect(models[0] == models[1], True))


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
    edited("metrics are emptied", lambda run: (run / "metrics.jsonl").write_text(""))
    edited("a checkpoint is renamed", lambda run: (run / "checkpoints/60").rename(run / "checkpoints/999"))
    edited("an optimiser of another step", lambda run: shutil.copy(run / "checkpoints/56/optimizer.safetensors", run / "checkpoints/60/optimizer.safetensors"))
    edited("an optimiser's file that is a model", lambda run: shutil.copy(run / "checkpoints/60/model.safetensors", run / "checkpoints/60/optimizer.safetensors"))


def check_wrong_use(report, work):
    for arguments, words in (([], "-o RUN"), (["-o", "x"], "CONFIG.json"), (["config.json", "-o", "x", "bacth=3"], "did you mean 'batch'?"),
                             (["config.json", "-o", "x", "optimiser.lrr=3"], "did you mean 'lr'?"), (["config.json", "-o", "x", "steps"], "KEY=VALUE"),
                             (["config.json", "-o", "x", "architecture=gpt3"], "gpt2"), (["config.json", "-o", "no/such/place"], "no/such"),
                             (["config.json", "-o", "x", "architecture.blocks.9.wiring=serial"], "list of"), (["missing.json", "-o", "x"], "missing.json"),
                             (["config.json", "-o", "x", "context=100000000"], "sequences of 10 tokens"),
                             (["-o", "nowhere", "--resume"], "'nowhere' is no run that could be continued: nothing is there"),
                             (["config.json", "-o", "x", "seed=3", "--seed", "7"], "said twice, by --seed 7 and by seed=3"),
                             (["config.json", "-o", "x", "seed=3", "--seed", "0"], "said twice, by --seed 0 and by seed=3"),
                             (["config.json", "-o", "x", 'sweep={"seed":[1,7]}', "--seed", "7"], "by --seed 7 and by the sweep, which has 1 for"),
                             (["config.json", "-o", "x", 'sweep={"variants":{"a":{"seed":2}}}', "--seed", "7"], "by the sweep, which has 2 for a"),
                             (["config.json", "-o", "x", "data.train=3"], "data.train: 3 is not a list"),
                             (["config.json", "-o", "x", "batch=0"], "config.json with batch=0"),
                             (["config.json", "-o", "source/run", "from=source"], "the output 'source/run' lies in 'source'"),
                             (["config.json", "-o", "x", "from=whole"], "'whole' is a training run: its models are in whole/checkpoints"),
                             (["text.json", "-o", "x", "data.tokenizer=whole"], "(--tokenizer, or data.tokenizer)"),
                             (["config.json", "-o", "x", "optimiser.lr=1e9", "optimiser.clip=0", "steps=50"], "likely cause")):
        report.check(" ".join(["train", *arguments]), ended(pare("train", *arguments, cwd=work), 1, [words]))
    for more, words in ((["data.mask_share=0.3"], "data.mask_share changes nothing here: only masked_lm masks"), (["init.embedding=1"], "init.embedding changes nothing here"),
                        (["optimiser.warmup=60"], "never reaches optimiser.lr=0.01"), (["distillation.weight=0.1"], "there is no teacher")):
        name = f"idle-{more[0].split('=')[0]}"
        report.check(" ".join(more), ended(pare("train", "config.json", "-o", name, "steps=2", "optimiser.warmup=0", *more, cwd=work), 0, ["warning", words]))
        report.check(f"{more[0]}: not again", ended(pare("train", "-o", name, "--resume", cwd=work), 0, [], ["warning"]))
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
        (work / "architecture.json").write_text(json.dumps(ARCHITECTURE))
        report.check("a model", ended(pare("init", "architecture.json", "-o", "source", cwd=work)))
        check_run(report, work)
        check_kill(report, work)
        check_interrupt(report, work)
        check_long_step(report, work)
        check_second_signal(report, work)
        check_two_at_once(report, work)
        check_stopped(report, work)
        check_full_disk(report, work)
        check_memory(report, work)
        check_sweep(report, work)
        check_text(report, work)
        check_bytes(report, work)
        check_first_tokens(report, work)
        check_packed(report, work)
        check_images(report, work)
        check_damaged(report, work)
        check_edited(report, work)
        check_wrong_use(report, work)
    report.finish()


if __name__ == "__main__":
    main()
