#!/usr/bin/env python3
"""tools/docs.py sees a page that no longer holds, and no other; --update writes what is printed now, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import PARE, ROOT, Report, expect

FENCE = "```"


def page(*blocks):
    return "# A page\n\n" + "\n".join(blocks) + "\n"


def console(text, comment=""):
    return (f"<!-- docs: {comment} -->\n" if comment else "") + f"{FENCE}console\n{text}\n{FENCE}\n"


def run(name, *flags):
    return subprocess.run([sys.executable, str(ROOT / "tools" / "docs.py"), str(PARE), *flags, name], capture_output=True, text=True)


# case, the page, what is said of it: "" where it holds
CASES = [
    ("text as it is", page(console("$ echo two words\ntwo words")), ""),
    ("another word", page(console("$ echo two words\ntwo worlds")), "expected\n    two worlds\n  found\n    two words"),
    ("a line more", page(console("$ printf 'a\\nb\\n'\na")), "expected 1 lines, found 2"),
    ("wider gaps", page(console("$ printf 'a  1\\n----\\n'\na     1\n-------")), ""),
    ("lines left out", page(console("$ seq 9\n1\n...\n5\n6\n...\n9")), ""),
    ("lines left out at the end", page(console("$ seq 9\n1\n...")), ""),
    ("a line that is nowhere", page(console("$ seq 9\n1\n...\n11\n...\n9")), "expected\n    11"),
    ("a last line that is not the last", page(console("$ seq 9\n1\n...\n8")), "expected\n    8"),
    ("an integer is exact", page(console("$ echo 1,001\n1,002", "numbers=1% errors=4x")), "1,002"),
    ("a decimal is exact", page(console("$ echo 1.001\n1.002")), "1.002"),
    ("a decimal within 1 %", page(console("$ echo 1.001\n1.002", "numbers=1%")), ""),
    ("a decimal beyond 1 %", page(console("$ echo 1.001\n1.02", "numbers=1%")), "1.02"),
    ("an error is exact", page(console("$ echo 1.1e-07\n1.2e-07")), "1.2e-07"),
    ("an error within a factor of 4", page(console("$ echo 1.1e-07\n4.0e-07", "errors=4x")), ""),
    ("an error beyond it", page(console("$ echo 1.1e-07\n1.1e-06", "errors=4x")), "1.1e-06"),
    ("an error of the other sign", page(console("$ echo -- -1.1e-07\n-- 1.1e-07", "errors=4x")), "1.1e-07"),
    ("seconds", page(console("$ echo in 3 s, 3 steps\nin 12 s, 3 steps", "varies=times")), ""),
    ("seconds that are not marked", page(console("$ echo in 3 s\nin 12 s")), "in 12 s"),
    ("steps are no seconds", page(console("$ echo in 3 s, 3 steps\nin 3 s, 4 steps", "varies=times")), "4 steps"),
    ("a seed", page(console("$ echo seed 17\nseed 18", "varies=seeds")), ""),
    ("an exit code", page(console("$ exit 3\n(exit code 3)")), ""),
    ("an exit code that is not shown", page(console("$ exit 3")), "(exit code 3)"),
    ("blocks share a folder", page(console("$ echo 1 > a"), console("$ cat a\n1")), ""),
    ("a file", page(f"<!-- docs: file=a.json -->\n{FENCE}json\n{{}}\n{FENCE}\n", console("$ cat a.json\n{}")), ""),
    ("the program is this build's", page(console("$ command -v pare\n" + str(PARE))), ""),
    ("a block without a language", page(f"{FENCE}\n$ echo 1\n{FENCE}\n"), "a block is one of"),
    ("output without its command", page(console("1")), "begins with a command"),
    ("made lines", page("<!-- docs: made by seq 2 -->\n1\n2\n<!-- docs: end -->"), ""),
    ("made lines that no longer hold", page("<!-- docs: made by seq 2 -->\n1\n3\n<!-- docs: end -->"), "expected\n    3"),
    ("a comment of another block", page(console("$ echo 1.0\n1.0", "numbers=9%"), "text\n", console("$ echo 1.0\n1.01")), "1.01"),
    ("slow blocks do not run", page(console("$ echo 1\n2", "slow=abc1234")), ""),
    ("a command that is not there", page("Then `pare rewite MODEL -o OUT`."), "no command 'rewite'"),
    ("a flag that is not there", page("Then `pare rewrite MODEL -o OUT --pases auto`."), "rewrite has no flag --pases"),
    ("a flag that is there", page("Then `pare rewrite MODEL -o OUT --passes auto --json`."), ""),
]


def updates(report, work):
    cases = [
        ("a number", console("$ echo 1.5\n1.4"), console("$ echo 1.5\n1.5")),
        ("one within its tolerance stays", console("$ echo 1.001\n1.002", "numbers=1%"), console("$ echo 1.001\n1.002", "numbers=1%")),
        ("lines left out stay out", console("$ printf 'a 1\\nb 2\\nc 3\\nd 4\\n'\na 1\n...\nc 9\n..."), console("$ printf 'a 1\\nb 2\\nc 3\\nd 4\\n'\na 1\n...\nc 3\n...")),
        ("new lines", console("$ seq 3\n1"), console("$ seq 3\n1\n2\n3")),
        ("made lines", "<!-- docs: made by seq 2 -->\n5\n<!-- docs: end -->", "<!-- docs: made by seq 2 -->\n1\n2\n<!-- docs: end -->"),
    ]
    for case, before, after in cases:
        path = work / "update.md"
        path.write_text(page(before, "Text with 1.4 stays."))
        run(path, "--update")
        report.check(f"update: {case}", expect(path.read_text(), page(after, "Text with 1.4 stays.")))
        report.check(f"update: {case}: holds afterwards", "" if run(path).returncode == 0 else run(path).stdout)


def main():
    report = Report("drift")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for case, text, said in CASES:
            path = work / "page.md"
            path.write_text(text)
            result = run(path)
            found = result.stdout + result.stderr
            report.check(case, expect(result.returncode, 1 if said else 0) or ("" if said in found else found))
        slow = work / "slow.md"
        slow.write_text(page(console("$ echo 1\n2", "slow=abc1234") + "*Printed by commit abc1234.*", "More."))
        report.check("slow blocks run with --slow", "" if "echo 1" in run(slow, "--slow").stdout else "nothing said")
        run(slow, "--slow", "--update")
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        report.check("slow blocks name their commit", expect(slow.read_text(), page(console("$ echo 1\n1", f"slow={commit}") + f"*Printed by commit {commit}.*", "More.")))
        updates(report, work)
    report.finish()


if __name__ == "__main__":
    main()
