#!/usr/bin/env python3
"""`pare bench` as people use it: what is measured of which model, in which order, what is said of it, what is refused, Ctrl-C. No check depends on a time."""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "benchmarks"))
from race import median_ratio, parting
from report import Report, ended, expect, interrupted_at, pare
from text import ARCHITECTURE, IMAGES

SHORT = ARCHITECTURE | {"context": 40}
ENCODER = {key: value for key, value in SHORT.items() if key != "head"} | {"task": "encoder"}


def quick(rounds=2):
    return ["--rounds", rounds, "--tokens", "3", "--prompt", "4"]



class Place:
    def __init__(self, report, folder):
        self.report, self.folder = report, folder
        for name, architecture in (("model", SHORT), ("images", IMAGES), ("encoder", ENCODER)):
            (folder / f"{name}.json").write_text(json.dumps(architecture))
            report.check(f"init {name}", ended(self.pare("init", f"{name}.json", "-o", name)))
        (folder / "one.json").write_text(json.dumps(ARCHITECTURE | {"context": 1}))

    def pare(self, *words, **options):
        return pare(*words, cwd=self.folder, **options)

    def document(self, *words):
        result = self.pare("bench", *words, "--json", "--quiet")
        if result.returncode != 0:
            raise RuntimeError(result.stdout + result.stderr)
        return json.loads(result.stdout)


def order(document):
    return [(turn["round"], turn["model"], turn["what"]) for turn in document["turns"]]


def check_turns(place):
    """In each round every model has its turn, and what is said is what the turns say."""
    said = place.document("model", "model.json", *quick(7), "--train", "--batch", "2")
    wanted = [(r, m, what) for r in range(1, 8) for m, what in
              [(0, "prefill"), (0, "decode"), (0, "read"), (1, "prefill"), (1, "decode"), (1, "read"), (0, "train"), (1, "train")]]
    place.report.check("in turns", expect(order(said), wanted))
    works = {turn["what"]: turn["work"] for turn in said["turns"]}
    step = said["models"][0]["step_bytes"]
    place.report.check("how much each was", expect(works, {"prefill": 4, "decode": 3, "read": step, "train": 8}))
    speeds = {(m, what): [t["work"] / t["seconds"] for t in said["turns"] if (t["model"], t["what"]) == (m, what)] for m in (0, 1) for what in works}
    wrong = []
    for m, model in enumerate(said["models"]):
        for what in works:
            mine, first = speeds[m, what], speeds[0, what]
            ratios = sorted(a / b for a, b in zip(mine, first))
            lower, middle, upper = statistics.quantiles(mine, n=4, method="inclusive")
            for found, expected in ((model[what]["median"], middle), (model[what]["quartiles"][0], lower), (model[what]["quartiles"][1], upper),
                                    (model[what]["ratio"]["median"], ratios[3]), (model[what]["ratio"]["interval"][0], ratios[0]), (model[what]["ratio"]["interval"][1], ratios[6])):
                wrong += [] if abs(found - expected) <= 1e-9 * abs(expected) else [f"{m} {what}: {found}, by hand {expected}"]
        shares = sorted(step * a / b for a, b in zip(speeds[m, "decode"], speeds[m, "read"]))
        wrong += [] if abs(model["share_of_read"]["median"] - shares[3]) <= 1e-9 * shares[3] else [f"share {model['share_of_read']}"]
    place.report.check("medians, quartiles, ratios and intervals, by hand", "; ".join(wrong))
    place.report.check("the same bytes are read, whoever made the weights", expect(said["models"][1]["step_bytes"], step))
    matrices = 0
    for block in SHORT["blocks"]:
        attention, mlp = block["attention"], block["mlp"]
        inner, keys = attention["heads"] * attention["head_width"], attention.get("kv_heads", attention["heads"]) * attention["head_width"]
        matrices += block.get("repeat", 1) * SHORT["width"] * (2 * inner + 2 * keys + (3 if mlp.get("gated") else 2) * mlp["width"])
    place.report.check("every matrix once, by hand", expect(step, 4 * (matrices + SHORT["width"] * SHORT["vocab"])))


