#!/usr/bin/env python3
"""The pages of `audit`, `verify`, `probe`, `compare` and `bench`: they say what the commands say, draw in a real browser, and replace nothing.

What is drawn layer by layer is computed again here, from what `pare run` records of both models.
"""

import html
import json
import math
import os
import pathlib
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "error")]
from browser import Browser, find_chromium  # noqa: E402  (the folders above are not a package)
from files import read_tensors, write_tensors  # noqa: E402
from report import PARE, Report, ended, expect, pare  # noqa: E402

ARCHITECTURE = {
    "width": 12, "vocab": 23, "context": 32, "embedding": {"position": "learned"},
    "blocks": [{"repeat": 3, "attention": {"heads": 2, "head_width": 6, "bias": {"key": True}, "norm": {"kind": "rms"}},
                "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms"}}}],
    "final_norm": {"kind": "rms"},
}
TOKENS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9], [3, 2, 3, 8, 4]]
HOSTILE = "<img src=x onerror=window.hacked=1>"
VARIANT = "no-mlp"
MANY = ("vit-b-16", "gpt2", "opt-125m", "albert-base", "gemma-2b", "bert-base", "skipless-mistral-7b", "pythia-6.9b", "mistral-7b")


def figures_of(page):
    """The data of every figure in a page, by title."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)
    return {figure["title"]: figure for figure in map(json.loads, found)}


def verdicts_of(page):
    text = pathlib.Path(page).read_text(encoding="utf-8")
    cards = re.findall(r'<article class="verdict (\w+)"><h3>(.*?)</h3><p class="word">(.*?)</p><p class="number">(.*?)</p>', text, re.S)
    return [tuple(html.unescape(part) for part in card) for card in cards]


def doubles(tensor):
    return struct.unpack(f"<{len(tensor[2]) // 8}d", tensor[2])


def make_models(work):
    (work / "arch.json").write_text(json.dumps(ARCHITECTURE))
    (work / "ids.json").write_text(json.dumps(TOKENS))
    problems = [ended(pare("init", "arch.json", "-o", "model", "--generic", cwd=work))]
    problems.append(ended(pare("rewrite", "model", "-o", "smaller", "--passes", "auto", "--quiet", cwd=work)))
    # The same settings, other numbers: one weight of the second block.
    problems.append(ended(pare("init", "arch.json", "-o", "other", "--generic", cwd=work)))
    path = work / "other" / "model.safetensors"
    tensors = dict(read_tensors(path))
    name = "blocks.1.attention.query.weight"
    kind, shape, data = tensors[name]
    tensors[name] = (kind, shape, struct.pack("<f", struct.unpack_from("<f", data)[0] + 0.25) + data[4:])
    write_tensors(path, tensors)
    return "; ".join(filter(None, problems))


def check_audit(report, work):
    report.check("audit --report", ended(pare("audit", "model", "--report", "a.html", cwd=work)))
    document = json.loads(pare("audit", "model", "--json", cwd=work).stdout)
    figures = figures_of(work / "a.html")
    passes = figures["Parameters that each pass removes"]
    drawn = dict(zip(passes["x"]["names"], passes["series"][0]["y"]))
    report.check("audit: what each pass saves", expect(drawn, {p["id"]: p["saved_parameters"] for p in document["passes"] if p["applies"] and p["saved_parameters"] > 0}))
    report.check("audit: redundant parameters", expect(sum(figures["Redundant parameters of each symmetry"]["series"][0]["y"]), document["redundant"]))
    report.check("audit: parameters by part", expect(sum(figures["Parameters of each part"]["series"][0]["y"]), document["parameters"]))
    text = (work / "a.html").read_text(encoding="utf-8")
    missing = [p["id"] for p in document["passes"] if any(r["remedy"] for r in p["reasons"]) and f">{p['id']}<" not in text]
    report.check("audit: refusals are listed", expect(missing, []))
    report.check("audit of a preset", ended(pare("audit", "gpt2", "--prove", "--report", "preset.html", cwd=work)))
    report.check("audit: a proof is among the verdicts", expect([v[2] for v in verdicts_of(work / "preset.html") if v[1].startswith("Is that count")], ["yes"]))
    check_costs(report, work)


def check_costs(report, work):
    """A pass that adds a table is listed, and squeezes no bars; and what training could remove has its command."""
    report.check("audit of a preset whose tables are large", ended(pare("audit", "mistral-7b", "--report", "tables.html", cwd=work)))
    document = json.loads(pare("audit", "mistral-7b", "--json", cwd=work).stdout)
    drawn = figures_of(work / "tables.html")["Parameters that each pass removes"]["series"][0]["y"]
    added = [-p["saved_parameters"] for p in document["passes"] if p["applies"] and p["saved_parameters"] < 0]
    report.check("audit: there is one that adds parameters", expect(len(added), 1))
    report.check("audit: bars are of what is removed", expect([y for y in drawn if y <= 0], []))
    text = html.unescape((work / "tables.html").read_text(encoding="utf-8"))
    report.check("audit: what is added is listed", "" if f">{added[0]:,} more<" in text else f"no {added[0]:,} more")
    away = document["without_norms"]
    report.check("audit: how to train them away", "" if f'<pre class="command">{chr(10).join(away["commands"])}</pre>' in text else "no command")
    card = [v for v in verdicts_of(work / "tables.html") if v[1].startswith("Removable after training without norms")]
    report.check("audit: what would go then", "" if card and f"{away['removable']:,} parameters" in card[0][3] else f"{card}")
    missing = [m for m in away["measured"] if (">stopped" if m["nats"] is None else f">{m['nats']:+.4f}") not in text]
    report.check("audit: what it cost elsewhere", expect([len(away["measured"]) > 0, missing], [True, []]))


def check_presets(report, work):
    """The page says what the command prints; its long table sorts by what a reader clicks."""
    report.check("presets --report", ended(pare("presets", *MANY, "--quiet", "--report", "t.html", cwd=work)))
    rows = json.loads(pare("presets", *MANY, "--json", "--quiet", cwd=work).stdout)["presets"]
    figures = figures_of(work / "t.html")
    shares = {name: values for name, values in zip(figures["What stands in the way"]["y"]["names"], figures["What stands in the way"]["panels"][0]["values"])}
    for row in rows:
        without = {found["what"]: found["removable"] for found in row["removable_without"]}
        amounts = [row["removable"], *(without.get(what) for what in ("norms", "MLP skips", "attention skips", "RoPE"))]
        expected = [None if amount is None else 100 * amount / row["parameters"] for amount in amounts]
        report.check(f"presets: {row['name']} is drawn", expect([v is None if e is None else math.isclose(v, e) for v, e in zip(shares[row["name"]], expected)], [True] * 5))
    points = {name: y for series in figures["Redundant against removable"]["series"] for name, y in zip(series["labels"], series["y"])}
    report.check("presets: a point of each", expect(set(points), set(MANY)))
    words = html.unescape((work / "t.html").read_text(encoding="utf-8"))
    missing = [row["name"] for row in rows if f">{row['parameters']:,}<" not in words or f">{row['removable']:,}<" not in words]
    report.check("presets: all of them are in the table", expect(missing, []))


def check_sorting(report, work, browser):
    page = browser.open(work / "t.html")
    first = "[...document.querySelector('table.sortable').tBodies[0].rows].map(r => r.cells[0].textContent)"
    click = "[...document.querySelectorAll('table.sortable th button')].find(b => b.textContent === '%s').click()"
    sizes = {row["name"]: row["parameters"] for row in json.loads(pare("presets", *MANY, "--json", "--quiet").stdout)["presets"]}
    report.check("as printed", expect(page.evaluate(first), list(MANY)))
    for heading, expected in [("parameters", sorted(MANY, key=sizes.get, reverse=True)), ("parameters", sorted(MANY, key=sizes.get)), ("model", sorted(MANY))]:
        page.evaluate(click % heading)
        report.check(f"sorted by {heading}", expect(page.evaluate(first), expected))
    page.evaluate(click % "the cache")
    report.check("what has no cache is last", expect(set(page.evaluate(first)[-3:]), {"albert-base", "bert-base", "vit-b-16"}))
    report.check("no complaint", "; ".join(page.problems()))
    page.close()


def gaps_by_hand(work, first, second):
    """Of each layer: the largest difference of a probability by head, and the stream's relative difference by sequence."""
    runs = []
    for model in (first, second):
        pare("run", model, "-o", f"{model}.taps", "--tokens", "ids.json", "--taps", "blocks.*.attention.probabilities,residual.*", cwd=work)
        runs.append(dict(read_tensors(work / f"{model}.taps")))
    one, two = runs
    layers = []
    for layer in range(3):
        heads, streams = [0.0, 0.0], []
        for s, ids in enumerate(TOKENS):
            a, b = (doubles(run[f"blocks.{layer}.attention.probabilities.{s}"]) for run in runs)
            for head in range(2):
                part = slice(head * len(ids) ** 2, (head + 1) * len(ids) ** 2)
                heads[head] = max([heads[head], *(abs(x - y) for x, y in zip(a[part], b[part]))])
            a, b = (doubles(run[f"residual.{layer + 1}.{s}"]) for run in runs)
            streams.append(math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(x * x for x in a)))
        layers.append((heads, sum(streams) / len(streams)))
    return layers


