#!/usr/bin/env python3
"""`pare rewrite` killed, interrupted, out of disk or given broken files: a whole output or none, and the input as it was."""

import hashlib
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from files import Broken
from report import PARE, Report, pare
from wrong_use import problem

KILLS = 8
# Some seconds' work: 8 MB of table, 12 MB of blocks, all of it to be multiplied and verified.
ARCHITECTURE = {
    "width": 256, "vocab": 8192, "context": 32, "embedding": {"position": "learned"}, "head": {"tied": True},
    "blocks": [{"repeat": 4, "attention": {"heads": 4, "head_width": 64},
                "mlp": {"width": 1024, "activation": "gelu", "skip": False}}],
}
TINY = ARCHITECTURE | {
    "width": 8, "vocab": 20, "context": 8,
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 4}, "mlp": {"width": 12, "activation": "gelu", "skip": False}}],
}
# With several threads the last digits of what a certificate measured are now and then others; the weights never.
PASSES = ["--passes", "eliminate_projection", "--threads", "1"]


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def partials(work):
    return sorted(path.name for path in work.iterdir() if ".partial-" in path.name)


def start(work, *flags):
    return subprocess.Popen([str(PARE), "rewrite", *flags], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def check_kills(report, work):
    """SIGKILL at moments spread over a run: whatever is there afterwards under the output's name is complete."""
    before = hashes(work / "model")
    started = time.monotonic()
    result = pare("rewrite", "model", "-o", "out", *PASSES, cwd=work)
    seconds = time.monotonic() - started
    report.check("undisturbed", problem(result, [], (0,)))
    whole = hashes(work / "out")
    old = pare("rewrite", "model", "-o", "old", *PASSES, "--dtype", "float32", "--no-verify", cwd=work)
    report.check("another output", problem(old, [], (0,)))
    older = hashes(work / "old")
    shutil.rmtree(work / "out")
    left = 0
    for kill in range(KILLS):
        replace = kill % 2 == 1  # then something stands there already, and stays until the new one is whole
        if replace:
            shutil.copytree(work / "old", work / "out")
        process = start(work, "model", "-o", "out", *PASSES, *(["--force"] if replace else []))
        time.sleep(seconds * (kill + 0.5) / KILLS)
        process.kill()
        process.communicate()
        found = hashes(work / "out") if (work / "out").exists() else None
        good = found in ((older, whole) if replace else (None, whole))
        report.check(f"killed at {kill + 0.5} of {KILLS}", "" if good else f"found {found}")
        report.check(f"at most one temporary after kill {kill}", "" if len(partials(work)) <= 1 else f"{partials(work)}")
        left += len(partials(work))
        shutil.rmtree(work / "out", ignore_errors=True)
    report.check("some were killed while they wrote", "" if left else "none left a temporary: nothing was tested")
    report.check("the input is unchanged", "" if hashes(work / "model") == before else "it changed")
    result = pare("rewrite", "model", "-o", "out", *PASSES, cwd=work)
    report.check("a later run", problem(result, [], (0,)) or ("" if hashes(work / "out") == whole else "other bytes"))
    report.check("leaves no temporaries", "" if not partials(work) else f"{partials(work)}")
    report.check("verify", problem(pare("verify", "model", "out", cwd=work), [], (0,)))
    shutil.rmtree(work / "out")


def dead_process():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def check_stale(report, work):
    """What a killed process left of the same output goes; what belongs to anybody else stays."""
    gone = [f".out.partial-{dead_process()}-0", f".out.partial-{dead_process()}-12"]
    kept = [f".out.partial-{os.getpid()}-0", f".out.partial-{dead_process()}-0-old", f".other.partial-{dead_process()}-0",
            ".out.partial-x-0", ".out.partial--1-0", ".out.partial-", f".out.partial-{dead_process()}-", "out.partial-1-0"]
    for name in gone + kept:
        (work / name).mkdir()
        (work / name / "model.safetensors").write_text("half")
    result = pare("rewrite", "tiny", "-o", "out", *PASSES, cwd=work)
    there = [name for name in gone + kept if (work / name / "model.safetensors").exists()]
    report.check("temporaries of dead processes", problem(result, [], (0,)) or ("" if there == kept else f"{there} stayed, expected {kept}"))
    for name in kept:
        shutil.rmtree(work / name)
    shutil.rmtree(work / "out")


def check_interrupts(report, work):
    process = start(work, "model", "-o", "out", *PASSES)
    deadline = time.monotonic() + 60
    while not partials(work) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    result = finish(process)
    there = partials(work) + ["out"] * (work / "out").exists()
    report.check("Ctrl-C while it writes", problem(result, ["interrupted"], (130,)) or (f"left {there}" if there else ""))

    process = start(work, "model", "-o", "out", *PASSES)
    time.sleep(0.7)  # somewhere before it writes, or before it can say that it was interrupted
    process.send_signal(signal.SIGINT)
    result = finish(process)
    done = result.returncode == 0 and (work / "out" / "certificate.json").exists()  # a very fast machine
    there = partials(work) + ["out"] * (work / "out").exists() if not done else []
    report.check("Ctrl-C before", problem(result, [], (130, -signal.SIGINT, 0)) or (f"left {there}" if there else ""))
    shutil.rmtree(work / "out", ignore_errors=True)


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, 20_000_000))


