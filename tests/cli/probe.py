#!/usr/bin/env python3
"""`pare probe`: its tables, what it refuses, what it says of odd sequences, Ctrl-C, and what it holds in memory."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import PARE, SHARED, Report, ended, expect, interrupted_at, pare

NORM = {"kind": "layer", "bias": True}
DECODER = {
    "width": 16, "vocab": 40, "context": 32, "embedding": {"position": "learned"}, "final_norm": NORM,
    "blocks": [{"repeat": 3, "attention": {"heads": 4, "head_width": 4, "norm": NORM},
                "mlp": {"width": 40, "activation": "gelu", "norm": NORM}}],
}
IMAGES = {
    "task": "classifier", "width": 12, "context": 17, "embedding": {"class_token": True, "patch": {"size": 2, "image": 8, "channels": 1}},
    "blocks": [{"attention": {"heads": 2, "head_width": 6, "mask": "full"}}], "head": {"classes": 3},
}
BARE = {"width": 12, "vocab": 40, "context": 32, "blocks": [
    {"attention": {"heads": 3, "head_width": 4, "skip": False, "alibi": {"scaled": True}}, "mlp": {"width": 9, "activation": "gelu", "skip": False}}]}

ONE_HEAD = {"width": 12, "vocab": 40, "context": 32, "blocks": [{"repeat": 2, "attention": {"heads": 1, "head_width": 4}}]}
DEEP = {"width": 64, "vocab": 40, "context": 512, "blocks": [{"repeat": 64, "attention": {"heads": 4, "head_width": 16}}]}

REFUSED = [  # arguments, words of the message
    (["model", "--tokens", "ids.json", "--random", "3"], ["--tokens", "--random", "not several"]),
    (["model", "--tokens", "ids.json", "--length", "3"], ["--length", "--random"]),
    (["model", "--length", "33"], ["33 tokens", "context of 32"]),
    (["model", "--tokens", "empty.json"], ["empty.json"]),
    (["model", "--tokens", "none.json"], ["none.json", "an empty list"]),
    (["model", "--tokens", "hole.json"], ["sequence 1 is empty"]),
    (["model", "--tokens", "large.json"], ["token id 40", "vocabulary of 40"]),
    (["model", "--tokens", "half.json"], ["sequence 0, position 1: found 6.5, expected a token id: a whole number below 40"]),
    (["model", "-o", ""], ["--report is empty"]),
    (["model", "--text", ""], ["--text is empty"]),
    (["model", "-o", "model"], ["'model' is a folder, expected a file", "model/NAME"]),
    (["one_head", "--permute-heads"], ["every block has one head"]),
    (["model", "--threshold", "0"], ["--threshold", "above 0"]),
    (["model", "--threshold", "1.5"], ["--threshold", "at most 1", "'1.5'"]),
    (["model", "--zero-gains", "2"], ["--zero-gains", "at most 1"]),
    (["model", "--gauge", "-1"], ["--gauge", "at least 0"]),
    (["model", "--without", "attention"], ["--without", "attention-residual"]),
    (["model", "--withot", "residuals"], ["--withot", "did you mean --without"]),
    (["images", "--tokens", "ids.json"], ["reads images"]),
    (["images", "--length", "4"], ["reads images"]),
    (["bare", "--without", "residuals", "--zero-gains", "0.5", "--permute-heads"],
     ["4 problems", "no block has a skip around its attention", "no block has a skip around its MLP", "no norms", "ALiBi"]),
    (["gpt2"], ["gpt2"]),
]


def document(*arguments, cwd):
    return json.loads(pare("probe", *arguments, "--json", "--quiet", cwd=cwd).stdout)


def make(work):
    for name, architecture in (("model", DECODER), ("images", IMAGES), ("bare", BARE), ("one_head", ONE_HEAD), ("deep", DEEP)):
        (work / f"{name}.json").write_text(json.dumps(architecture))
        made = pare("init", f"{name}.json", "-o", name, "--generic", cwd=work)
        assert made.returncode == 0, made.stderr
    for name, text in (("ids", "[[1, 2, 3, 4, 5, 6, 7], [4, 5]]"), ("empty", ""), ("none", "[]"), ("hole", "[[1, 2], []]"), ("large", "[[40]]"), ("half", "[[1, 6.5]]"),
                       ("one", "[[7]]"), ("same", "[[7, 7, 7, 7, 7, 7]]")):
        (work / f"{name}.json").write_text(text)


def check_tables(report, work):
    plain = pare("probe", "model", "--random", "5", "--heads", "--gauge", "2", cwd=work)
    report.check("all tables", ended(plain, 0, ["Collapses", "rank in depth", "head channels  structural", "end normed", "H4", "2.attention.norm",
                                                "(H-1)k", "2.3 ", "changed: heads in another basis"]))
    for arguments in (["--heads"], [], ["--without", "residuals"]):
        lines = pare("probe", "model", *arguments, cwd=work).stdout.splitlines()
        wide = [line for line in lines[1:] if len(line) > 80]  # the first is the path
        report.check(f"80 columns {arguments}", f"{wide[:2]}" if wide else "")
    narrow = pare("probe", "model", cwd=work, env={**os.environ, "COLUMNS": "50"}).stdout.splitlines()
    wide = [line for line in narrow[1:] if len(line) > 50]
    report.check("a terminal of 50 columns", f"{wide[:2]}" if wide else "")


def check_odd(report, work):
    one = document("model", "--tokens", "one.json", cwd=work)
    head = one["layers"][0]["heads"][0]
    report.check("one token", expect((one["tokens"], head["gap"]["mean"], head["gap"]["reason"], head["gap_by_context"], one["points"][0]["rank"]["std"]),
                                     (1, None, "one token sees only itself", [], None)))
    verdicts = [finding["verdict"] for finding in one["collapses"]]
    report.check("one token decides nothing", expect(verdicts, ["undetermined", "undetermined", "structural", "undetermined"]))
    images = document("images", "--random", "3", cwd=work)
    report.check("images", expect((images["sequences"], images["longest"], images["layers"][0]["heads"][0]["gap_by_context"]), (3, 17, [])))
    again = [pare("probe", "model", "--json", "--seed", seed, cwd=work).stdout for seed in (3, 3, 4)]
    report.check("the same seed, the same numbers", "" if again[0] == again[1] != again[2] else "it was not so")
    threads = [document("model", "--random", "9", "--threads", n, cwd=work)["points"][-1]["effective_rank"]["mean"] for n in (1, 2)]
    report.check("any number of threads", "" if abs(threads[0] - threads[1]) < 1e-9 else f"{threads}")
    same = pare("probe", "bare", "--tokens", "same.json", cwd=work)
    report.check("identical tokens decide nothing", ended(same, 0, ["rank in depth  undetermined", "rank in width  undetermined", "one direction before", "1 sequence of 6 tokens"]))
    beyond = pare("probe", "model", "--gauge", "60", cwd=work)
    report.check("a gauge beyond float64", ended(beyond, 0, ["exp(60) = 1e+26", "cannot be undone in float64", "--gauge below 36"]))
    report.check("a gauge within", ended(pare("probe", "model", "--gauge", "30", cwd=work), 0, without=["cannot be undone"]))
    page = pare("probe", "model", "-o", "page.html", cwd=work)
    report.check("says what it wrote", ended(page, 0, ["wrote page.html"]))
    report.check("unless asked to be quiet", ended(pare("probe", "model", "-o", "page.html", "--force", "--quiet", cwd=work), 0, without=["wrote"]))
    zeroed = document("model", "--zero-gains", "1", cwd=work)
    report.check("all gains zero", expect((zeroed["points"][-1]["rank"]["mean"], zeroed["norms"][-1]["H3"]["holds"]), (1, 0)))


def check_interrupt(report, work):
    """Ctrl-C after the first line of progress: the document is whole, marked, and has an error."""
    for flags in (["--json"], []):
        process = subprocess.Popen([str(PARE), "probe", "model", "--random", "200000", *flags], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)
        report.check(f"Ctrl-C {flags}", expect((process.returncode, "probing" in line, "interrupted" in errors), (130, True, True)))
        if flags:
            found = json.loads(out)
            right = found["partial"] and 0 < found["sequences"] < found["asked_sequences"] == 200000 and found["error"]["kind"] == "interrupted"
            report.check("partial results", "" if right else f"{found['partial']}, {found['sequences']} of {found['asked_sequences']}, {found.get('error')}")
            counts = {point["rank"]["count"] for point in found["points"]} | {head["entropy"]["count"] for layer in found["layers"] for head in layer["heads"]}
            report.check("of the same sequences everywhere", expect(counts, {found["sequences"]}))
        else:
            report.check("said first", "" if "PARTIAL, interrupted: 200000 sequences were asked for, these come first" in out else out[:200])


def check_long(report, work):
    """One long sequence: progress within it, and Ctrl-C says that nothing was measured."""
    shown, code, out = interrupted_at("probing", "probe", "deep", "--random", "1", "--length", "512", cwd=work)
    report.check("progress within a sequence", "" if re.search(r"[1-9]%  0 of 1", shown) else shown[-300:])
    report.check("Ctrl-C before the first is finished", expect([code, out, "before the first sequence was finished: nothing was measured" in shown], [130, "", True]))


def check_order(report, work):
    """What an interrupt leaves is the beginning of the file: short sequences at its end do not come first."""
    (work / "mixed.json").write_text(json.dumps([[i % 40 for i in range(30)]] * 4000 + [[1, 2]] * 4000))
    process = subprocess.Popen([str(PARE), "probe", "model", "--tokens", "mixed.json", "--json"], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    found = json.loads(out)
    report.check("in their order", expect((found["partial"], found["shortest"]), (True, 30)))


def peak(work, sequences):
    process = subprocess.Popen([str(PARE), "probe", "model", "--random", str(sequences), "--quiet"], cwd=work, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024


def check_memory(report, work):
    if "asan" in str(PARE):
        report.skip("memory", "the sanitizer keeps what is freed")
        return
    few, many = peak(work, 32), peak(work, 320)
    # Ten times as many sequences of 32 tokens: their activations would be 40 MB.
    report.check("memory does not grow with the corpus", "" if many < few + 12e6 else f"{few / 1e6:.0f} MB, then {many / 1e6:.0f} MB")


def check_rank_in_depth(report, work):
    """A trained model, as it is and without its residual connections: singular values above 1e-3 are as many, tokens are not."""
    model = SHARED / "models" / "stories260K"
    if not model.exists():
        report.skip("stories260K", f"{model} is not there")
        return
    stories = json.loads((model / "tinystories_40_token_ids.json").read_text())
    (work / "stories.json").write_text(json.dumps([story[:64] for story in stories[:6]]))
    for flags, verdict in (([], "none"), (["--without", "residuals"], "partial")):
        found = document(model, "--tokens", "stories.json", *flags, cwd=work)
        depth = found["collapses"][0]
        streams = [point for point in found["points"] if point["kind"] == "stream"]
        least = min(point["effective_rank"]["mean"] for point in streams[1:])
        report.check(f"stories260K {' '.join(flags)}", expect((depth["verdict"], depth["number"] == least or verdict == "none"), (verdict, True)))
        report.check("both numbers are shown", expect("distance to rank one" in depth["worst"] and "effective rank" in depth["worst"], True))
        report.check("the rank alone shows nothing", expect(all(point["rank"]["mean"] > streams[0]["rank"]["mean"] / 2 for point in streams), True))


def main():
    report = Report("probe")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        make(work)
        for arguments, words in REFUSED:
            report.check(" ".join(arguments), ended(pare("probe", *arguments, cwd=work), 1, words))
        check_tables(report, work)
        check_odd(report, work)
        check_interrupt(report, work)
        check_long(report, work)
        check_order(report, work)
        check_memory(report, work)
        check_rank_in_depth(report, work)
    report.finish()


if __name__ == "__main__":
    main()
