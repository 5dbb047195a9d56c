#!/usr/bin/env python3
"""pare train as several ranks: the same losses as one process has, whatever launches them; killed, stopped, cut off, out of room."""

import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
from report import PARE, Report, curve, ended, expect, pare

LAYER, RMS = {"kind": "layer", "bias": True}, {"kind": "rms"}
MODEL = {"width": 32, "vocab": 16, "context": 32, "embedding": {"position": "learned"},
         "blocks": [{"repeat": 2, "attention": {"heads": 4, "kv_heads": 2, "head_width": 8, "norm": LAYER, "bias": {"query": True}},
                     "mlp": {"width": 48, "activation": "silu", "gated": True, "norm": LAYER}},
                    {"attention": {"heads": 4, "head_width": 8, "rope": {"width": 8}, "norm": RMS}, "mlp": {"width": 48, "activation": "gelu"}}],
         "final_norm": RMS, "head": {"tied": True}}
CONFIG = {"task": "sorting", "data": {"length": 5}, "architecture": MODEL, "batch": 8, "steps": 24, "dtype": "float64",
          "optimiser": {"lr": 3e-3, "min_lr": 1e-3, "warmup": 5}, "evaluate": {"every": 8, "batches": 5}, "checkpoint": {"every": 6}}


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def environment(rank, size, port, **more):
    """What torchrun would set."""
    return {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", **more}


class Ranks:
    """The same command as several ranks."""

    def __init__(self, size, *arguments, cwd, program=PARE, prefix=lambda rank: [], **more):
        port = free_port()
        self.started = time.monotonic()
        self.processes = [subprocess.Popen([*prefix(rank), str(program), *map(str, arguments)], cwd=cwd, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE, text=True, env=environment(rank, size, port, **more)) for rank in range(size)]

    def ends(self, timeout=240):
        """Exit codes, and what was printed on stdout and stderr, of each rank."""
        found = [process.communicate(timeout=timeout) for process in self.processes]
        self.seconds = time.monotonic() - self.started
        return [process.returncode for process in self.processes], [out for out, _ in found], [err for _, err in found]


def write(work, name, config):
    (work / name).write_text(json.dumps(config))


WHOLE = "PARE_CAMPAIGN" in os.environ
WITH_FOUR = ("a sequence task", "two batches a step", "a morph with evenness", "bfloat16, each moving its part", "blocks held by nobody",
             "blocks held by nobody, a shared block")


def losses(run):
    return [line["loss"] for line in curve(run) if "loss" in line], [(line["validation"], line["accuracy"]) for line in curve(run) if "validation" in line]


def apart(one, other):
    """The largest relative difference of two runs, of losses and of what was measured."""
    (a, b), (c, d) = losses(one), losses(other)
    if len(a) != len(c) or len(b) != len(d) or not a:
        return math.inf
    pairs = list(zip(a, c)) + [(x, y) for p, q in zip(b, d) for x, y in zip(p, q)]
    return max(abs(x - y) / max(abs(x), 1e-300) for x, y in pairs)


def check_same(report, work):
    """One process, two and four (in a campaign for all cases)."""
    check_cases(report, work, lambda name: (2, 4) if WHOLE or name in WITH_FOUR else (2,))


def check_gpu(report, work):
    """A group of one exchanges through NCCL; two that share a GPU through the memory of the host."""
    write(work, "config.json", CONFIG)
    tried = pare("train", "config.json", "-o", "tried", "steps=1", "--device", "cuda", cwd=work)
    if "--device cuda: " in tried.stderr:
        report.skip("ranks on a GPU", re.sub(r"\s+", " ", tried.stderr))
        return
    report.check("one process on a GPU", ended(tried))
    check_cases(report, work, lambda name: (1, 2), "--device", "cuda")


def check_cases(report, work, sizes, *where):
    """The same losses, for what differs in how a step is computed."""
    text = work / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog and then some more of it. " * 60)
    bytes_model = {**MODEL, "vocab": 256}
    masked = {**bytes_model, "task": "masked_lm", "blocks": [{"attention": {"heads": 2, "head_width": 16, "mask": "full", "norm": LAYER}, "mlp": {"width": 48, "activation": "gelu"}}]}
    shared = {**MODEL, "blocks": [{**MODEL["blocks"][0], "repeat": 1}], "layers": [0, 0, 0]}
    cases = {
        "a sequence task": CONFIG,
        "two batches a step": {**CONFIG, "accumulate": 2},
        "text": {**CONFIG, "task": "causal_lm", "data": {"train": ["text.txt"], "validation": ["text.txt"]}, "architecture": bytes_model},
        "masked tokens": {**CONFIG, "task": "masked_lm", "data": {"train": ["text.txt"], "validation": ["text.txt"], "mask_token": 7}, "architecture": masked},
        "a morph with evenness": {**CONFIG, "morph": {"to": {"norms": "none"}, "steps": 16, "evenness": 0.5}},
        "the same, each layer run again": {**CONFIG, "morph": {"to": {"norms": "none"}, "steps": 16, "evenness": 0.5}, "recompute": True},
        "float32": {**CONFIG, "dtype": "float32"},
        "bfloat16": {**CONFIG, "dtype": "bfloat16"},
        "an untied head": {**CONFIG, "architecture": {**MODEL, "head": {"tied": False, "bias": True}}},
        "a shared block": {**CONFIG, "architecture": shared},
        "a shared block, run again": {**CONFIG, "architecture": shared, "recompute": True},
        "float32, each moving its part": {**CONFIG, "dtype": "float32", "shard": "optimiser"},
        "bfloat16, each moving its part": {**CONFIG, "dtype": "bfloat16", "shard": "optimiser", "accumulate": 2},
        "a morph, each moving its part": {**CONFIG, "morph": {"to": {"norms": "none"}, "steps": 16, "evenness": 0.5}, "shard": "optimiser"},
        "a shared block, run again, each moving its part": {**CONFIG, "architecture": shared, "recompute": True, "shard": "optimiser", "accumulate": 2},
        "blocks held by nobody": {**CONFIG, "shard": "everything"},
        "blocks held by nobody, bfloat16": {**CONFIG, "dtype": "bfloat16", "shard": "everything", "accumulate": 2},
        "blocks held by nobody, an untied head": {**CONFIG, "architecture": {**MODEL, "head": {"tied": False, "bias": True}}, "shard": "everything"},
        "blocks held by nobody, a shared block": {**CONFIG, "architecture": shared, "shard": "everything", "accumulate": 2},
        "blocks held by nobody, a morph": {**CONFIG, "morph": {"to": {"norms": "none"}, "steps": 16, "evenness": 0.5}, "shard": "everything"},
    }
    limits = {"float32": 1e-4, "bfloat16": 3e-2}
    for name, config in cases.items():
        write(work, "config.json", config)
        shutil.rmtree(work / "alone", ignore_errors=True)
        problem = ended(pare("train", "config.json", "-o", "alone", *where, cwd=work))
        report.check(f"{name}: one process", problem)
        for size in sizes(name):
            run = work / f"ranks{size}"
            shutil.rmtree(run, ignore_errors=True)
            codes, out, err = Ranks(size, "train", "config.json", "-o", run.name, *where, cwd=work, PARE_GROUP_OF_ONE="1").ends()
            report.check(f"{name}: {size} ranks end well", expect(codes, [0] * size) and f"{codes}: {err}")
            if where:
                report.check(f"{name}: {size} ranks, how they exchange", expect("not every rank has a GPU of its own" in err[0], size == 2) and err[0])
            report.check(f"{name}: one of {size} speaks", expect([text == "" for text in out], [False] + [True] * (size - 1)))
            difference = apart(work / "alone", run) if codes == [0] * size else math.inf
            limit = limits.get(config["dtype"], 1e-12)
            report.check(f"{name}: {size} ranks, losses", "" if difference <= limit else f"{difference:.2g} apart, allowed {limit:g}")


def check_resume(report, work):
    for shard in ("nothing", "optimiser", "everything"):
        write(work, "config.json", CONFIG)
        for name in ("alone", "resumed"):
            shutil.rmtree(work / name, ignore_errors=True)
        pare("train", "config.json", "-o", "alone", cwd=work)
        write(work, "config.json", {**CONFIG, "shard": shard, "checkpoint": {"every": 6, "keep": 9}})
        codes, _, err = Ranks(4, "train", "config.json", "-o", "resumed", cwd=work).ends()
        report.check(f"{shard}: four ranks", expect(codes, [0] * 4) and str(err))
        written = sorted(path.name for path in (work / "resumed/checkpoints/18").iterdir())
        expected = ["config.json", *(f"{stem}-0000{i}-of-00004.safetensors" for stem in ("model", "optimizer") for i in range(1, 5))]
        report.check(f"{shard}: a file from each", expect(written, sorted([*expected, "model.safetensors.index.json"])))
        report.check(f"{shard}: any command reads them", ended(pare("verify", "resumed/checkpoints/18", "resumed/checkpoints/18", cwd=work), 0, ["identical"]))
        shutil.rmtree(work / "resumed/checkpoints/24")  # as if it had ended there
        (work / "resumed/checkpoints/18/optimizer-00003-of-00004.safetensors").unlink()
        codes, out, err = Ranks(2, "train", "--resume", "-o", "resumed", "--json", cwd=work).ends()
        report.check(f"{shard}: two go on where four were", expect(codes, [0, 0]) and str(err))
        shown = re.sub(r"\s+", " ", err[0])
        report.check(f"{shard}: which file is missing", "" if "18' is not whole" in shown and "optimizer-00003-of-00004.safetensors' is missing" in shown else shown)
        found = json.loads(out[0])["runs"][0] if codes == [0, 0] else {}
        report.check(f"{shard}: from the last checkpoint", expect([found.get("resumed_from"), found.get("steps")], [12, 24]))
        difference = apart(work / "alone", work / "resumed")
        report.check(f"{shard}: to the same losses", "" if difference <= 1e-12 else f"{difference:.2g}")
        shutil.rmtree(work / "resumed/checkpoints/24")
        report.check(f"{shard}: and one alone", ended(pare("train", "--resume", "-o", "resumed", cwd=work), 0, ["24 steps"]))
        difference = apart(work / "alone", work / "resumed")
        report.check(f"{shard}: to the same losses, too", "" if difference <= 1e-12 else f"{difference:.2g}")
    for step in (18, 24):
        shutil.rmtree(work / f"resumed/checkpoints/{step}")
    shutil.copy(work / "resumed/checkpoints/6/optimizer-00002-of-00004.safetensors", work / "resumed/checkpoints/12/optimizer-00002-of-00004.safetensors")
    report.check("files of two steps", ended(pare("train", "--resume", "-o", "resumed", cwd=work), 1, ["do not belong together: their step is 12 and 6"]))


def check_not_alike(report, work):
    """Half of one run and half of another is refused before it begins."""
    def one_of_them(script):
        return lambda rank: ["sh", "-c", script, "sh"] if rank == 1 else []
    write(work, "text.json", {**CONFIG, "task": "causal_lm", "data": {"train": ["text.txt"], "validation": ["text.txt"]}, "architecture": {**MODEL, "vocab": 256}})
    (work / "text.txt").write_text("the same for all of them. " * 100)
    (work / "other.txt").write_text("what only one of them has. " * 100)
    (work / "elsewhere").mkdir()
    shutil.copy(work / "config.json", work / "elsewhere")
    write(work / "elsewhere", "text.json", {**json.loads((work / "text.json").read_text()), "seed": 9})
    cases = [("other words", "config.json", 'exec "$@" seed=5', "command"), ("another folder", "config.json", 'cd elsewhere; exec "$@"', "command"),
             ("no training", "config.json", 'exec "$1" verify alone/checkpoints/24 alone/checkpoints/24', "command")]
    if subprocess.run(["unshare", "-m", "mount", "--bind", "other.txt", "text.txt"], cwd=work, capture_output=True).returncode == 0:
        inside = 'exec unshare -m sh -c "mount --bind {} && exec \\"\\$@\\"" sh "$@"'
        cases += [("another text", "text.json", inside.format("other.txt text.txt"), "data"), ("another file", "text.json", inside.format("elsewhere/text.json text.json"), "configuration")]
    else:
        report.skip("another text, another file", "mounting is not allowed here")
    for case, config, script, what in cases:
        codes, out, err = Ranks(2, "train", config, "-o", "alike", cwd=work, prefix=one_of_them(script)).ends()
        said = re.sub(r"\s+", " ", " ".join(err))
        report.check(f"{case}: refused", expect([codes, f"does not have the {what} of rank 0" in said, said.count("does not have")], [[1, 1], True, 1]) and f"{codes} {err}")
        report.check(f"{case}: nothing is left", expect((work / "alike").exists(), False))


def check_refused(report, work):
    """What is wrong is said once, whoever found it."""
    write(work, "config.json", CONFIG)
    codes, out, err = Ranks(3, "train", "config.json", "-o", "three", cwd=work).ends()
    report.check("three ranks for eight rows", expect(codes, [1, 1, 1]))
    report.check("said once", expect(["does not divide among 3 ranks" in text for text in err], [True, False, False]) and str(err))
    report.check("nothing is left", expect((work / "three").exists(), False))
    pare("train", "config.json", "-o", "there", "steps=2", cwd=work)
    codes, out, err = Ranks(2, "train", "config.json", "-o", "there", cwd=work).ends()
    report.check("a folder that exists", expect([codes, "exists already" in err[0], err[1]], [[1, 1], True, ""]) and f"{codes} {err}")
    codes, out, err = Ranks(2, "train", "config.json", "-o", "mute", "--json", cwd=work, OMP_NUM_THREADS="1").ends()
    report.check("one document", expect([codes, "runs" in json.loads(out[0]), out[1]], [[0, 0], True, ""]))
    codes, out, err = Ranks(2, "train", "config.json", "-o", "warned", "steps=4", cwd=work).ends()
    report.check("a warning", expect([codes, "warning: the learning rate" in err[0], err[1]], [[0, 0], True, ""]) and f"{codes} {err}")
    result = subprocess.run([str(PARE), "train", "config.json", "-o", "lost"], cwd=work, capture_output=True, text=True, env={**os.environ, "WORLD_SIZE": "2"})
    report.check("half an environment", ended(result, 1, ["WORLD_SIZE='2', and no RANK"]))
    check_not_alike(report, work)
    codes, out, err = Ranks(2, "train", "config.json", "-o", "cuda", "--device", "cuda", cwd=work).ends()
    report.check("a device that is not there", expect([codes, bool(err[0]), err[1]], [[1, 1], True, ""]) and f"{codes} {err}")


def check_sweep(report, work):
    """Its runs are divided, each as one process trains it."""
    config = {**CONFIG, "steps": 6, "sweep": {"seeds": [0, 1, 2]}}
    write(work, "sweep.json", config)
    report.check("alone", ended(pare("train", "sweep.json", "-o", "sweep1", "--threads", "1", cwd=work)))
    codes, out, err = Ranks(2, "train", "sweep.json", "-o", "sweep2", "--json", cwd=work).ends()
    report.check("two ranks", expect(codes, [0, 0]) and str(err))
    runs = [pathlib.Path(run["path"]).name for run in json.loads(out[0])["runs"]] if codes == [0, 0] else []
    report.check("all runs, in order", expect(runs, sorted(path.name for path in (work / "sweep1").iterdir())))
    for name in runs:
        same = (work / f"sweep1/{name}/checkpoints/6/model.safetensors").read_bytes() == (work / f"sweep2/{name}/checkpoints/6/model.safetensors").read_bytes()
        report.check(f"{name}: bit for bit", expect(same, True))


LONG = {**CONFIG, "steps": 100000, "checkpoint": {"every": 20, "keep": 2}, "evaluate": {"every": 1000, "batches": 2}}


def wait_for_steps(ranks, run, steps):
    metrics = run / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count('"loss"') >= steps):
        if any(process.poll() is not None for process in ranks.processes) or time.monotonic() > ranks.started + 120:
            return False
        time.sleep(0.02)
    return True


