#!/usr/bin/env python3
"""pare reproduce: the list, a claim, its folder, and wrong use of each."""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
from report import PARE, Report, ended, expect, interrupted_at, pare


def check_list(report):
    listed = json.loads(pare("reproduce", "--list", "--json").stdout)["claims"]
    text = pare("reproduce", "--list").stdout
    report.check("every claim is in the list", expect([c["claim"] for c in listed if c["claim"] not in text], []))
    report.check("papers 0 to 4", expect(sorted({c["paper"][0] for c in listed}), list("01234")))
    report.check("the page is the list", expect(pare("reproduce", "--list", "--markdown").stdout, (ROOT / "experiments" / "README.md").read_text()))
    commands = {c["claim"]: c["command"] for c in listed}
    report.check("which run", expect(commands["pgop-overhead"], "pare reproduce pgop-overhead --scale small"))
    trained = {c["claim"] for c in listed if c["verdict"] != "undecided" or "--device cuda" not in c["command"]}  # at their scale
    for claim, command in ((c, commands[c]) for c in sorted(trained)):
        page = (ROOT / "experiments" / claim / "README.md").read_text()
        report.check(f"the run of {claim}", "" if f"\n{command}\n" in page else f"{command} is not in its page")
    said = " ".join(text.split())
    report.check("the list says it", "" if "asymmetry-vs-rank *** " in text and " *** pare reproduce CLAIM --scale small --model all-MiniLM-L6-v2 --model rxnmapper_albert" in said else text)
    report.check("what was run in full", "" if "mlp-basis-transfer ** " in text and " ** pare reproduce CLAIM --scale full --device cuda" in said else text)
    bare = pare("reproduce", "asymmetry-vs-rank")
    report.check("what to add", ended(bare, 0, ["undecided", "recorded   holds, by pare reproduce asymmetry-vs-rank --scale small --model"]))
    in_full = pare("reproduce", "attention-only", "--scale", "full", "-o", "somewhere")
    report.check("no full scale", ended(in_full, 1, ["the paper of attention-only trained nothing", "give --scale small"]))
    report.check("80 columns", expect([line for line in text.splitlines() if len(line) > 80], []))


def check_claim(report, work):
    result = pare("reproduce", "pgop-overhead")
    report.check("a claim", expect([result.returncode, "3.13 %" in result.stdout, "verdict" in result.stdout], [0, True, True]))
    again = [pare("reproduce", "linear-recovery", "--json").stdout for _ in range(2)]
    report.check("the same seed, the same numbers", expect(again[0], again[1]))
    other = pare("reproduce", "linear-recovery", "--json", "--seed", "5").stdout
    report.check("another seed, others", expect(other == again[0], False))
    written = pare("reproduce", "pgop-overhead", "-o", "out", cwd=work)
    report.check("a folder", ended(written, 0, ["wrote out: README.md, results.json and report.html"]))
    report.check("what is in it", expect(sorted(p.name for p in (work / "out").iterdir()), ["README.md", "report.html", "results.json"]))
    report.check("not twice", expect(pare("reproduce", "pgop-overhead", "-o", "out", cwd=work).returncode, 1))
    report.check("but with --force", expect(pare("reproduce", "pgop-overhead", "-o", "out", "--force", cwd=work).returncode, 0))
    (work / "out" / "mine.txt").write_text("mine")
    result = pare("reproduce", "pgop-overhead", "-o", "out", "--force", cwd=work)
    report.check("never what is not its own", expect([result.returncode, "mine.txt" in result.stderr, (work / "out" / "mine.txt").exists()], [1, True, True]))


def figures_of(page):
    found = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(), re.S)
    return [json.loads(text) for text in found]


