#!/usr/bin/env python3
"""Runs every command that the pages show, and holds what it prints against the page; --update writes it into the page.

The ```console blocks of a page run in order, in one new folder that they share. A line `$ COMMAND` is a command (it goes on
after a backslash), the lines after it are its output, stderr too; `...` stands for any number of lines, and `(exit code N)`
for how it ended. Text is compared exactly, but for the width of gaps. A comment above a block says what else may differ:

    <!-- docs: errors=4x -->             numbers such as 1.9e-07, which rounding decides, within a factor of 4
    <!-- docs: numbers=1% -->            numbers with a decimal point, within 1 %
    <!-- docs: varies=times,seeds -->    what the machine decides: seconds, and the number after `seed`
    <!-- docs: varies=speeds -->         every number with a decimal point or a comma
    <!-- docs: needs=models/NAME -->     is linked into the folder from ../shared or $PARE_SHARED; skipped where it is absent
    <!-- docs: needs=python:NAME -->     a module that `python3` has to have, which is the one that tests use; skipped where it has not
    <!-- docs: slow=COMMIT -->           runs with --slow alone; the page names the commit that printed it
    <!-- docs: file=NAME -->             the block is a file of that name

`<!-- docs: made by COMMAND -->` begins lines that a command prints, run in the checkout; `<!-- docs: end -->` ends them.
Commands that are only named, in the text or in ```bash blocks, are not run: that they exist and have these flags is checked.
"""

import argparse
import difflib
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = pathlib.Path(os.environ.get("PARE_SHARED", ROOT.parent / "shared"))
PAGES = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
python_path = ROOT / ".deps" / "python-path"
PEERS = f"{pathlib.Path(python_path.read_text().strip()).parent}:" if python_path.exists() else ""
MODULE = "python:"
LANGUAGES = {"console", "text", "json", "cpp", "cmake", "python", "bash"}
COMMENT = re.compile(r"^<!-- docs: (.*) -->$")
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
TIME = re.compile(r"^ ?(?:s|ms|min|h|tokens/s|steps/s)\b|^/s\b")
NAMED = re.compile(r"(?:`|^)pare ([a-z]+)\b([^`]*?)(?:`|$)", re.M)
FROM_COMMIT = re.compile(r"^\*Printed by commit .*\*$")


class Tolerance:
    """How far what is printed may be from what a page has."""

    def __init__(self, settings=None):
        settings = settings or {}
        self.errors = float(settings.get("errors", "1x").removesuffix("x"))
        self.numbers = float(settings.get("numbers", "0%").removesuffix("%")) / 100
        self.varies = settings.get("varies", "").split(",")

    def allows(self, expected, found, before, after):
        if expected == found:
            return True
        if "speeds" in self.varies and any(mark in text for text in (expected, found) for mark in ",."):
            return True
        if "times" in self.varies and TIME.match(after) or "seeds" in self.varies and re.search(r"\bseed $", before):
            return True
        a, b = (float(text.replace(",", "")) for text in (expected, found))
        if "e" in expected or "e" in found:
            return a * b > 0 and max(a / b, b / a) <= self.errors
        return ("." in expected or "." in found) and abs(a - b) <= self.numbers * max(abs(a), abs(b))


def spaced(text):
    """Gaps and rules of a table are as wide as its numbers: one width here."""
    return re.sub(r"-{3,}", "---", re.sub(r"\s+", " ", text))


def same_line(expected, found, tolerance):
    parts, others = NUMBER.split(expected), NUMBER.split(found)
    if [spaced(p) for p in parts] != [spaced(p) for p in others]:
        return False
    pairs = zip(NUMBER.findall(expected), NUMBER.findall(found))
    return all(tolerance.allows(a, b, others[i], others[i + 1]) for i, (a, b) in enumerate(pairs))


def likeness(expected, found):
    masked = [spaced(NUMBER.sub("0", line)) for line in (expected, found)]
    return 1.0 if masked[0] == masked[1] else difflib.SequenceMatcher(None, *masked).ratio()


