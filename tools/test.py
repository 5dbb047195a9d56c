#!/usr/bin/env python3
"""Runs the tests of a build folder: the doctest programs that ctest knows and every script in the folders below, as many at
once as there are cores, each with one thread. Ends with what took longest and one line of totals.

A test script starts with `#!` and ends with the line `N passed, M failed, K skipped`. So does this one.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ["conformance", "attacks", "cli", "docs", "error", "report", "golden"]  # what takes longest first, so that no core waits at the end
CORES = len(os.sched_getaffinity(0))
WITH_PEERS = ["conformance", "attacks"]  # need transformers, which lives in an environment of its own
DOCTEST = re.compile(r"\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed\s*\|\s*(\d+) skipped")
TOTALS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)


def environment_of(build):
    return {"OMP_NUM_THREADS": "1", **os.environ, "PARE": str(ROOT / build / "pare"), "PYTHONDONTWRITEBYTECODE": "1"}


def run_program(command, build, output):
    """How it ended, and the processor time that it and its own children took."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment_of(build), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


class WithPeers:
    """The same for scripts that need transformers, which is imported once for each thread: tests/warm_peers.py."""

    def __init__(self, python):
        self.python, self.threads = python, threading.local()

    def __call__(self, command, build, output):
        if not hasattr(self.threads, "server"):
            self.threads.server = subprocess.Popen([self.python, ROOT / "tests" / "warm_peers.py"], cwd=ROOT, env=environment_of(build),
                                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        server = self.threads.server
        server.stdin.write(json.dumps({"script": command[-1], "output": output.name}) + "\n")
        server.stdin.flush()
        ended = json.loads(server.stdout.readline())
        return ended["status"], ended["seconds"]


class Job:
    """A program or a script: how it is run, and how its output is counted."""

    def __init__(self, name, command, count, run=run_program):
        self.name, self.command, self.count, self.run_command = name, command, count, run
        self.totals, self.shown, self.seconds = [0, 0, 0], "", 0.0

    def run(self, build):
        with tempfile.NamedTemporaryFile() as output:
            status, self.seconds = self.run_command(self.command, build, output)
            output.seek(0)
            text = output.read().decode(errors="replace")
        self.totals, shown = self.count(text, status)
        if status != 0 and self.totals[1] == 0:
            self.totals[1] = 1
            shown = f"{text}\nFAILED {self.name}: ended with status {status}\n"
        elif sum(self.totals) == 0:
            self.totals[1] = 1
            shown = f"{text}\nFAILED {self.name}: no totals\n"
        self.shown = f"== {self.name}\n{shown}   {self.seconds:.0f} s"
        return self


def count_program(text, status):
    """One that went well shows what it skipped, and its totals: a case that has nothing to read says so in a line of its own, and ends early."""
    found, skipped = DOCTEST.search(text), re.findall(r"^skipped .*$", text, re.M)
    counts = [int(found.group(i)) for i in (2, 3, 4)] if found else [0, 0, 0]
    counts = [counts[0] - len(skipped), counts[1], counts[2] + len(skipped)]
    shown = text if status else "".join(f"{line}\n" for line in skipped) + "{} passed, {} failed, {} skipped\n".format(*counts)
    return counts, shown


def count_script(text, _):
    found = TOTALS.findall(text)
    return [int(n) for n in found[-1]] if found else [0, 0, 0], text


def programs(build):
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True)
    tests = json.loads(listed.stdout)["tests"] if listed.returncode == 0 else []
    if not tests or any("command" not in test for test in tests):  # ctest leaves that out where the program is not there
        sys.exit(f"test: {build} lacks test programs: cmake --build {build}")
    return [Job(f"test_{test['name']}", test["command"], count_program) for test in tests]


def scripts(folders, peers_python):
    with_peers = WithPeers(peers_python)
    return [Job(f"tests/{folder}/{path.name}", [sys.executable, str(path)], count_script, with_peers if folder in WITH_PEERS else run_program)
            for folder in folders for path in sorted((ROOT / "tests" / folder).glob("*.py"))
            if path.read_text(encoding="utf-8").startswith("#!")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="the build folder, such as build")
    parser.add_argument("--without", default="", help="folders of tests/ to leave out, comma-separated")
    parser.add_argument("--only", default="", help="jobs whose names have one of these in them, comma-separated")
    options = parser.parse_args()
    path = ROOT / ".deps" / "python-path"
    peers_python = path.read_text().strip() if path.exists() else sys.executable
    left_out = options.without.split(",")
    jobs = programs(ROOT / options.build) + scripts([folder for folder in SCRIPTS if folder not in left_out], peers_python)
    jobs = [job for job in jobs if any(part in job.name for part in options.only.split(","))]
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        for done in concurrent.futures.as_completed([pool.submit(job.run, options.build) for job in jobs]):
            print(done.result().shown, flush=True)
    print("slowest, in seconds of processor time:")
    for job in sorted(jobs, key=lambda job: -job.seconds)[:10]:
        print(f"  {job.seconds:5.0f}  {job.name}")
    print(f"all: {sum(job.seconds for job in jobs) / 60:.1f} processor minutes")
    totals = [sum(job.totals[i] for job in jobs) for i in range(3)]
    print("{} passed, {} failed, {} skipped".format(*totals))
    sys.exit(1 if totals[1] else 0)


if __name__ == "__main__":
    main()