def check_page(report, work):
    """A page says what was run, when, and on which bytes; spreads are bands, and axes say what they measure."""
    model = {"width": 12, "vocab": 23, "context": 32, "blocks": [
        {"repeat": 4, "attention": {"heads": 3, "head_width": 4, "norm": {"kind": "layer"}}, "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "layer"}}}]}
    (work / "arch.json").write_text(json.dumps(model))
    pare("init", "arch.json", "-o", "trained", "--generic", cwd=work)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    result = pare("reproduce", "residual-stability", "--model", "trained", "-o", "ranks", cwd=work, env=environment)
    report.check("with a model", ended(result))
    text = (work / "ranks" / "report.html").read_text()
    digest = hashlib.sha256((work / "trained" / "model.safetensors").read_bytes()).hexdigest()
    report.check("the bytes", "" if digest in text and "trained/model.safetensors" in text else "no hash")
    report.check("when", "" if "2023-11-14 22:13 UTC" in text else "no date")
    report.check("the command", "" if "pare reproduce residual-stability --model trained" in text else "no command")
    figures = figures_of(work / "ranks" / "report.html")
    report.check("bands", expect([[len(s["spread"]) == len(s["y"]) for s in f["series"]] for f in figures], [[True, True]] * 2))
    report.check("their names", expect({s["name"] for f in figures for s in f["series"]}, {"with residual", "without"}))
    report.check("what is measured", expect({f["y"]["words"] for f in figures}, {"rank of the stream"}))
    pare("reproduce", "asymmetry-vs-rank", "--model", "trained", "-o", "heads", cwd=work)
    points = [f for f in figures_of(work / "heads" / "report.html") if f["kind"] == "scatter"]
    report.check("a point for each head", expect([len(f["series"][0]["x"]) for f in points], [48, 12]))
    document = json.loads(pare("probe", "trained", "--random", "2", "--json", cwd=work).stdout)
    wanted = sorted(head["asymmetry"] for layer in document["layers"] for head in layer["heads"])
    report.check("at its asymmetry", "" if all(abs(a - b) < 1e-12 for a, b in zip(sorted(points[1]["series"][0]["x"]), wanted)) else "others")
    named = json.loads(pare("reproduce", "rank-neutrality", "--model", "trained", "--json", cwd=work).stdout)
    report.check("rows name their models", expect(named["tables"][0]["names"][1], "trained (drawn ids), 20 tokens"))
    report.check("the sentence has its numbers", expect([row["measured"] in named["because"] for row in named["compared"]], [True] * 4))


def check_interrupt(report, work):
    """Ctrl-C while the second model is measured: the first is shown, and a folder that is there stays."""
    deep = {"width": 64, "vocab": 23, "context": 32, "blocks": [{"repeat": 96, "attention": {"heads": 4, "head_width": 16}}]}
    (work / "deep.json").write_text(json.dumps(deep))
    pare("init", "deep.json", "-o", "deep", cwd=work)
    arguments = ["reproduce", "asymmetry-vs-rank", "--model", "deep", "--model", "deep", "--model", "deep"]
    _, code, out = interrupted_at("probing deep", *arguments, "-o", "part", cwd=work)
    report.check("what was measured is shown", expect([code, "small random BERT" in out, "undecided: interrupted, with" in out, "of 4 measurements done" in out], [130, True, True, True]))
    found = json.loads((work / "part" / "results.json").read_text()) if (work / "part").exists() else {}
    report.check("and written, marked", expect(found.get("partial"), True))
    before = (work / "part" / "report.html").stat().st_mtime_ns
    _, code, out = interrupted_at("probing deep", *arguments, "-o", "part", "--force", "--json", cwd=work)
    found = json.loads(out)
    report.check("as a document", expect([code, found["verdict"], found["partial"], found["error"]["kind"]], [130, "undecided", True, "interrupted"]))
    report.check("nothing whole is replaced by a part", expect((work / "part" / "report.html").stat().st_mtime_ns, before))


def check_kept_runs(report, work):
    """A folder is continued whatever its first command came to, and says of which runs it cannot be."""
    result = pare("reproduce", "ffn-width", "--scale", "small", "-o", "begun", cwd=work)
    report.check("nothing to train on", expect([result.returncode, json.loads((work / "begun" / "runs.json").read_text())["runs"]], [0, []]))
    report.check("goes on", expect(pare("reproduce", "ffn-width", "--scale", "small", "-o", "begun", cwd=work).returncode, 0))
    kept = json.loads((ROOT / "experiments" / "skipless" / "runs.json").read_text())
    kept["runs"][0]["config"]["steps"] += 1
    (work / "other").mkdir()
    (work / "other" / "runs.json").write_text(json.dumps(kept))
    result = pare("reproduce", "skipless", "--scale", "small", "-o", "other", cwd=work)
    report.check("a run of another configuration", ended(result, 0, ["1 kept run is of another configuration or start"]))
    pictures = sorted(path.name for path in (work / "other").glob("*.svg"))
    report.check("pictures", expect(pictures, ["figure-1.svg", "figure-2.svg"]) or expect(xml.etree.ElementTree.parse(work / "other" / pictures[0]).getroot().tag, "{http://www.w3.org/2000/svg}svg"))
    (work / "wedged" / "runs" / "ffn4-lr0.001-seed0").mkdir(parents=True)
    (work / "wedged" / ".runs.json.partial-1-0").touch()  # what a process that was killed as it began leaves
    result = pare("reproduce", "ffn-width", "-o", "wedged", cwd=work)
    report.check("an unfinished folder", expect(result.returncode, 1) or expect("is not empty and has no runs.json" in result.stderr, True))
    (work / "wedged" / "runs.json").write_text('{"claim": "ffn-width", "scale": "smoke", "runs": []}')
    result = pare("reproduce", "ffn-width", "-o", "wedged", cwd=work)
    report.check("a run that cannot go on", ended(result, 1, ["to begin this run again, remove 'wedged/runs/ffn4-lr0.001-seed0'"]))
    (work / "killed").mkdir()
    (work / "killed" / ".runs.json.partial-1-0").touch()
    report.check("killed as it began", expect(pare("reproduce", "ffn-width", "-o", "killed", "--minutes", "1e-9", cwd=work).returncode, 0))
    some = pare("reproduce", "ffn-width", "-o", "some", "--runs", "ffn4*", cwd=work)
    kept = [run["name"].split("-")[0] for run in json.loads((work / "some/runs.json").read_text())["runs"]]
    report.check("only some runs", ended(some, 0) or expect(set(kept), {"ffn4"}))
    report.check("none of that name", ended(pare("reproduce", "ffn-width", "-o", "none", "--runs", "x*", cwd=work), 1, ["none of the 4 runs is called so: the first is 'ffn4-lr0.001-seed0'"]))
    _, code, out = interrupted_at("ffn2-gate", "reproduce", "ffn-width", "-o", "stopped", cwd=work)
    report.check("Ctrl-C shows the runs that are there", expect([code, "interrupted, with 1 of 4 runs done" in out], [130, True]))
    result = pare("reproduce", "ffn-width", "--scale", "small", "--data", "no-such-folder", "-o", "nodata", cwd=work)
    report.check("no folder of data", ended(result, 1, ["--data 'no-such-folder': there is no such folder"]) or expect((work / "nodata").exists(), False))
    for page in sorted((ROOT / "experiments").glob("*/README.md")):
        named = re.findall(r"\]\((figure-\d+\.svg)\)", page.read_text())
        report.check(f"pictures of {page.parent.name}", expect(named, sorted(path.name for path in page.parent.glob("figure-*.svg"))))


def check_plots(report, work):
    """What is drawn of a table in a page is what the table says."""
    pages = [page for page in sorted((ROOT / "experiments").glob("*/*.md")) if page.with_suffix(".svg").exists()]
    report.check("pages with a plot", expect([page.name for page in pages], ["READINGS.md", "LAW.md"]))
    for page in pages:
        copy = work / page.name
        copy.write_text(page.read_text())
        subprocess.run([sys.executable, ROOT / "tools" / "plot.py", copy], check=True)
        report.check(f"the plot of {page.name}", expect(copy.with_suffix(".svg").read_text(), page.with_suffix(".svg").read_text()))
        report.check(f"{page.name} shows it", "" if f"]({page.with_suffix('.svg').name})" in page.read_text() else "no link")


PRIVATE_WORDS = ["not told", "is told", "who trains", "what is usual", "came to", "of one seed", "says nothing", "too few to tell", "goes exactly", "paper 0"]


def check_words(report):
    """Pages say what they are for and where to go next, in words that a reader from elsewhere knows."""
    for page in sorted((ROOT / "experiments").rglob("*.md")):
        text, name = page.read_text(), page.relative_to(ROOT)
        report.check(f"words of {name}", expect([word for word in PRIVATE_WORDS if word in text.lower()], []))
        report.check(f"{name} says what is next", "" if "\nNext: [" in text or "\n## Next\n" in text else "no line Next")


def check_foreign_folder(report, work):
    """Files of the right names that reproduce did not write stay."""
    (work / "mine").mkdir()
    (work / "mine" / "README.md").write_text("# My project\n")
    result = pare("reproduce", "pgop-overhead", "-o", "mine", "--force", cwd=work)
    report.check("a README of one's own", expect([result.returncode, (work / "mine" / "README.md").read_text()], [1, "# My project\n"]))
    (work / "mine" / "results.json").write_text('{"claim": "pgop-overhead"}')
    result = pare("reproduce", "pgop-overhead", "-o", "mine", "--force", cwd=work)
    report.check("beside results that look right", expect([result.returncode, (work / "mine" / "README.md").read_text()], [1, "# My project\n"]))


def check_wrong_use(report):
    for arguments, word in ((["reproduce"], "--list"), (["reproduce", "linear-recovry"], "linear-recovery"),
                            (["reproduce", "pgop-overhead", "--scale", "huge"], "small"), (["reproduce", "pgop-overhead", "-o", "/no/such/place"], "/no/such"),
                            (["reproduce", "pgop-overhead", "--model", "x"], "--model"), (["reproduce", "rank-neutrality", "--text", "x"], "--model"),
                            (["reproduce", "pgop-overhead", "--markdown"], "give --list too"), (["reproduce", "pgop-overhead", "--force"], "give -o FOLDER too"),
                            (["reproduce", "pgop", "--seed", "3"], "seeds of its plan"), (["reproduce", "pgop", "--minutes", "0"], "a time above 0"),
                            (["reproduce", "--list", "pgop-overhead"], "runs none"), (["reproduce", "--list", "--text", "x"], "--list measures nothing"),
                            (["reproduce", "--list", "--scale", "small"], "--list measures nothing")):
        result = pare(*arguments)
        report.check(" ".join(arguments), expect([result.returncode, word in result.stderr], [1, True]))


def check_script(report, work):
    """tools/claims.py: what it refuses; that Ctrl-C leaves pare the time to save."""
    script = [sys.executable, ROOT / "tools" / "claims.py"]
    (work / "kept").mkdir()
    for arguments, words in (([work / "kept"], "--data FOLDER"), ([work / "kept", "--data", work, "--minutes", "0"], "more than 0"),
                             ([work / "none", "--record"], "is no folder"), ([work / "kept", "no-claim", "--record"], "no claim that trains")):
        result = subprocess.run([*script, *arguments, "--pare", PARE], capture_output=True, text=True)
        report.check(f"claims.py: {words}", ended(result, 2, [words], ["Traceback"]))
    slow = work / "slow.py"  # lists as pare does, and takes a second to save when it is interrupted
    slow.write_text(f"""#!{sys.executable}
import subprocess, sys, time, pathlib
if "--list" in sys.argv:
    sys.exit(subprocess.run([{str(PARE)!r}, *sys.argv[1:]]).returncode)
try:
    print("trains", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    pathlib.Path({str(work / "saved")!r}).touch()
    sys.exit(130)
""")
    slow.chmod(0o755)
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # what a shell starts with & has Ctrl-C ignored
    process = subprocess.Popen([*script, work / "kept", "pgop", "ffn-width", "--data", work, "--pare", slow], stdout=subprocess.PIPE, text=True,
                               start_new_session=True, preexec_fn=heard)
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    report.check("claims.py: Ctrl-C", expect([process.returncode, (work / "saved").exists(), rest], [130, True, ""]))


def main():
    report = Report("reproduce")
    with tempfile.TemporaryDirectory() as folder:
        check_list(report)
        check_claim(report, pathlib.Path(folder))
        check_page(report, pathlib.Path(folder))
        check_interrupt(report, pathlib.Path(folder))
        check_kept_runs(report, pathlib.Path(folder))
        check_plots(report, pathlib.Path(folder))
        check_words(report)
        check_foreign_folder(report, pathlib.Path(folder))
        check_script(report, pathlib.Path(folder))
        check_wrong_use(report)
    report.finish()


if __name__ == "__main__":
    main()
