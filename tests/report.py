"""What every test script shares: it counts, says what failed, and ends with `N passed, M failed, K skipped`."""

import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import warm

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARE = pathlib.Path(os.environ.get("PARE", ROOT / "build" / "pare")).resolve()  # scripts work in folders of their own
SHARED = pathlib.Path(os.environ.get("PARE_SHARED", ROOT.parent / "shared"))

# The keys of a certificate, in order.
CERTIFICATE = ["tool", "reference", "candidate", "passes", "claim", "form", "companions", "links", "formulas", "predicted_error",
               "approximate", "inputs", "compute_dtype", "metrics", "noise_floor", "excess", "allowed_error", "allowed_for",
               "first_divergence", "differences", "proof", "coverage", "self_test", "quantisation", "apart", "near_misses",
               "statistics", "tensor_costs", "verdict", "warnings", "unused_tensors"]


class Report:
    def __init__(self, name):
        self.name, self.passed, self.failed, self.skipped = name, 0, 0, 0

    def check(self, case, problem):
        """Counts a case: `problem` is empty when it went well."""
        if problem:
            self.failed += 1
            print(f"FAILED {self.name}: {case}: {problem}", flush=True)
        else:
            self.passed += 1

    def skip(self, case, why):
        self.skipped += 1
        print(f"skipped {self.name}: {case}: {why}", flush=True)

    def peers(self, *names):
        """The modules that a script compares with; ends it where one is not installed."""
        try:
            return [importlib.import_module(name) for name in names]
        except ImportError as missing:
            self.skip("all", f"{missing}: make test fetches it where there is a network")
            self.finish()

    def transformers(self):
        """One of them, quiet."""
        [transformers] = self.peers("transformers")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        return transformers

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        sys.exit(1 if self.failed else 0)


def pare(*arguments, **options):
    """Runs the command and hands back what it printed and how it ended."""
    options = {"capture_output": True, "text": True, "timeout": 300, **options}
    words = [str(word) for word in arguments]
    return warm.run(PARE, words, options) or subprocess.run([str(PARE), *words], **options)


def interrupted_at(words, *arguments, **options):
    """Runs the command with a terminal on stderr, and sends Ctrl-C when these words appear there: what was shown there, its exit code, its stdout."""
    terminal, screen = os.openpty()
    process = subprocess.Popen([str(PARE), *map(str, arguments)], stdout=subprocess.PIPE, stderr=screen, text=True, env={**os.environ, "TERM": "xterm"}, **options)
    os.close(screen)
    out = []  # read meanwhile: a long document would fill the pipe, and wait
    reader = threading.Thread(target=lambda: out.append(process.stdout.read()))
    reader.start()
    shown, sent = b"", False
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # how a terminal says that nobody writes any more
            break
        shown += piece
        if not sent and words.encode() in shown:
            process.send_signal(signal.SIGINT)
            sent = True
    process.wait(timeout=300)
    reader.join()
    os.close(terminal)
    return shown.decode(), process.returncode, out[0]


def ended(result, code=0, words=(), without=()):
    """What is wrong with how a command ended and with what it said, or nothing."""
    said = result.stdout + result.stderr
    if result.returncode != code:
        return f"exit code {result.returncode}, expected {code}: {said.strip()[-600:]}"
    wrong = [f"no {word!r}" for word in words if word not in said] + [f"{word!r}" for word in without if word in said]
    return f"{wrong} in: {said[-1200:]}" if wrong else ""


def expect(found, wanted):
    return "" if found == wanted else f"found {found!r}, expected {wanted!r}"


def curve(run):
    """What a training run measured, but for the time."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