def check_types(place):
    said = place.document("model", "--dtype", "float32,bf16", *quick())
    place.report.check("each type", expect([(m["name"], m["dtype"], m["engine"]) for m in said["models"]],
                                           [("model, float32", "float32", True), ("model, bfloat16", "bfloat16", True)]))
    place.report.check("half the bytes", expect(said["models"][0]["step_bytes"], 2 * said["models"][1]["step_bytes"]))
    wide = place.document("model", "--dtype", "float64", *quick())["models"][0]
    place.report.check("float64 runs on the Executor", expect((wide["engine"], wide["dtype"], wide["step_bytes"]), (False, "float64", 2 * said["models"][0]["step_bytes"])))
    half = place.document("model", "--dtype", "float16", *quick(1), "--train")
    place.report.check("nobody trains in float16", expect((half["models"][0]["left_out"], half["models"][0]["train"], [t for t in half["turns"] if t["what"] == "train"]), (["train: nobody trains in float16"], None, [])))
    twice = place.document("model", "model", *quick(1))
    place.report.check("the same twice", expect([m["name"] for m in twice["models"]], ["model", "model again"]))
    place.report.check("no interval of one round", expect(twice["models"][1]["decode"]["ratio"]["interval"], None))


def check_kinds(place):
    """An encoder and a model of images run forward once; what cannot be measured is said."""
    said = place.document("model", "encoder", "images", *quick(), "--train")
    place.report.check("what each has", expect([sorted({t["what"] for t in said["turns"] if t["model"] == m}) for m in range(3)],
                                               [["decode", "prefill", "read", "train"], ["prefill"], ["prefill", "train"]]))
    place.report.check("what it has not", expect([m["left_out"] for m in said["models"]], [
        [], ["decode: its task is encoder, so it continues no text", "train: nobody trains a model of the task encoder"], ["decode: it reads images, so it continues no text"]]))
    place.report.check("ratios only of what both have", expect([m["decode"] for m in said["models"][1:]], [None, None]))
    place.report.check("a context of one token", expect(place.document("one.json", "--rounds", "1")["models"][0]["left_out"], ["decode: its context holds no token after the prompt"]))
    fits = place.document("model", "--rounds", "1")
    place.report.check("what fits a small context", expect((fits["prompt"], fits["tokens"]), (30, 10)))


def check_text(place):
    for columns in ("80", "40"):
        result = place.pare("bench", "model", "encoder", "--dtype", "float32,bfloat16", *quick(), "--train", env={**os.environ, "COLUMNS": columns})
        wide = [line for line in result.stdout.splitlines() if len(line) > int(columns)]
        words = ["Prefill: one forward pass over 4 tokens", "Decode: 3 tokens after 4", "plain read", "Memory that each model adds", "Not measured of encoder"]
        flat = subprocess.CompletedProcess([], result.returncode, " ".join(result.stdout.split()), result.stderr)
        place.report.check(f"a table in {columns} columns", ended(flat, 0, words) or "; ".join(wide))
    plain = place.pare("bench", "model", *quick())
    place.report.check("without a terminal it fits 80 columns too", "; ".join(line for line in plain.stdout.splitlines() if len(line) > 80))
    place.report.check("one model has no ratio", ended(plain, 0, ["One model in 2 rounds on cpu", "The machine was "], ["ratio", "random weights"]))
    drawn = place.pare("bench", "model.json", "--dtype", "bfloat16", *quick())
    place.report.check("which type, and whose weights", ended(drawn, 0, ["in bfloat16", "model.json has random weights"]))
    place.report.check("noise is said by its number", expect(place.document("model", *quick())["noisy"] in (True, False), True))