def check_verify(report, work):
    report.check("verify --report", ended(pare("verify", "model", "smaller", "--report", "v.html", cwd=work)))
    document = json.loads(pare("verify", "model", "smaller", "--json", cwd=work).stdout)
    verdicts = verdicts_of(work / "v.html")
    report.check("verify: the certificate's verdict", expect(verdicts[0][2].replace(" ", "_"), document["verdict"]))
    report.check("verify: a good one is green", expect(verdicts[0][0], "good"))
    title = f"“{work.name}/smaller” against “{work.name}/model”"
    report.check("verify: the title says where the models lie", "" if f"<h1>{title}</h1>" in (work / "v.html").read_text(encoding="utf-8") else f"not {title}")
    text = (work / "v.html").read_text(encoding="utf-8")
    hashes = [h for side in ("reference", "candidate") for h in document[side]["files"].values()]
    report.check("verify: every file's hash", expect([h for h in hashes if h not in text], []))
    errors = figures_of(work / "v.html")["Relative error of the rows"]["series"][0]
    report.check("verify: the largest row is the largest error", expect(max(e for e in errors["y"] if e is not None), document["metrics"]["max_relative_logit_error"]))

    different = pare("verify", "model", "other", "--tokens", "ids.json", "--report", "d.html", cwd=work)
    report.check("verify: a page also where they differ", ended(different, 3))
    report.check("verify: which says so", expect(verdicts_of(work / "d.html")[0][:3:2], ("bad", "different")))
    pare("rewrite", "other", "-o", "other-smaller", "--passes", "auto", "--quiet", cwd=work)
    report.check("verify: a smaller one that is another", ended(pare("verify", "model", "other-smaller", "--report", "s.html", cwd=work), 3))
    report.check("verify: that it is smaller is no merit then", expect([v[:3:2] for v in verdicts_of(work / "s.html") if v[1] == "Size"], [("neutral", "smaller")]))
    figures = figures_of(work / "d.html")
    heads = figures["Difference of attention, by head"]["panels"][0]["values"]
    stream = figures["Difference of the residual stream, by layer"]["series"][0]["y"]
    problem = ""
    for layer, (by_hand, residual) in enumerate(gaps_by_hand(work, "model", "other")):
        pairs = list(zip(heads[layer], by_hand)) + [(stream[layer], residual)]
        for found, wanted in pairs:
            if abs(found - wanted) > 1e-9 * max(wanted, 1e-3):
                problem += f" layer {layer}: {found}, by hand {wanted};"
    report.check("verify: layers, computed again", problem)
    report.check("verify: the first layer is the same, the second is not", expect([stream[0] == 0, stream[1] > 1e-4], [True, True]))
    settings = json.loads(json.dumps(ARCHITECTURE)) | {"context": 16}
    (work / "short.json").write_text(json.dumps(settings))
    pare("init", "short.json", "-o", "short", cwd=work)
    report.check("verify: settings that differ", ended(pare("verify", "model", "short", "--report", "e.html", cwd=work), 3))
    report.check("verify: are listed", "" if "context" in (work / "e.html").read_text() else "no word of it")