def check_disk(report, work):
    result = pare("rewrite", "model", "-o", "out", *PASSES, cwd=work, preexec_fn=small_files)
    there = partials(work) + ["out"] * (work / "out").exists()
    report.check("beyond the file size limit", problem(result, ["'out/model.safetensors'", "File too large"]) or (f"left {there}" if there else ""))

    disk = work / "disk"
    disk.mkdir()
    size = (work / "model" / "model.safetensors").stat().st_size
    companion = work / "model" / "tokenizer.json"  # room for the weights, but not for this as well
    companion.write_bytes(b" " * 8_000_000)
    # Of four nodes the disk, the output, its configuration and a companion take all: enough bytes, but no further file.
    limits = f"size={size + 10_000_000},nr_inodes=4"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", limits, "tmpfs", str(disk)], capture_output=True, text=True)
    if mounted.returncode:
        report.skip("a full disk", f"cannot mount a small one: {mounted.stderr.strip()}")
    else:
        try:
            result = pare("rewrite", "model", "-o", "disk/out", *PASSES, cwd=work)
            there = sorted(path.name for path in disk.iterdir())
            full = problem(result, ["'disk/out/model.safetensors'", "No space left"])
            report.check("a disk that fills", full or (f"left {there}" if there else ""))
            (disk / "other").write_bytes(b" " * 5_000_000)
            result = pare("rewrite", "model", "-o", "disk/out", *PASSES, cwd=work)
            report.check("too small for weights and companions", problem(result, ["'disk/out'", "needs", "left"]))
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    companion.unlink()


def not_a_number(name):
    def change(tensors):
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, data[:8] + struct.pack("<d", float("nan")) + data[16:])
    return change


def check_broken(report, work):
    tiny = work / "tiny"
    query, down = "blocks.0.attention.query.weight", "blocks.1.mlp.down.weight"
    cases = [  # what is done to a copy, words of the error
        ("cut short", lambda broken: broken.set_bytes(lambda raw: raw[:-100]), ["model.safetensors"]),
        ("empty", lambda broken: broken.set_bytes(lambda raw: b""), ["model.safetensors"]),
        ("without a tensor", lambda broken: broken.set_tensors(lambda tensors: tensors.pop(down)), [down]),
        ("NaN where it is measured", lambda broken: broken.set_tensors(not_a_number(query)), [query, "nan"]),
        ("NaN where it is written", lambda broken: broken.set_tensors(not_a_number(down)), [down, "nan"]),
    ]
    for number, (case, change, words) in enumerate(cases):
        broken = Broken(tiny, work / f"broken-{number}")
        change(broken)
        for flags in ([], ["--no-verify"]):
            result = pare("rewrite", broken.folder, "-o", "out", *PASSES, *flags, cwd=work)
            there = partials(work) + ["out"] * (work / "out").exists()
            report.check(f"{case} {flags}", problem(result, words) or (f"left {there}" if there else ""))


def main():
    report = Report("rewrite errors")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name, architecture in (("model", ARCHITECTURE), ("tiny", TINY)):
            (work / f"{name}.json").write_text(json.dumps(architecture))
            report.check(f"init {name}", problem(pare("init", f"{name}.json", "-o", name, "--seed", "1", "--dtype", "float64", cwd=work), [], (0,)))
        check_broken(report, work)
        check_stale(report, work)
        check_interrupts(report, work)
        check_disk(report, work)
        check_kills(report, work)
    report.finish()


if __name__ == "__main__":
    main()
