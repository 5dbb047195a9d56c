#!/usr/bin/env python3
"""verify, probe, run and reproduce as several ranks: the same document as one process prints, said and written once."""

import json
import pathlib
import signal
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cli")]
from ranks import Ranks
from report import PARE, Report, ended, expect, pare

LAYER = {"kind": "layer", "bias": True}
BLOCK = {"attention": {"heads": 4, "head_width": 8, "norm": LAYER, "bias": {"query": True, "key": True, "value": True}},
         "mlp": {"width": 48, "activation": "gelu", "norm": LAYER}}
MODEL = {"width": 32, "vocab": 200, "context": 64, "embedding": {"position": "learned"}, "blocks": [{**BLOCK, "repeat": 2}],
         "final_norm": {"kind": "rms"}, "head": {"tied": True}}
RANKS = (2, 3)


def alone(*arguments, cwd):
    """As one process with the threads that a rank has: linear algebra rounds in another order where there are more."""
    return pare(*arguments, "--threads", "1", cwd=cwd)


def as_ranks(report, case, size, *arguments, cwd, code=0):
    """The one document, and what the first rank said besides."""
    codes, out, err = Ranks(size, *arguments, cwd=cwd).ends()
    report.check(f"{case}: {size} ranks end alike", expect(codes, [code] * size) and f"{codes}: {err}")
    report.check(f"{case}: one of {size} speaks", expect([text == "" for text in out + err[1:]], [False] + [True] * (2 * size - 2)) and f"{out} {err}")
    return out[0], err[0]