def check_interrupt(report, work):
    write(work, "config.json", LONG)
    ranks = Ranks(2, "train", "config.json", "-o", "interrupted", cwd=work)
    report.check("it runs", expect(wait_for_steps(ranks, work / "interrupted", 30), True))
    ranks.processes[1].send_signal(signal.SIGINT)  # one of them is enough
    codes, out, err = ranks.ends()
    report.check("all stop", expect(codes, [130, 130]) and f"{codes} {err}")
    steps = [line["step"] for line in curve(work / "interrupted") if "loss" in line]
    saved = sorted(int(path.name) for path in (work / "interrupted/checkpoints").iterdir())
    report.check("and what was done is saved", expect(saved[-1], steps[-1]))


def check_faults(report, work):
    for name, act, words in [("killed", signal.SIGKILL, "has given no sign of life"), ("stopped", signal.SIGSTOP, "has given no sign of life")]:
        write(work, "config.json", LONG)
        run = work / name
        ranks = Ranks(3, "train", "config.json", "-o", name, "batch=9", cwd=work)
        report.check(f"{name}: it runs", expect(wait_for_steps(ranks, run, 45), True))
        began = time.monotonic()
        victim = ranks.processes[2]
        victim.send_signal(act)
        others = [process.communicate(timeout=120) for process in ranks.processes[:2]]
        took = time.monotonic() - began
        victim.kill()
        victim.communicate()
        report.check(f"{name}: within a minute", "" if took < 60 else f"{took:.0f} s")
        report.check(f"{name}: exit codes", expect([process.returncode for process in ranks.processes[:2]], [1, 1]) and str(others))
        shown = re.sub(r"\s+", " ", others[0][1])
        report.check(f"{name}: it is named with its host", "" if f"rank 2 of 3 (process {victim.pid} on {socket.gethostname()})" in shown and words in shown else shown)
        report.check(f"{name}: once", expect("rank 2" in others[1][1], False) and others[1][1])
        checkpoints = sorted(int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit())
        report.check(f"{name}: a checkpoint is there", expect(checkpoints[-1] >= 40, True))
        until = checkpoints[-1] + 5
        went_on = Ranks(3, "train", "--resume", "-o", name, cwd=work)
        target = len([1 for line in curve(run) if "loss" in line])
        report.check(f"{name}: the same command goes on", expect(wait_for_steps(went_on, run, max(until, target + 20)), True))
        for process in went_on.processes:
            process.kill()
        went_on.ends()


