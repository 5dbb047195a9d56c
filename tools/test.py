#!/usr/bin/env python3
"""Runs the tests of a build folder: the doctest programs through ctest, then every script in the folders below, as many
at once as there are cores, each with one thread.

A test script starts with `#!` and ends with the line `N passed, M failed, K skipped`. So does this one.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ["conformance", "attacks", "cli", "docs", "error", "report", "golden"]  # what takes longest first, so that no core waits at the end
CORES = len(os.sched_getaffinity(0))
WITH_PEERS = ["conformance", "attacks"]  # need transformers, which lives in an environment of its own
DOCTEST = re.compile(r"\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed\s*\|\s*(\d+) skipped")
TOTALS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)


def run_programs(build):
    """The doctest programs. One that ends badly without a summary counts as one failure."""
    with tempfile.TemporaryDirectory() as folder:
        junit = pathlib.Path(folder, "junit.xml")
        subprocess.run(["ctest", "--test-dir", build, "-j", str(CORES), "--output-on-failure", "--output-junit", junit],
                       env={"OMP_NUM_THREADS": "1", **os.environ})
        if not junit.exists():
            print("test: ctest did not run")
            return [0, 1, 0]
        totals = [0, 0, 0]
        for case in xml.etree.ElementTree.parse(junit).iter("testcase"):
            output = case.findtext("system-out") or ""
            for line in re.findall(r"^skipped .*$", output, re.M):
                print(line)
            found = DOCTEST.search(output)
            counts = [int(found.group(i)) for i in (2, 3, 4)] if found else [0, 0, 0]
            # A doctest case that has nothing to read says so in a line of its own, and ends early.
            early = len(re.findall(r"^skipped ", output, re.M))
            counts = [counts[0] - early, counts[1], counts[2] + early]
            if case.get("status") != "run" and counts[1] == 0:
                counts[1] = 1
            totals = [a + b for a, b in zip(totals, counts)]
        if sum(totals) == 0:
            print("test: ctest found no test programs")
            totals[1] = 1
        return totals


def run_script(script, python, build):
    """Its counts, and what it printed."""
    started = time.monotonic()
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PARE": str(ROOT / build / "pare"), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run([python, script], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace")
    status, output = run.returncode, run.stdout
    shown = f"== {script.relative_to(ROOT)}\n{output}   {time.monotonic() - started:.0f} s"
    found = TOTALS.findall(output)
    counts = [int(n) for n in found[-1]] if found else [0, 0, 0]
    if status != 0 and counts[1] == 0 or not found:
        shown += f"\nFAILED {script.name}: ended with status {status} and {'no' if not found else 'good'} totals"
        counts[1] += 1
    return counts, shown


def run_scripts(folders, peers_python, build):
    totals = [0, 0, 0]
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        running = []
        for folder in folders:
            python = peers_python if folder in WITH_PEERS else sys.executable
            for script in sorted((ROOT / "tests" / folder).glob("*.py")):
                if script.read_text(encoding="utf-8").startswith("#!"):
                    running.append(pool.submit(run_script, script, python, build))
        for done in concurrent.futures.as_completed(running):
            counts, shown = done.result()
            print(shown, flush=True)
            totals = [a + b for a, b in zip(totals, counts)]
    return totals


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="the build folder, such as build")
    parser.add_argument("--without", default="", help="folders of tests/ to leave out, comma-separated")
    options = parser.parse_args()
    totals = run_programs(ROOT / options.build)
    path = ROOT / ".deps" / "python-path"
    peers_python = path.read_text().strip() if path.exists() else sys.executable
    left_out = options.without.split(",")
    counts = run_scripts([folder for folder in SCRIPTS if folder not in left_out], peers_python, options.build)
    totals = [a + b for a, b in zip(totals, counts)]
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    sys.exit(1 if totals[1] else 0)


if __name__ == "__main__":
    main()