def check_probe(report, work):
    result = pare("probe", "model", "--tokens", "ids.json", "-o", "p.html", cwd=work)
    report.check("probe -o", ended(result))
    document = json.loads(pare("probe", "model", "--tokens", "ids.json", "--json", cwd=work).stdout)
    verdicts = verdicts_of(work / "p.html")
    report.check("probe: a verdict for each collapse", expect([v[2] for v in verdicts], [finding["verdict"] for finding in document["collapses"]]))
    numbers = [f"{finding['measure']}: {finding['number']:.3g}" for finding in document["collapses"]]
    report.check("probe: each says what is measured, then the number", expect([v[3] for v in verdicts], numbers))
    figures = figures_of(work / "p.html")
    wanted = ["Rank of the residual stream, by layer", "Attention entropy, by layer", "Attention entropy of each head", "Directional asymmetry of each head",
              "σ₁/σ₂ of each head's attention matrix", "Smallest principal angle between two heads' outputs",
              "Singular values of the residual stream after each layer", "MLP width and its bound, by layer"]
    report.check("probe: figures", expect([w for w in wanted if w not in figures], []))
    report.check("probe: no rank is below 0", expect([f["title"] for f in figures.values() if "rank" in f["y"]["words"] and f["y"].get("least") != 0], []))
    report.check("probe of heads that write nothing", ended(pare("probe", "model", "--tokens", "ids.json", "--zero-gains", "1", "-o", "nothing.html", cwd=work)))


