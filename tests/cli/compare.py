#!/usr/bin/env python3
"""pare compare: what sets runs apart besides their Architecture is said, and what nobody could believe is refused."""

import hashlib
import json
import math
import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
from report import Report, ended, expect, pare

NORM = {"kind": "rms"}
ARCHITECTURE = {"width": 16, "vocab": 16, "context": 16, "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 8, "norm": NORM},
                "mlp": {"width": 32, "activation": "gelu", "norm": NORM}}], "final_norm": NORM}
CONFIG = {"architecture": ARCHITECTURE, "task": "sorting", "data": {"length": 4}, "batch": 4, "steps": 12, "optimiser": {"lr": 3e-3, "warmup": 3},
          "evaluate": {"every": 4, "batches": 1}, "checkpoint": {"every": 4}}


def document(work, *runs):
    return json.loads(pare("compare", *runs, "--json", cwd=work).stdout)


def cut(work, run, copy, steps):
    """A run as it is where its process was killed after so many steps."""
    shutil.copytree(work / run, work / copy)
    lines = (work / run / "metrics.jsonl").read_text().splitlines()
    (work / copy / "metrics.jsonl").write_text("".join(line + "\n" for line in lines if json.loads(line)["step"] <= steps))


def check_starts(report, work):
    """From one model, from another, from another of the same name, and drawn in two ways."""
    for name, more in {"drawn": [], "free": ["init.recipe=norm_free"], "one": ["from=source"], "again": ["from=source", "seed=1"], "two": ["from=other"]}.items():
        report.check(f"a run: {name}", ended(pare("train", "config.json", "-o", name, *more, cwd=work)))
    shutil.rmtree(work / "source")
    shutil.copytree(work / "other", work / "source")
    report.check("a run: replaced", ended(pare("train", "config.json", "-o", "replaced", "from=source", "seed=1", cwd=work)))
    alone = pare("compare", "one", "again", cwd=work, env={"COLUMNS": "2000"})
    report.check("the same start", ended(alone, 0, ["2 alike"], ["did not start"]))
    report.check("a row of two runs is called by both, and nothing is compared", ended(alone, 0, ["one, again ", "in nothing but their seed"]))
    words = "did not start from the same numbers"
    result = pare("compare", "drawn", "one", "two", cwd=work, env={"COLUMNS": "2000"})
    report.check("other starts", ended(result, 0, [words, "drawn: drawn by gpt2 with deviation 0.02; one: from source; two: from other"]))
    report.check("other recipes", ended(pare("compare", "drawn", "free", cwd=work), 0, [words]))
    rows = document(work, "one", "replaced")["runs"]
    report.check("another model of the same path is another row", expect([len({row["start"] for row in rows}), rows[0]["start"].startswith("from source")], [2, True]))
    rows = document(work, "replaced", "two")
    report.check("the same model of two paths is one start", expect([note for note in rows["notes"] if words in note], []))
    report.check("the page", ended(pare("compare", "drawn", "one", "-o", "starts.html", cwd=work)))
    page = (work / "starts.html").read_text()
    report.check("says it too", expect([part in page for part in (words, "from source", "drawn by gpt2")], [True] * 3))


def check_stopped(report, work):
    """At which step each stands; nothing is compared at the start."""
    cut(work, "drawn", "stopped", 7)
    result = pare("compare", "drawn", "stopped", cwd=work, env={"COLUMNS": "2000"})
    report.check("one was stopped", ended(result, 0, ["after 4 steps", "is not at its end there: step 4 of 12, of which 7 to 12 are done"]))
    rows = document(work, "free", "stopped")["runs"]
    report.check("where each stands", expect([(row["steps"], row["done"]) for row in rows], [(12, [12]), (12, [7])]))
    report.check("all are at their end", ended(pare("compare", "drawn", "free", cwd=work), 0, [], ["not at its end"]))
    cut(work, "drawn", "early", 3)
    report.check("only the start in common", ended(pare("compare", "free", "early", cwd=work), 1, ["no step after their start", "'early' has done 3 of its 12 steps", "--resume"]))
    cut(work, "drawn", "nothing", -1)
    report.check("nothing was measured", ended(pare("compare", "nothing", cwd=work), 1, ["'nothing' has done 0 of its 12 steps"]))
    report.check("-o into a run", ended(pare("compare", "drawn", "free", "-o", "free/c.html", cwd=work), 1, ["lies in 'free'"]))