def segments(lines):
    """What stands between lines of `...`."""
    parts = [[]]
    for line in lines:
        if line == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def place(parts, found, score):
    """Where each segment begins in `found`: in order, the first at its start and the last at its end; None where it cannot be."""
    if len(parts) == 1:
        return [0]
    begins, at = [0], len(parts[0])
    for part in parts[1:-1]:
        choices = range(at, len(found) - len(part) + 1)
        if not choices:
            return None
        begins.append(max(choices, key=lambda i: (sum(score(a, b) for a, b in zip(part, found[i:])), -i)))
        at = begins[-1] + len(part)
    begins.append(len(found) - len(parts[-1]))
    return begins if begins[-1] >= at and len(parts[0]) <= len(found) else None


def compare(expected, found, tolerance):
    """What is wrong; empty where nothing is."""
    parts = segments(expected)
    if len(parts) == 1 and same_line(" ".join(expected), " ".join(found), tolerance):
        return ""  # where a line was folded may depend on a number's width
    begins = place(parts, found, lambda a, b: (100 if same_line(a, b, tolerance) else 0) + likeness(a, b))
    if begins is None or len(parts) == 1 and len(found) != len(expected):
        return f"expected {len(expected)} lines, found {len(found)}:\n" + "\n".join(f"    {line}" for line in found)
    for part, begin in zip(parts, begins):
        for line, other in zip(part, found[begin:]):
            if not same_line(line, other, tolerance):
                return f"expected\n    {line}\n  found\n    {other}"
    return ""


def updated(expected, found, tolerance):
    """The page's lines with what is printed now; those that still hold, and are as wide, stay as they are."""
    parts = segments(expected)
    begins = place(parts, found, likeness)
    if len(parts) == 1 or begins is None:
        keep = len(parts) == 1 and not compare(expected, found, tolerance) and list(map(len, expected)) == list(map(len, found))
        return expected if keep else found
    lines = []
    for i, (part, begin) in enumerate(zip(parts, begins)):
        lines += ["..."] if i else []
        lines += [a if same_line(a, b, tolerance) and len(a) == len(b) else b for a, b in zip(part, found[begin:])]
    return lines


@functools.cache
def help_of(program, command):
    run = subprocess.run([program, "help", command], capture_output=True, text=True)
    return frozenset(re.findall(r"--[a-z][a-z-]*", run.stdout)) | {""} if run.returncode == 0 else frozenset()