def check_compare(report, work):
    """Two variants of three seeds: the page has what the document has, and the curves of the files."""
    sweep = {"task": "sorting", "data": {"length": 4}, "architecture": ARCHITECTURE, "batch": 4, "steps": 24, "optimiser": {"warmup": 3},
             "evaluate": {"every": 6, "batches": 2}, "sweep": {"seeds": [0, 1, 2], "variants": {"base": {}, VARIANT: {"architecture.blocks.*.mlp": None}}}}
    (work / "sweep.json").write_text(json.dumps(sweep))
    report.check("compare: the runs", ended(pare("train", "sweep.json", "-o", "sweep", "--quiet", cwd=work)))
    runs = sorted(str(run.relative_to(work)) for run in (work / "sweep").iterdir())
    result = pare("compare", *runs, "-o", "c.html", cwd=work)
    report.check("compare -o", ended(result, 0, ["base", "(3 pairs)"]))
    rows = json.loads(pare("compare", *runs, "--json", cwd=work).stdout)["runs"]
    cards = verdicts_of(work / "c.html")
    difference = rows[1]["difference"]
    said = "higher loss" if difference["interval"][0] > 0 else "lower loss" if difference["interval"][1] < 0 else "too few runs"
    report.check("compare: one verdict", expect([card[2] for card in cards], [said]))
    report.check("compare: its difference", "" if f"{difference['mean']:+.4f} nats" in cards[0][3] else cards[0][3])
    text = html.unescape((work / "c.html").read_text(encoding="utf-8"))
    least, most = difference["interval"]
    report.check("compare: its interval in words", "" if f"95 % interval: {least:+.4f} to {most:+.4f} nats, over 3 pairs" in text else cards[0])
    report.check("compare: the title says which runs", "" if f"<h1>Training runs: “{VARIANT}” against “base”</h1>" in text else "another title")
    figures = figures_of(work / "c.html")
    curves = {name: [[json.loads(line) for line in (work / "sweep" / f"{name}-seed{seed}" / "metrics.jsonl").read_text().splitlines()] for seed in range(3)]
              for name in ("base", VARIANT)}
    for title, key in (("Validation loss, by step", "validation"), ("Training loss, by step", "loss")):
        for series in figures[title]["series"]:
            problem = ""
            for i, step in enumerate(series["x"]):
                values = [line[key] for run in curves[series["name"]] for line in run if line["step"] == step and key in line]
                wanted = [statistics.mean(values), statistics.stdev(values)]
                if len(values) != 3 or not all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip([series["y"][i], series["spread"][i]], wanted)):
                    problem = f"step {step}: {series['y'][i]} ± {series['spread'][i]}, by hand {wanted}"
            report.check(f"compare: {title}, {series['name']}", problem or expect(len(series["x"]), 5 if key == "validation" else 24))
    drawn = figures["Difference of the validation loss, by step"]["series"]
    report.check("compare: the last difference", expect([set(drawn[0]["y"]), math.isclose(drawn[1]["y"][-1], difference["mean"])], [{0}, True]))
    pairs = [b - a for a, b in zip(rows[0]["losses"], rows[1]["losses"])]
    half = 4.3026527297 * statistics.stdev(pairs) / math.sqrt(3)  # Student's t, two degrees
    wanted = [statistics.mean(pairs), statistics.mean(pairs) - half, statistics.mean(pairs) + half, half]
    found = [difference["mean"], *difference["interval"], drawn[1]["spread"][-1]]
    report.check("compare: the interval", "" if all(math.isclose(a, b, rel_tol=1e-8) for a, b in zip(found, wanted)) else f"{found}, by hand {wanted}")
    report.check("compare: a page that is there stays", ended(pare("compare", *runs, "-o", "c.html", cwd=work), 1, ["c.html"]))


