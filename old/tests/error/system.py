#!/usr/bin/env python3
"""The system refuses, or the user stops it: no crash, no half-written output, the right exit code."""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import PARE, Report, pare
from wrong_use import ARCHITECTURE, problem


def leftovers(folder, allowed):
    return sorted(path.name for path in folder.iterdir() if path.name not in allowed)


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def little_memory():
    resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9, 4 * 10**9))


def interrupt_while_running(work, report):
    """SIGINT at some moment of a long run: it may be done before, but there is never half a result."""
    (work / "many.json").write_text(json.dumps([[i % 16] * (1 + i % 12) for i in range(60000)]))
    process = subprocess.Popen([str(PARE), "run", "model", "-o", "out", "--tokens", "many.json"], cwd=work,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    written = (work / "out").exists()
    good = (process.returncode, written) in ((130, False), (0, True))
    report.check("Ctrl-C during run", "" if good else f"exit code {process.returncode}, written {written}: {errors[-300:]}")
    (work / "out").unlink(missing_ok=True)
    (work / "many.json").unlink()


def interrupt_while_writing(arguments, work, allowed, report, case):
    """Sends SIGINT once the command has begun to write, and looks at what it leaves."""
    process = subprocess.Popen([str(PARE), *arguments], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not leftovers(work, allowed) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    begun = bool(leftovers(work, allowed))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    wrong = "" if process.returncode == 130 else f"exit code {process.returncode}: {errors[-300:]}"
    left = leftovers(work, allowed)
    report.check(case, wrong or (f"left {left}" if left else "" if begun else "it never began to write"))


def main():
    report = Report("system")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "good.json").write_text(json.dumps(ARCHITECTURE))
        big = {**ARCHITECTURE, "width": 1024, "vocab": 60000}
        big["blocks"] = [{"repeat": 12, "attention": {"heads": 8, "head_width": 128}, "mlp": {"width": 4096, "activation": "gelu"}}]
        (work / "big.json").write_text(json.dumps(big))
        (work / "ids.json").write_text("[[1, 2, 3]]")
        report.check("init", problem(pare("init", "good.json", "-o", "model", cwd=work), [], (0,)))
        allowed = {path.name for path in work.iterdir()}

        result = pare("init", "big.json", "-o", "out", cwd=work, preexec_fn=small_files)
        report.check("init beyond the file size limit", problem(result, ["out"]))
        result = pare("run", "model", "-o", "out", "--tokens", "ids.json", "--taps", "*", cwd=work, preexec_fn=small_files)
        report.check("run beyond the file size limit", problem(result, ["out"]))
        huge = {**ARCHITECTURE, "vocab": 2**30, "width": 4096}
        huge["blocks"] = [{"attention": {"heads": 1, "head_width": 8}, "mlp": None}]
        (work / "good2.json").write_text(json.dumps(huge))
        result = pare("init", "good2.json", "-o", "out", "--dtype", "float64", "--yes", cwd=work)
        report.check("init larger than the disk", problem(result, ["out", "left"]))
        (work / "good2.json").unlink()

        if "asan" in str(PARE):
            report.skip("out of memory", "the sanitizer needs all addresses")
        else:
            large = {**huge, "vocab": 2**17, "width": 8192, "head": {"tied": True}}  # one tensor of 4.3 GB
            (work / "large.json").write_text(json.dumps(large))
            result = pare("init", "large.json", "-o", "out", cwd=work, preexec_fn=little_memory)
            report.check("out of memory", problem(result, ["out of memory"]))
            (work / "large.json").unlink()

        with open("/dev/full", "w") as full:
            result = pare("audit", "gpt2", capture_output=False, stdout=full, stderr=subprocess.PIPE)
        report.check("stdout on a full disk", problem(result, ["stdout", "No space left"]))
        reader, writer = os.pipe()
        os.close(reader)
        result = pare("audit", "gpt2", capture_output=False, stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        report.check("nobody reads stdout", problem(result, [], (0,)) or result.stderr)

        if os.geteuid() == 0:
            report.skip("a folder without write permission", "root may write everywhere")
        else:
            (work / "locked").mkdir(mode=0o555)
            result = pare("init", "good.json", "-o", "locked/out", cwd=work)
            report.check("a folder without write permission", problem(result, ["locked"]))
            (work / "locked").rmdir()
        result = pare("init", "good.json", "-o", "/proc/out", cwd=work)
        report.check("a folder that takes no files", problem(result, ["/proc"]))
        result = pare("init", "good.json", "-o", "good.json/out", cwd=work)
        report.check("a file in place of a folder", problem(result, ["good.json"]))

        interrupt_while_running(work, report)
        interrupt_while_writing(["init", "big.json", "-o", "out"], work, allowed, report, "Ctrl-C while init writes")
        left = leftovers(work, allowed)
        report.check("nothing is left behind", f"left {left}" if left else "")
    report.finish()


if __name__ == "__main__":
    main()