def check_suspended(report, work):
    """A job that a scheduler stops and continues: nobody was lost. Stopped for longer than a rank may be silent."""
    write(work, "config.json", LONG)
    run = work / "suspended"
    ranks = Ranks(2, "train", "config.json", "-o", "suspended", cwd=work)
    report.check("it runs", expect(wait_for_steps(ranks, run, 25), True))
    for act, then in ((signal.SIGSTOP, 30), (signal.SIGCONT, 0)):
        for process in ranks.processes:
            process.send_signal(act)
        time.sleep(then)
    steps = len([1 for line in curve(run) if "loss" in line])
    report.check("suspended: it goes on", expect(wait_for_steps(ranks, run, steps + 40), True))
    time.sleep(3)  # a beat or two later, too
    report.check("suspended: all are there", expect([process.poll() for process in ranks.processes], [None, None]))
    for process in ranks.processes:
        process.kill()
    ranks.ends()


def check_first_lost(report, work):
    """Rank 0 holds the store: without it the others have nobody to ask."""
    write(work, "config.json", LONG)
    ranks = Ranks(2, "train", "config.json", "-o", "first", cwd=work)
    report.check("it runs", expect(wait_for_steps(ranks, work / "first", 25), True))
    began = time.monotonic()
    ranks.processes[0].kill()
    codes, out, err = ranks.ends(120)
    report.check("rank 0 is killed: within a minute", "" if time.monotonic() - began < 60 else f"{time.monotonic() - began:.0f} s")
    shown = re.sub(r"\s+", " ", err[1])
    report.check("and named", "" if f"rank 0 of 2 (process {ranks.processes[0].pid} on" in shown and codes[1] == 1 else f"{codes} {shown}")