def check_interrupted(report, work):
    """Ctrl-C keeps what was measured: the page is there, and says that it is partial."""
    big = {"width": 96, "vocab": 64, "context": 128, "blocks": [{"repeat": 6, "attention": {"heads": 8, "head_width": 12}, "mlp": {"width": 64, "activation": "gelu"}}]}
    (work / "big.json").write_text(json.dumps(big))
    pare("init", "big.json", "-o", "big", cwd=work)
    process = subprocess.Popen([PARE, "probe", "big", "--random", "100000", "--length", "64", "-o", "partial.html"], cwd=work,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = ""
    while "probing" not in said or not re.search(r"[1-9]\d* of", said):
        line = process.stderr.readline()
        if not line:
            break
        said += line
    process.send_signal(signal.SIGINT)
    process.communicate()
    page = work / "partial.html"
    report.check("probe, interrupted: exit code", expect(process.returncode, 130))
    report.check("probe, interrupted: a page that says so", "" if page.exists() and "<strong>Partial.</strong>" in page.read_text() else f"{page.exists()}: {said[-300:]}")


def check_replacing(report, work):
    page = work / "a.html"
    before = page.read_bytes()
    report.check("a page that is there stays", ended(pare("audit", "model", "--report", "a.html", cwd=work), 1, ["a.html"]))
    report.check("untouched", expect(page.read_bytes() == before, True))
    report.check("--force replaces it", ended(pare("audit", "gpt2", "--report", "a.html", "--force", cwd=work)))
    report.check("by the new one", "" if "gpt2" in page.read_text() else "the old one")
    (work / "mine.html").write_text("<!doctype html><title>thesis</title>")
    report.check("--force replaces no other file", ended(pare("audit", "gpt2", "--report", "mine.html", "--force", cwd=work), 1, ["no report of pare"]))
    report.check("which stays", expect((work / "mine.html").read_text(), "<!doctype html><title>thesis</title>"))
    report.check("no such folder", ended(pare("audit", "gpt2", "--report", "nowhere/a.html", cwd=work), 1, ["nowhere"]))
    report.check("no leftovers", expect([f.name for f in work.iterdir() if f.name.startswith(".")], []))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    for name in ("one", "two"):
        pare("audit", "gpt2", "--report", f"{name}.html", cwd=work, env=environment)
    pages = [(work / f"{name}.html").read_text().replace(f"{name}.html", "") for name in ("one", "two")]
    report.check("the same bytes at the same time", expect([pages[0] == pages[1], "2023-11-14 22:13 UTC" in pages[0]], [True, True]))


def check_pages(report, work, program):
    (work / "model").rename(work / HOSTILE)
    report.check("a model of any name", ended(pare("probe", HOSTILE, "--random", "4", "-o", "h.html", cwd=work)))
    report.check("its speed", ended(pare("bench", HOSTILE, HOSTILE, "--rounds", "3", "--tokens", "2", "--prompt", "4", "--train", "--report", "b.html", cwd=work)))
    with Browser(program) as browser:
        check_sorting(report, work, browser)
        for name in ("a", "b", "preset", "tables", "t", "v", "d", "e", "p", "nothing", "c", "h", "partial"):
            if not (work / f"{name}.html").exists():
                report.check(f"{name}.html", "was not written")
                continue
            for dark, width in ((False, 1200), (True, 400)) if name in ("v", "p", "c") else ((True, 400),):
                page = browser.open(work / f"{name}.html", dark=dark, width=width)
                when = f"{name}.html, {'dark' if dark else 'light'}, {width} pixels"
                report.check(f"{when}: no complaint", "; ".join(page.problems()))
                report.check(f"{when}: no name runs", expect(page.evaluate("[window.hacked === undefined, document.images.length]"), [True, 0]))
                report.check(f"{when}: nothing to scroll sideways", expect(page.evaluate("document.documentElement.scrollWidth"), width))
                empty = page.evaluate("""[...document.querySelectorAll('figure')].filter(f => f.querySelector('.plot') &&
                  !f.querySelector('path.js-line, path.point, .barlayer path, .heatmaplayer image')).map(f => f.querySelector('h3').textContent)""")
                if width == 1200:
                    report.check(f"{when}: narrow and wide again", expect(*reversed((sizes(page), turned(page)))))
                report.check(f"{when}: no plot of one number", expect(page.evaluate(CONSTANT), []))
                report.check(f"{when}: every scale of colours has numbers", expect([n for n in page.evaluate(COLOUR_TICKS) if n < 2], []))
                report.check(f"{when}: every plot has marks", expect([title for title in empty if has_data(work / f"{name}.html", title)], []))
                page.close()


# Titles of figures that are drawn though all their numbers are the same, without a spread.
CONSTANT = """[...document.querySelectorAll('figure')].filter(f => f.querySelector('.plot')).filter(f => {
  const data = JSON.parse(f.querySelector('script').textContent);
  const values = (data.panels ? data.panels.flatMap(p => p.values.flat()) : data.series.flatMap(s => s.y)).filter(v => v !== null);
  return values.length && values.every(v => v === values[0]) && !(data.series || []).some(s => (s.spread || []).some(v => v));
}).map(f => f.querySelector('h3').textContent)"""
COLOUR_TICKS = "[...document.querySelectorAll('.plot .cbaxis')].map(a => a.querySelectorAll('text').length)"
SIZES = """[...document.querySelectorAll('.plot .heatmaplayer image, .plot .cartesianlayer .bg')].map(m => Math.round(m.getBoundingClientRect().width))
  .concat(document.querySelectorAll('.plot .cbaxis').length)"""


def sizes(page):
    """How wide the figures are drawn, and how many scales of colours there are."""
    return page.evaluate(SIZES)


def turned(page):
    """The same after the page was as narrow as a phone for a while."""
    page.resize(400)
    page.settle()
    page.resize(1200)
    page.settle()
    return sizes(page)


def has_data(page, title):
    """Whether there is a number to draw: on a logarithmic axis zeros are not."""
    data = figures_of(page)[title]
    axis = data["value"] if "panels" in data else data["y"]
    values = [v for p in data["panels"] for row in p["values"] for v in row] if "panels" in data else [v for s in data["series"] for v in s["y"]]
    return any(v is not None and (v > 0 or not axis["log"]) for v in values)


def main():
    report = Report("report commands")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        report.check("models", make_models(work))
        check_audit(report, work)
        check_presets(report, work)
        check_verify(report, work)
        check_probe(report, work)
        check_compare(report, work)
        check_interrupted(report, work)
        check_replacing(report, work)
        program = find_chromium()
        if program:
            check_pages(report, work, program)
        else:
            report.skip("pages in a browser", "no Chromium: apt-get install chromium, or make test as root, which does")
    report.finish()


if __name__ == "__main__":
    main()