def measured(work, run, copy, loss):
    """A copy of a run as it is had its last validation come to that loss."""
    shutil.copytree(work / run, work / copy)
    lines = [json.loads(line) for line in (work / run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["step"] == 12 and "validation" in line:
            line["validation"] = loss
    (work / copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def check_statistics(report, work):
    """Pairs of one seed, their interval, a margin that is named; the half-widths by hand, with Student's t of 1 and 2 degrees."""
    for seed in range(3):
        for name, more in (("plain", []), ("wide", ["architecture.blocks.*.mlp.width=48"])):
            report.check(f"a run: {name}", ended(pare("train", "config.json", "-o", f"{name}-seed{seed}", f"seed={seed}", *more, cwd=work)))

    def copies(folder, plain, wide):
        for seed, (a, b) in enumerate(zip(plain, wide)):
            measured(work, f"plain-seed{seed}", f"{folder}/plain-seed{seed}", a)
            measured(work, f"wide-seed{seed}", f"{folder}/wide-seed{seed}", b)
        return [f"{folder}/{name}-seed{seed}" for name in ("plain", "wide") for seed in range(len(plain))]

    # Seeds that are 14.7 % apart, which were called equal, in green.
    runs = copies("apart", [0.300, 0.344], [0.320, 0.331])
    result = pare("compare", *runs, "-o", "apart.html", cwd=work, env={"COLUMNS": "2000"})
    report.check("seeds far apart", ended(result, 0, ["wide against plain: too few to tell: +0.0035 ± 0.2097 (2 pairs)", "--margin"], ["equal within"]))
    page = (work / "apart.html").read_text()
    report.check("nor green on the page", expect(["equal within" in page, re.findall(r'<article class="verdict (\w+)">', page)], [False, ["neutral"]]))
    with_margin = pare("compare", *runs, "--margin", "0.05", "--json", cwd=work)
    row = json.loads(with_margin.stdout)["runs"][1]["difference"]
    report.check("with a margin", expect([row["pairs"], row["verdict"], row["within_margin"], row["pairs_needed"]], [2, "too few", False, 4]))
    half = 12.7062047362 * math.sqrt(((0.020 + 0.013) / 2) ** 2 * 2) / math.sqrt(2)
    report.check("its interval", "" if math.isclose(row["interval"][1] - row["mean"], half, rel_tol=1e-9) else row)
    # The same runs give no cost at 1,000 steps of norm-removal: too few.
    runs = copies("three", [1.1562, 1.1553, 1.1595], [1.1582, 1.1593, 1.1611])
    report.check("three pairs", ended(pare("compare", *runs, cwd=work, env={"COLUMNS": "2000"}), 0, ["too few to tell: +0.0025 ± 0.0032 (3 pairs); about 4 would"]))
    result = pare("compare", *runs, "--margin", "0.01", cwd=work, env={"COLUMNS": "2000"})
    report.check("equal within what was named", ended(result, 0, ["equal within 0.01: +0.0025 ± 0.0032 (3 pairs)"], ["--margin"]))
    runs = copies("higher", [1.1, 1.2, 1.3], [1.1031, 1.2030, 1.3032])
    report.check("both are said", ended(pare("compare", *runs, "--margin", "0.01", cwd=work, env={"COLUMNS": "2000"}), 0, ["higher, yet equal within 0.01: +0.0031 ± 0.0002 (3 pairs)"]))
    report.check("one pair", ended(pare("compare", runs[0], runs[3], cwd=work, env={"COLUMNS": "2000"}), 0, ["+0.0031, one pair says nothing: too few"]))
    report.check("none in common", ended(pare("compare", runs[0], runs[4], cwd=work, env={"COLUMNS": "2000"}), 0, ["no pair of one seed, data and order"]))
    report.check("a margin of nothing", ended(pare("compare", *runs, "--margin", "0", cwd=work), 1, ["a margin of 0: expected one above 0"]))


def check_seeds_that_draw_nothing(report, work):
    """Runs from one model without dropout differ by the order of sums, on another machine or a GPU: they are one pair."""
    def pairs(*more):
        folder = "dropping" if more else "still"
        (work / "begun" / folder).mkdir(parents=True)
        for seed in range(2):
            for name, rate in (("high", "4e-3"), ("low", "3e-3")):
                begun = pare("train", "config.json", "-o", f"begun/{folder}/{name}-seed{seed}", "from=other", f"seed={seed}", f"optimiser.lr={rate}", *more, cwd=work)
                report.check(f"a run from a model: {folder}", ended(begun))
                measured(work, f"begun/{folder}/{name}-seed{seed}", f"{folder}/{name}-seed{seed}", {"high": 1.15, "low": 1.1}[name] + 1e-7 * seed**2 * (name == "low"))
        rows = document(work, *(f"{folder}/{name}-seed{seed}" for name in ("high", "low") for seed in range(2)))["runs"]
        return [rows[1]["difference"]["pairs"], rows[1]["difference"]["verdict"]]

    report.check("seeds that draw nothing", expect(pairs(), [1, "too few"]))
    report.check("and with dropout", expect(pairs("dropout.residual=0.1"), [2, "lower"]))


def check_names(report, work):
    """Two rows are never called alike."""
    (work / "low").mkdir()
    runs = ["apart/plain-seed0", "apart/plain-seed1", "low/plain-seed0", "low/plain-seed1"]
    for seed in (0, 1):
        report.check("a run of another rate", ended(pare("train", "config.json", "-o", f"low/plain-seed{seed}", f"seed={seed}", "optimiser.lr=1e-3", cwd=work)))
    report.check("folders", expect([row["name"] for row in document(work, *runs)["runs"]], ["apart/plain", "low/plain"]))
    for seed in (2, 3):
        report.check("and in one folder", ended(pare("train", "config.json", "-o", f"apart/plain-seed{seed}", f"seed={seed}", "optimiser.lr=1e-3", cwd=work)))
    runs = [f"apart/plain-seed{i}" for i in range(4)]
    names = [row["name"] for row in document(work, *runs)["runs"]]
    report.check("one folder", expect(names, ["plain-seed0", "plain-seed2"]))


def check_morph(report, work):
    """Parameters are those of the step; the curve of training is of the cross-entropy alone."""
    report.check("a morph", ended(pare("train", "config.json", "-o", "morph", "from=other", "morph.to.norms=none", "morph.steps=8", "teacher=other", cwd=work)))
    cut(work, "morph", "between", 5)
    whole, half = document(work, "morph")["runs"][0], document(work, "between")["runs"][0]
    report.check("its end", expect([whole["t"], whole["teacher"]], [None, "other"]))
    report.check("parameters of the step", expect(half["parameters"] - whole["parameters"], 5 * 16))
    report.check("how far it is", expect(half["t"], 1 - (1 - 4 / 8) ** 2))
    report.check("in words", ended(pare("compare", "between", cwd=work, env={"COLUMNS": "2000"}), 0, ["between two Architectures there (t = 0.75)"]))
    lines = [json.loads(line) for line in (work / "morph/metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "loss" in line]
    report.check("both losses are stored", expect([len([line for line in trained if "cross_entropy" in line]), "cross_entropy" in (work / "drawn/metrics.jsonl").read_text()], [12, False]))
    report.check("and differ", expect(all(line["loss"] != line["cross_entropy"] for line in trained), True))
    # The first step of a run from the same model on the same batch has nothing else in its loss.
    plain = json.loads(next(line for line in (work / "two/metrics.jsonl").read_text().splitlines() if '"loss"' in line))["loss"]
    report.check("the plain one", "" if math.isclose(trained[0]["cross_entropy"], plain, rel_tol=1e-5) else f"{trained[0]} and {plain}")
    report.check("the page", ended(pare("compare", "two", "morph", "-o", "morph.html", cwd=work)))
    drawn = f"{trained[0]['cross_entropy']:.4g}"[:5]
    report.check("draws the plain one", expect([drawn in (work / "morph.html").read_text(), "Cross-entropy alone" in (work / "morph.html").read_text()], [True, True]))


def check_edited(report, work):
    """What a run was begun with is hashed: who edits it is told so."""
    hashes = dict(reversed(line.split("  ")) for line in (work / "one/run.sha256").read_text().splitlines())
    report.check("the hashes", expect(hashes, {name: hashlib.sha256((work / "one" / name).read_bytes()).hexdigest() for name in ("config.json", "data.json", "start.json")}))
    for name, old, new in (("config.json", '"steps": 12', '"steps": 13'), ("data.json", '"seed": 0', '"seed": 1'), ("start.json", '"path": "source"', '"path": "other"')):
        shutil.copytree(work / "one", work / "edited")
        text = (work / "edited" / name).read_text()
        (work / "edited" / name).write_text(text.replace(old, new))
        report.check(f"{name}: an edit", expect(text != (work / "edited" / name).read_text(), True))
        words = [f"edited/{name}' is not as it was when the run began", "run.sha256"]
        report.check(f"{name}: compare", ended(pare("compare", "one", "edited", cwd=work), 1, words))
        report.check(f"{name}: resume", ended(pare("train", "-o", "edited", "--resume", cwd=work), 1, words))
        shutil.rmtree(work / "edited")
    for gone, words in (("run.sha256", "has no run.sha256"), ("start.json", "start.json")):
        shutil.copytree(work / "one", work / "edited")
        (work / "edited" / gone).unlink()
        report.check(f"no {gone}: compare", ended(pare("compare", "one", "edited", cwd=work), 1, [words]))
        report.check(f"no {gone}: resume", ended(pare("train", "-o", "edited", "--resume", cwd=work), 1, [words]))
        shutil.rmtree(work / "edited")


def main():
    report = Report("compare")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "config.json").write_text(json.dumps(CONFIG))
        (work / "architecture.json").write_text(json.dumps(ARCHITECTURE))
        for name, seed in (("source", "1"), ("other", "2")):
            report.check(f"a model: {name}", ended(pare("init", "architecture.json", "-o", name, "--seed", seed, cwd=work)))
        check_starts(report, work)
        check_stopped(report, work)
        check_statistics(report, work)
        check_seeds_that_draw_nothing(report, work)
        check_names(report, work)
        check_morph(report, work)
        check_edited(report, work)
    report.finish()


if __name__ == "__main__":
    main()