def check_page(place):
    result = place.pare("bench", "model", "model", "--report", "b.html", *quick(7), "--train")
    place.report.check("a page", ended(result))
    single = place.pare("bench", "model", "--report", "one.html", "--threads", "1", *quick(1))
    place.report.check("one thread, one round", ended(single) or ("" if "One round on cpu with one thread." in (place.folder / "one.html").read_text() else "other words"))
    page = (place.folder / "b.html").read_text() if result.returncode == 0 else ""
    figures = [json.loads(data) for data in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)]
    titles = [figure["title"] for figure in figures]
    place.report.check("its figures", expect(titles, ["Decode, by model", "Prefill, by model", "Training step, by model", "Weights read, by model",
                                                      "Decode, by round", "Prefill, by round", "Training step, by round"]))
    place.report.check("bars with whiskers", expect([[len(s["y"]), len(s["spread"])] for s in figures[0]["series"]] if figures else 0, [[2, 2]]))
    place.report.check("a page that is there stays", ended(place.pare("bench", "model", "--report", "b.html"), 1, ["'b.html' exists", "--force"]))


def check_refusals(place):
    for words, message in (
        ([], ["MODEL", "required"]),
        (["nothing/there"], ["nothing/there"]),
        (["model", "--prompt", "40", "--tokens", "1"], ["'model' reads at most 40 tokens, but 41 are asked for: 40 at once and 1 after them"]),
        (["model", "encoder", "--prompt", "41"], ["'model' reads at most 40 tokens"]),
        (["encoder", "--prompt", "41"], ["'encoder' reads at most 40 tokens, but 41 are asked for: 41 at once. Give"]),
        (["model", "--batch", "3"], ["--batch", "--train"]),
        (["model", "--rounds", "0"], ["--rounds", "from 1"]),
        (["model", "--dtype", "int8"], ["--dtype", "'int8'"]),
        (["model", "--report", "model/config.json"], ["model"]),
    ):
        place.report.check(f"refused: {words}", ended(place.pare("bench", *words), 1, message))


def check_parting(place):
    """What `make bench` says where greedy tokens part: at which token, and by what margin."""
    same = parting([5, 6, 7], [5, 6, 7], [1.0, 1.0, 1.0], [0.1, 0.1, 0.1])
    place.report.check("the same tokens", expect(same, "the same 3 greedy tokens"))
    near = parting([5, 6, 9], [5, 6, 7], [1.0, 1.0, 1.5e-4], [1e-5, 1e-5, 2e-4])
    place.report.check("two that are alike", expect(near, "greedy tokens part at token 3 of 3: there the two best logits are 1.50e-04 apart and the sides "
                                                          "differ by up to 2.00e-04, less than rounding moves them"))
    far = parting([5, 8, 7], [5, 6, 7], [1.0, 0.5], [1e-5, 1e-3])  # nothing is known behind the parting
    place.report.check("two that are not", expect(("token 2 of 3" in far, "5.00e-01 apart" in far, "MORE than the difference explains" in far), (True, True, True)))
    place.report.check("fewer tokens", expect("MORE" in parting([5], [5, 6], [1.0], [0.1]), True))
    place.report.check("never no number", expect("nan" in same + near + far, False))
    place.report.check("ratios round by round", expect(median_ratio([1.0, 10.0, 100.0], [2.0, 20.0, 300.0]), 2.0))


def check_interrupt(place):
    shown, code, out = interrupted_at("measuring", "bench", "model", *quick(1000000), cwd=place.folder)
    place.report.check("Ctrl-C prints what there is", expect((code, "rounds, ended early" in out, "Prefill" in out), (130, True, True)))
    shown, code, out = interrupted_at("measuring", "bench", "model", "model", *quick(1000000), "--json", "--report", "part.html", cwd=place.folder)
    document = json.loads(out)
    whole = order(document)
    place.report.check("and so with --json", expect((code, document["error"]["kind"], whole[:6]),
                                                    (130, "interrupted", [(1, m, what) for m in (0, 1) for what in ("prefill", "decode", "read")])))
    page = place.folder / "part.html"
    place.report.check("and with a page", "" if page.exists() and "<strong>Partial.</strong>" in page.read_text() else f"{page.exists()}")


def main():
    report = Report("bench")
    with tempfile.TemporaryDirectory() as folder:
        place = Place(report, pathlib.Path(folder))
        check_turns(place)
        check_types(place)
        check_kinds(place)
        check_text(place)
        check_page(place)
        check_refusals(place)
        check_parting(place)
        check_interrupt(place)
    report.finish()


if __name__ == "__main__":
    main()