def check_full_disk(report, work):
    """The folder of the run is on a small disk of its own."""
    small = work / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], capture_output=True).returncode != 0:
        report.skip("full disk", "mounting is not allowed here")
        return
    try:
        write(work, "config.json", {**LONG, "checkpoint": {"every": 20, "keep": 100}})
        codes, out, err = Ranks(2, "train", "config.json", "-o", small / "run", cwd=work).ends()
        said = [re.sub(r"\s+", " ", text) for text in err if text]  # by whichever finds no room first
        report.check("full: all end", expect(codes, [1, 1]) and f"{codes} {err}")
        report.check("full: said once", expect(len(said) == 1 and "is kept as it was at" in said[0], True) and str(err))
        kept = sorted((path for path in (small / "run/checkpoints").glob("*") if path.name.isdigit()), key=lambda path: int(path.name))
        report.check("full: what was saved is whole", ended(pare("verify", kept[-1], kept[-1], cwd=work)) if kept else "nothing was saved")
    finally:
        subprocess.run(["umount", str(small)], capture_output=True)


def check_network(report, work):
    """Two namespaces with addresses of their own and one link between them, which is then cut."""
    names = [f"pare{os.getpid()}a", f"pare{os.getpid()}b"]
    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True).returncode == 0
    if not shutil.which("ip") or not ip("netns", "add", names[0]):
        report.skip("a network that is cut", "network namespaces are not allowed here")
        return
    try:
        made = ip("netns", "add", names[1]) and ip("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for i, name in enumerate(names):
            made = made and ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "veth0") and ip("-n", name, "link", "set", "veth0", "up") and ip("-n", name, "link", "set", "lo", "up")
        if not made:
            report.skip("a network that is cut", "no link between namespaces can be made here")
            return
        write(work, "config.json", LONG)
        ranks = Ranks(2, "train", "config.json", "-o", "cut", cwd=work, prefix=lambda rank: ["ip", "netns", "exec", names[rank]],
                      MASTER_ADDR="10.77.0.1", LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
        report.check("two addresses: it runs", expect(wait_for_steps(ranks, work / "cut", 25), True))
        began = time.monotonic()
        ip("-n", names[1], "link", "set", "veth0", "down")
        codes, out, err = ranks.ends(120)
        took = time.monotonic() - began
        report.check("cut: within a minute", "" if took < 60 else f"{took:.0f} s")
        shown = [re.sub(r"\s+", " ", text) for text in err]
        report.check("cut: each names the other", expect([codes, "rank 1 of 2" in shown[0], "rank 0 of 2" in shown[1]], [[1, 1], True, True]) and f"{codes} {shown}")
    finally:
        for name in names:
            ip("netns", "del", name)


def check_launchers(report, work):
    write(work, "config.json", CONFIG)
    shutil.rmtree(work / "alone", ignore_errors=True)
    pare("train", "config.json", "-o", "alone", cwd=work)
    if shutil.which("mpirun"):
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        result = subprocess.run(["mpirun", *root, "--oversubscribe", "-n", "2", str(PARE), "train", "config.json", "-o", "mpirun"], cwd=work,
                                capture_output=True, text=True, timeout=240)
        report.check("mpirun", ended(result, 0, ["mpirun: 24 steps"]))
        difference = apart(work / "alone", work / "mpirun")
        report.check("mpirun: losses", "" if difference <= 1e-12 else f"{difference:.2g}")
    else:
        report.skip("mpirun", "it is not installed (Debian: openmpi-bin)")
    chosen = ROOT / ".deps/python-path"
    python = pathlib.Path(chosen.read_text().strip() if chosen.exists() else sys.executable)
    torchrun = python.parent / "torchrun"
    if torchrun.exists():
        result = subprocess.run([str(python), str(torchrun), "--standalone", "--nproc-per-node", "2", "--no-python", str(PARE), "train", "config.json",
                                 "-o", "torchrun"], cwd=work, capture_output=True, text=True, timeout=240)
        report.check("torchrun", ended(result, 0, ["torchrun: 24 steps"]))
        difference = apart(work / "alone", work / "torchrun")
        report.check("torchrun: losses", "" if difference <= 1e-12 else f"{difference:.2g}")
    else:
        report.skip("torchrun", "it is not installed")
    slurm = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    result = subprocess.run([str(PARE), "train", "config.json", "-o", "srun"], cwd=work, capture_output=True, text=True, env={**os.environ, **slurm})
    report.check("one task of srun is one process", ended(result, 0))


def check_collectives(report):
    program = PARE.parent / "exchange"
    for size in (2, 3, 4):
        codes, out, err = Ranks(size, cwd=ROOT, program=program).ends()
        report.check(f"{size} ranks: every collective", expect(codes, [0] * size) and str(err))
        report.check(f"{size} ranks: nothing else on stdout", expect([text.count("\n") for text in out], [1] * size) and str(out))


def main():
    report = Report("ranks")
    if "has no process groups" in pare("train", "--help").stdout:
        report.skip("all", "the libtorch at hand has no process groups")
        report.finish()
    parts = {"collectives": lambda work: check_collectives(report), "same": lambda work: check_same(report, work)}
    for name, part in [("gpu", check_gpu), ("resume", check_resume), ("refused", check_refused), ("sweep", check_sweep), ("launchers", check_launchers), ("interrupt", check_interrupt),
                       ("faults", check_faults), ("first_lost", check_first_lost), ("suspended", check_suspended), ("full_disk", check_full_disk), ("network", check_network)]:
        parts[name] = lambda work, part=part: part(report, work)
    chosen = [name for name in sys.argv[1:] if name in parts] or [name for name in parts if WHOLE or name != "suspended"]
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            parts[name](pathlib.Path(folder))
    report.finish()


if __name__ == "__main__":
    main()