def difference(found, wanted, tolerance, path=""):
    """Where two documents differ by more than that share of a number; exactly, where it is 0."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        if list(found) != list(wanted):
            return f"{path}: {list(found)} instead of {list(wanted)}"
        pairs = [(f"{path}.{key}", found[key], wanted[key]) for key in wanted]
    elif isinstance(wanted, list) and isinstance(found, list):
        if len(found) != len(wanted):
            return f"{path}: {len(found)} instead of {len(wanted)}"
        pairs = [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(found, wanted))]
    else:
        numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (found, wanted))
        same = found == wanted or numbers and abs(found - wanted) <= tolerance * max(abs(found), abs(wanted))
        return "" if same else f"{path}: {found!r} instead of {wanted!r}"
    return next((problem for problem in (difference(a, b, tolerance, place) for place, a, b in pairs) if problem), "")


def same_document(report, case, *arguments, cwd, code=0, tolerance=1e-12, sizes=RANKS, but=()):
    def read(text):
        try:
            document = json.loads(text)
        except ValueError:
            return text
        return {key: value for key, value in document.items() if key not in but}
    result = alone(*arguments, "--json", "--quiet", cwd=cwd)
    report.check(f"{case}: one process", ended(result, code))
    for size in sizes:
        out, _ = as_ranks(report, case, size, *arguments, "--json", "--quiet", cwd=cwd, code=code)
        report.check(f"{case}: the document of {size} ranks", difference(read(out), read(result.stdout), tolerance))


def prepare(work):
    (work / "model.json").write_text(json.dumps(MODEL))
    for name, seed in [("model", 1), ("other", 2)]:
        pare("init", "model.json", "-o", name, "--seed", seed, cwd=work)
    pare("rewrite", "model", "-o", "smaller", "--passes", "fold_norm_gain,drop_key_bias", cwd=work)
    (work / "tokens.json").write_text(json.dumps([[(7 * i + 3 * j * j) % 200 for j in range(5 + i % 3 * 20)] for i in range(60)]))


def check_verify(report, work):
    same_document(report, "verify", "verify", "model", "smaller", cwd=work)
    same_document(report, "verify of tokens", "verify", "model", "smaller", "--tokens", "tokens.json", cwd=work)
    same_document(report, "verify of fewer sequences than ranks", "verify", "model", "smaller", "--random", "1", cwd=work, sizes=[3])
    same_document(report, "verify in float32", "verify", "model", "smaller", "--dtype", "float32", "--random", "20", cwd=work)
    same_document(report, "verify of another model", "verify", "model", "other", cwd=work, code=3)
    (work / "note.md").unlink(missing_ok=True)
    _, err = as_ranks(report, "verify with files", 2, "verify", "model", "smaller", "--report", "v.html", "--summary", "note.md", cwd=work)
    report.check("verify with files: written once", expect([(work / "v.html").exists(), (work / "note.md").exists(), err.count("wrote")], [True, True, 1]) and err)


def check_probe(report, work):
    same_document(report, "probe", "probe", "model", "--random", "70", cwd=work)
    same_document(report, "probe of one batch", "probe", "model", "--random", "3", cwd=work)
    same_document(report, "probe of unequal sequences", "probe", "model", "--tokens", "tokens.json", "--without", "residuals", cwd=work)
    _, err = as_ranks(report, "probe with a report", 2, "probe", "model", "--report", "p.html", cwd=work)
    report.check("probe with a report: written once", expect([(work / "p.html").exists(), err.count("wrote")], [True, 1]) and err)


def check_run(report, work):
    """The tensors are the same bytes, whichever rank computed them."""
    for case, more in [("run", ["--taps", "residual.1,blocks.0.attention.probabilities"]), ("run in float32", ["--dtype", "float32"])]:
        arguments = ["run", "model", "--tokens", "tokens.json", *more, "-o", "out.safetensors", "--force"]
        alone(*arguments, cwd=work)
        wanted = (work / "out.safetensors").read_bytes()
        for size in RANKS:
            (work / "out.safetensors").unlink()
            as_ranks(report, case, size, *arguments, cwd=work)
            report.check(f"{case}: the file of {size} ranks", expect((work / "out.safetensors").read_bytes() == wanted, True))
        same_document(report, case, *arguments, cwd=work)
    codes, out, err = Ranks(2, *arguments[:-1], cwd=work).ends()  # without --force
    report.check("run: a file that is there", expect([codes, "exists already" in err[0], err[1]], [[1, 1], True, ""]) and f"{codes} {err}")


def kept(folder):
    """What was trained, but for the time."""
    runs = json.loads((folder / "runs.json").read_text())["runs"]
    return [{key: value for key, value in run.items() if key != "seconds"} for run in runs]


def check_reproduce(report, work):
    """Some runs of this claim begin with others, and each is what one process trains, to the bit."""
    (work / "experiment1").mkdir()
    report.check("reproduce: one process", ended(alone("reproduce", "norm-removal", "-o", "experiment1", "--quiet", cwd=work)))
    for size in RANKS:
        folder = work / f"experiment{size}"
        out, err = as_ranks(report, "reproduce", size, "reproduce", "norm-removal", "-o", folder.name, "--json", cwd=work)
        report.check(f"reproduce: the runs of {size} ranks", difference(kept(folder), kept(work / "experiment1"), 0))
        report.check(f"reproduce: what is left by {size} ranks", expect(sorted(path.name for path in folder.iterdir()), sorted(path.name for path in (work / "experiment1").iterdir())))
        report.check(f"reproduce: written once by {size} ranks", expect(err.count("wrote experiment"), 1) and err)
        report.check(f"reproduce: judged alike by {size} ranks", expect(*[json.loads(text)["verdict"] for text in (out, (work / "experiment1/results.json").read_text())]))


def check_interrupt(report, work):
    """One signal is enough, and what was trained until then is kept."""
    ranks = Ranks(2, "reproduce", "norm-removal", "-o", "stopped", "--json", cwd=work)
    while ranks.processes[0].poll() is None and not (work / "stopped/runs.json").exists():
        time.sleep(0.01)
    ranks.processes[1].send_signal(signal.SIGINT)
    codes, out, err = ranks.ends()
    report.check("Ctrl-C in reproduce: all stop", expect(codes, [130, 130]) and f"{codes} {err}")
    report.check("Ctrl-C in reproduce: said once", expect(["interrupted" in out[0], out[1]], [True, ""]) and str(out))
    as_ranks(report, "reproduce goes on", 2, "reproduce", "norm-removal", "-o", "stopped", cwd=work)
    ranks = Ranks(2, "probe", "model", "--random", "4000", "--json", cwd=work)
    time.sleep(2)
    ranks.processes[1].send_signal(signal.SIGINT)
    codes, out, err = ranks.ends()
    document = json.loads(out[0])
    report.check("Ctrl-C in probe: all stop", expect([codes, document["error"]["kind"], out[1]], [[130, 130], "interrupted", ""]) and f"{codes} {err}")


def check_refused(report, work):
    """What is wrong is said once, and all have its exit code."""
    cases = {
        "no model": (["verify", "model", "nowhere"], 1, "nowhere"),
        "a flag": (["probe", "model", "--length", "900"], 1, "context of 64"),
        "no tap": (["run", "model", "--tokens", "tokens.json", "--taps", "nothing", "-o", "none.safetensors"], 1, "matches no intermediate"),
        "another command": (["audit", "model"], 1, "pare audit is the work of one process, and torchrun started 2"),
        "one that writes": (["export", "model", "--to", "hf", "-o", "exported"], 1, "run it without the launcher"),
        "a claim without runs": (["reproduce", "linear-recovery"], 1, "no runs of training"),
    }
    for case, (arguments, code, words) in cases.items():
        codes, out, err = Ranks(2, *arguments, cwd=work).ends()
        said = " ".join(err[0].split())
        report.check(f"refused, {case}", expect([codes, words in said, err[1], out], [[code] * 2, True, "", ["", ""]]) and f"{codes} {err} {out}")
    report.check("refused: nothing is left", expect([(work / name).exists() for name in ("none.safetensors", "exported")], [False, False]))
    codes, out, err = Ranks(2, "verify", "model", "nowhere", "--json", cwd=work).ends()
    report.check("refused, with --json: one document", expect([codes, "error" in json.loads(out[0]), out[1]], [[1, 1], True, ""]) and f"{codes} {out}")


def main():
    report = Report("ranks_measuring")
    if "has no process groups" in pare("train", "--help").stdout:
        report.skip("all", "the libtorch at hand has no process groups")
        report.finish()
    parts = {"verify": check_verify, "probe": check_probe, "run": check_run, "reproduce": check_reproduce, "interrupt": check_interrupt, "refused": check_refused}
    chosen = [name for name in sys.argv[1:] if name in parts] or list(parts)
    with tempfile.TemporaryDirectory() as folder:
        prepare(pathlib.Path(folder))
        for name in chosen:
            parts[name](report, pathlib.Path(folder))
    report.finish()


if __name__ == "__main__":
    main()
