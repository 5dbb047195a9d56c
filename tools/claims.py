#!/usr/bin/env python3
"""Goes on with claims that train, one after another until the time is over; what is kept in experiments/ is not trained again.

tools/claims.py WORK [CLAIM ...] --data FOLDER [--device cuda] [--minutes N]: all that train, or those, in that order. Each has a
folder WORK/CLAIM.
tools/claims.py WORK [CLAIM ...] --record: what these folders hold becomes experiments/CLAIM, judged by this build, and the list of
claims is printed anew. A verdict that is not the recorded one is said: it is recorded in pare/claims/ by hand, with its number in
pare/claims/stated.cpp, and `build/test_claims` holds the two together.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXPERIMENTS = ROOT / "experiments"
INTERRUPTED = 130  # pare's exit code


def pare(options, *arguments, **more):
    return subprocess.run([options.pare, "reproduce", *map(str, arguments)], text=True, **more)


def trained(options, *arguments):
    """Its exit code. Ctrl-C reaches pare as well, which saves what it trains: that is waited for."""
    process = subprocess.Popen([options.pare, "reproduce", *map(str, arguments)])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def go_on(options, claim, minutes):
    folder = options.work / claim
    kept = EXPERIMENTS / claim / "runs.json"
    if kept.exists() and not (folder / "runs.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept, folder)
    limit = ["--minutes", f"{minutes:.2f}"] if minutes is not None else []
    return trained(options, claim, "--scale", options.scale, "--data", options.data, "--device", options.device, *limit, "-o", folder)


def names_in(folder):
    kept = folder / "runs.json"
    return {run["name"] for run in json.loads(kept.read_text())["runs"]} if kept.exists() else set()


def record(options, claim, recorded):
    """Judged without data: nothing is trained."""
    folder = options.work / claim
    if not (folder / "runs.json").exists():
        print(f"{claim}: nothing in {folder}")
        return
    lost = names_in(EXPERIMENTS / claim) - names_in(folder)
    if lost:
        sys.exit(f"{folder} lacks {len(lost)} of the runs that are recorded, {min(lost)} among them: begin with a copy of experiments/{claim}/runs.json")
    run = pare(options, claim, "--scale", options.scale, "-o", folder, "--json", stdout=subprocess.PIPE)
    if run.returncode != 0:
        sys.exit(run.returncode)  # pare has said why
    judged = json.loads(run.stdout)
    (EXPERIMENTS / claim).mkdir(exist_ok=True)
    for old in (EXPERIMENTS / claim).glob("figure-*.svg"):
        old.unlink()
    for file in [folder / "runs.json", folder / "README.md", folder / "results.json", *folder.glob("figure-*.svg")]:
        shutil.copy(file, EXPERIMENTS / claim)
    print(f"{claim}: {judged['verdict']}" + ("" if judged["verdict"] == recorded else f"; recorded is: {recorded}"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("claims", nargs="*")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--scale", choices=["small", "full"], default="small")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--pare", default=str(ROOT / "build" / "pare"))
    options = parser.parse_args()
    if not options.record and options.data is None:
        parser.error("--data FOLDER, the corpora to train on; or --record")
    if options.minutes is not None and options.minutes <= 0:
        parser.error(f"--minutes {options.minutes:g}: expected more than 0")
    if options.record and not options.work.is_dir():
        parser.error(f"{options.work} is no folder: there is nothing to record")
    listed = json.loads(pare(options, "--list", "--json", stdout=subprocess.PIPE, check=True).stdout)["claims"]
    training = {claim["claim"]: claim["verdict"] for claim in listed if "--data" in (claim["command"] or "")}
    for unknown in set(options.claims) - training.keys():
        parser.error(f"{unknown} is no claim that trains on a corpus: {', '.join(training)}")
    begun, failed = time.monotonic(), 0
    for claim in options.claims or training:
        if options.record:
            record(options, claim, training[claim])
            continue
        left = options.minutes - (time.monotonic() - begun) / 60 if options.minutes else None
        if left is not None and left < 0.01:
            break
        code = go_on(options, claim, left)
        if code in (INTERRUPTED, -2):
            sys.exit(INTERRUPTED)
        failed += code != 0
    if options.record:
        page = pare(options, "--list", "--markdown", stdout=subprocess.PIPE, check=True).stdout
        (EXPERIMENTS / "README.md").write_text(page)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