class Page:
    def __init__(self, name, options):
        self.name, self.options = name, options
        self.lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        self.out, self.problems, self.passed, self.skipped = [], [], 0, []

    def problem(self, line, text):
        self.problems.append(f"{self.name}:{line + 1}: {text}")

    def shell(self, command, folder):
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "COLUMNS": "80", "PYTHONDONTWRITEBYTECODE": "1",
                       "PATH": f"{pathlib.Path(self.options.program).resolve().parent}:{PEERS}{os.environ['PATH']}"}
        run = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        lines = [line.rstrip() for line in run.stdout.splitlines()]
        return lines + ([f"(exit code {run.returncode})"] if run.returncode else [])

    def run(self):
        self.named()
        with tempfile.TemporaryDirectory() as folder:
            i, settings = 0, {}
            while i < len(self.lines):
                line = self.lines[i]
                comment = COMMENT.match(line)
                if comment and comment.group(1).startswith("made by "):
                    i = self.made(i, comment.group(1).removeprefix("made by "))
                    continue
                self.out.append(line)
                if comment:
                    settings = {key: value for key, _, value in (word.partition("=") for word in comment.group(1).split())}
                elif line.startswith("```"):
                    i = self.block(i, settings, folder)
                    settings = {}
                    continue
                elif line:
                    settings = {}
                i += 1
        if self.options.update:
            (ROOT / self.name).write_text("\n".join(self.out) + "\n", encoding="utf-8")
        return self

    def has(self, need, folder):
        if need.startswith(MODULE):
            return not self.shell(f"python3 -c 'import {need.removeprefix(MODULE)}' 2>/dev/null", folder)
        return (SHARED / need).exists()

    def named(self):
        """Commands that the page speaks of have the flags that it gives them."""
        for found in NAMED.finditer("\n".join(self.lines)):
            command, flags = found.group(1), set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", found.group(2)))
            known = help_of(self.options.program, command)
            wrong = [f"no command {command!r}"] if not known else [f"{command} has no flag {flag}" for flag in sorted(flags) if flag not in known]
            for text in wrong:
                self.problem("\n".join(self.lines)[:found.start()].count("\n"), text)

    def made(self, i, command):
        end = self.lines.index("<!-- docs: end -->", i)
        found = self.shell(command, ROOT)
        wrong = compare(self.lines[i + 1:end], found, Tolerance())
        if wrong and not self.options.update:
            self.problem(i, f"{command}: {wrong}")
        self.passed += not wrong
        self.out += [self.lines[i], *found, self.lines[end]]
        return end + 1

    def block(self, i, settings, folder):
        language, end = self.lines[i][3:], self.lines.index("```", i + 1)
        body = self.lines[i + 1:end]
        if language not in LANGUAGES:
            self.problem(i, f"a block is one of {', '.join(sorted(LANGUAGES))}; found {language!r}")
        if "file" in settings:
            pathlib.Path(folder, settings["file"]).write_text("\n".join(body) + "\n", encoding="utf-8")
        if language != "console":
            self.out += self.lines[i + 1:end + 1]
            return end + 1
        needs = list(filter(None, settings.get("needs", "").split(",")))
        missing = [need for need in needs if not self.has(need, folder)]
        slow = "slow" in settings
        if missing or slow and not self.options.slow:
            if missing:
                self.skipped.append(f"{self.name}:{i + 1}: {', '.join(missing)} is not there")
            self.out += self.lines[i + 1:end + 1]
            return end + 1
        for need in (need for need in needs if not need.startswith(MODULE)):
            link = pathlib.Path(folder, pathlib.Path(need).name)
            if not link.exists():
                link.symlink_to(SHARED.resolve() / need)
        self.commands(i + 1, body, Tolerance(settings), folder)
        self.out.append("```")
        if slow and self.options.update:
            commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            comment = max(k for k, line in enumerate(self.out) if COMMENT.match(line))
            self.out[comment] = re.sub(r"slow=\S*", f"slow={commit}", self.out[comment])
            after = end + 1
            if after < len(self.lines) and FROM_COMMIT.match(self.lines[after]):
                end = after
            self.out.append(f"*Printed by commit {commit}.*")
        return end + 1

    def commands(self, first, body, tolerance, folder):
        if not body or not body[0].startswith("$ "):
            self.problem(first, "a console block begins with a command, `$ ...`")
            self.out += body
            return
        k = 0
        while k < len(body):
            begin, command = k, body[k][2:]
            while body[k].endswith("\\"):
                k += 1
                command += "\n" + body[k]
            k += 1
            self.out += body[begin:k]
            expected = []
            while k < len(body) and not body[k].startswith("$ "):
                expected.append(body[k])
                k += 1
            found = self.shell(command, folder)
            wrong = compare(expected, found, tolerance)
            if wrong and not self.options.update:
                self.problem(first + begin, f"{command}: {wrong}")
            self.passed += not wrong
            self.out += updated(expected, found, tolerance) if self.options.update else expected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the command to run, such as build/pare")
    parser.add_argument("pages", nargs="*", help="README.md, docs/text.md ...; all where none is named")
    parser.add_argument("--update", action="store_true", help="writes what is printed into the pages")
    parser.add_argument("--slow", action="store_true", help="runs slow blocks too")
    options = parser.parse_intermixed_args()
    passed, failed, skipped = 0, 0, 0
    for name in options.pages or PAGES:
        page = Page(name, options).run()
        for text in page.skipped:
            print(f"skipped docs: {text}")
        for text in page.problems:
            print(f"FAILED docs: {text}", flush=True)
        passed, failed, skipped = passed + page.passed, failed + len(page.problems), skipped + len(page.skipped)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
