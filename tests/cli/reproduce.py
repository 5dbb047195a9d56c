#!/usr/bin/env python3
"""pare reproduce: the list, a claim, its folder, and wrong use of each."""

import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
from report import Report, pare


def expect(found, wanted):
    return "" if found == wanted else f"found {found!r}, expected {wanted!r}"


def check_list(report):
    listed = json.loads(pare("reproduce", "--list", "--json").stdout)["claims"]
    text = pare("reproduce", "--list").stdout
    report.check("every claim is in the list", expect([c["claim"] for c in listed if c["claim"] not in text], []))
    report.check("papers 0 to 4", expect(sorted({c["paper"][0] for c in listed}), list("01234")))
    report.check("the page is the list", expect(pare("reproduce", "--list", "--markdown").stdout, (ROOT / "experiments" / "README.md").read_text()))
    report.check("80 columns", expect([line for line in text.splitlines() if len(line) > 80], []))


def check_claim(report, work):
    result = pare("reproduce", "pgop-overhead")
    report.check("a claim", expect([result.returncode, "3.13 %" in result.stdout, "verdict" in result.stdout], [0, True, True]))
    again = [pare("reproduce", "linear-recovery", "--json").stdout for _ in range(2)]
    report.check("the same seed, the same numbers", expect(again[0], again[1]))
    other = pare("reproduce", "linear-recovery", "--json", "--seed", "5").stdout
    report.check("another seed, others", expect(other == again[0], False))
    report.check("a folder", expect(pare("reproduce", "pgop-overhead", "-o", "out", cwd=work).returncode, 0))
    report.check("what is in it", expect(sorted(p.name for p in (work / "out").iterdir()), ["README.md", "report.html", "results.json"]))
    report.check("not twice", expect(pare("reproduce", "pgop-overhead", "-o", "out", cwd=work).returncode, 1))
    report.check("but with --force", expect(pare("reproduce", "pgop-overhead", "-o", "out", "--force", cwd=work).returncode, 0))
    (work / "out" / "mine.txt").write_text("mine")
    result = pare("reproduce", "pgop-overhead", "-o", "out", "--force", cwd=work)
    report.check("never what is not its own", expect([result.returncode, "mine.txt" in result.stderr, (work / "out" / "mine.txt").exists()], [1, True, True]))


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
                            (["reproduce", "pgop-overhead", "--model", "x"], "--model")):
        result = pare(*arguments)
        report.check(" ".join(arguments), expect([result.returncode, word in result.stderr], [1, True]))


def main():
    report = Report("reproduce")
    with tempfile.TemporaryDirectory() as folder:
        check_list(report)
        check_claim(report, pathlib.Path(folder))
        check_foreign_folder(report, pathlib.Path(folder))
        check_wrong_use(report)
    report.finish()


if __name__ == "__main__":
    main()
