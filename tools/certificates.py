#!/usr/bin/env python3
"""Prints the table of certificates that docs/certificates/README.md shows, from the JSON files beside it."""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "certificates"
COLUMNS = ["certificate", "passes, and parameters saved by each", "parameters", "nats per token", "relative error", "predicted", "noise", "rows of weights moved by", "verdict"]


def row(name):
    certificate = json.loads((FOLDER / f"{name}.json").read_text())
    before, after = (certificate[side]["parameters"] for side in ("reference", "candidate"))
    passes = ", ".join(f"{one['id']} {one['saved_parameters']:,}" for one in certificate["passes"] if one["applies"])
    nats = [certificate["metrics"][f"{side}_nll_nats"] for side in ("reference", "candidate")]
    return [f"[{name}]({name}.json)", passes, f"{before:,} → {after:,} ({100 * (after - before) / before:.2f} %)",
            "-" if None in nats else " → ".join(f"{value:.9f}" for value in nats),
            f"{certificate['metrics']['max_relative_logit_error']:.1e}", f"{certificate['predicted_error']:.1e}",
            f"{certificate['noise_floor']['max_relative_logit_error']:.1e}", f"{certificate['proof']['weights_moved_by']:.1e}",
            certificate["verdict"]]


def main():
    for cells in [COLUMNS, ["---"] * len(COLUMNS), *map(row, sys.argv[1:])]:
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
