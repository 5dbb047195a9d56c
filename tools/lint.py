#!/usr/bin/env python3
"""Checks what the compiler does not: format, layers, sizes, neighbours, cited paths. One line for each finding."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A folder of pare/ includes only itself and folders before it.
LAYERS = ["support", "ranks", "arch", "redundancy", "checkpoint", "model", "cuda", "data", "decode", "linear", "probes", "proof", "search", "verify", "algebra", "passes", "rewrite", "export", "audit", "train", "bench", "report", "claims", "cli"]
WITHOUT_TORCH = ["support", "arch", "redundancy", "data"]
# Commands share one header, families are found by name, and what needs CUDA is loaded by the names of its functions.
WITHOUT_HEADER = ["pare/cli/", "pare/checkpoint/families/", "pare/cuda/"]
HEADER_LINES, SOURCE_LINES = 200, 500
EXAMPLE_LINES = 59
# Libraries hand back what they have to say: only commands print. What others print they may silence.
PRINTING = re.compile(r"\b(?:log_info|log_warning|show_status|printf|fprintf|puts|fputs|fwrite|perror)\s*\(|\bstd::(?:cout|cerr|clog)\b(?!\.(?:setstate|clear)\()|\bfmt::print\b")
MAY_PRINT = re.compile(r"pare/cli/|pare/support/(?:log|progress)\.")
CLANG_FORMAT = 14
TEXT = {".h", ".cpp", ".py", ".sh", ".md", ".json", ".cmake", ".txt", ".css", ".js"}
TEXT_NAMES = {"Makefile", "run", "LICENSE", ".clang-format", ".gitignore"}
ABSENT = re.compile(r"\b(?:THEORY|DESIGN)\b")  # notes that are not in the repository
PAGES = re.compile(r"(?<![\w./-])docs/[\w./-]+\.(?:md|json)\b")
CITED = re.compile(r"(?<![\w./-])(?:pare|docs|tests|tools|presets|cmake|examples|benchmarks|experiments)/[\w./*<>{},-]*\w")
BESIDE = re.compile(r"(?<![\w./*-])(?!llama\.cpp)(\w+\.(?:h|cpp))\b")  # a file without its folder; not the program that is called like one
MEMBER = re.compile(r"\b([A-Z]\w+)::(\w+)")
PLACEHOLDER = re.compile(r"[*<>{}]|[A-Z]{3,}|/N\b")

findings = []


def report(path, line, text):
    findings.append(f"{path}:{line}: {text}" if line else f"{path}: {text}")


def project_files():
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in (".git", ".deps", "__pycache__", "corpus") and not f.startswith("build")]
        for name in names:
            path = pathlib.Path(folder, name)
            if path.suffix in TEXT or name in TEXT_NAMES:
                yield path.relative_to(ROOT)


def check_text(path, lines):
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            report(path, number, "trailing whitespace")
    text = "\n".join(lines)
    if text and not (ROOT / path).read_bytes().endswith(b"\n"):
        report(path, len(lines), "no newline at the end of the file")


def check_sizes(path, lines):
    most = HEADER_LINES if path.suffix == ".h" else EXAMPLE_LINES if path.parts[0] == "examples" else SOURCE_LINES
    if len(lines) > most:
        report(path, 0, f"{len(lines)} lines, at most {most}: split it")


def check_layers(path, lines):
    own = path.parts[1]
    if own not in LAYERS:
        report(path, 0, f"folder pare/{own} is not in the list of layers in tools/lint.py")
        return
    for number, line in enumerate(lines, 1):
        include = re.match(r'\s*#include\s+["<]([^">]+)[">]', line)
        if not include:
            continue
        target = include.group(1)
        layer = re.match(r"pare/(\w+)/", target)
        if layer and layer.group(1) in LAYERS and LAYERS.index(layer.group(1)) > LAYERS.index(own):
            report(path, number, f"{own}/ may not include {target}: {layer.group(1)}/ stands above it")
        if layer and not (ROOT / target).exists():
            report(path, number, f"includes {target}, which does not exist")
        if own in WITHOUT_TORCH and re.match(r"(ATen|c10|torch)/", target):
            report(path, number, f"{own}/ does without torch, but includes {target}")


def check_comments(sources):
    """What a comment names exists: a file beside it, a member of a class."""
    texts = {path: (ROOT / path).read_text().splitlines() for path in sources}
    known = {word for lines in texts.values() for line in lines for word in re.findall(r"\w+", line.partition("//")[0])}
    for path, lines in texts.items():
        for number, line in enumerate(lines, 1):
            comment = line.partition("//")[2]
            for name in BESIDE.findall(comment):
                if not (ROOT / path).with_name(name).exists():
                    report(path, number, f"names {name}, which is not in {path.parent}")
            for words in MEMBER.findall(comment):
                if not known.issuperset(words):
                    report(path, number, f"names {'::'.join(words)}, which does not exist")


def check_printing(path, lines):
    if MAY_PRINT.match(str(path)):
        return
    for number, line in enumerate(lines, 1):
        found = PRINTING.search(line.split("//")[0])
        if found:
            report(path, number, f"prints ({found.group(0).rstrip('(')}): a library hands its warnings back")


def check_neighbours(path):
    if path.suffix == ".cpp" and path.name != "main.cpp" and not str(path).startswith(tuple(WITHOUT_HEADER)):
        # A long implementation is split: its parts begin with the header they implement.
        first = re.search(r'^#include "([^"]+)"', (ROOT / path).read_text(), re.M)
        split = first and pathlib.Path(first.group(1)).parent == path.parent
        if not split and not (ROOT / path).with_suffix(".h").exists():
            report(path, 0, f"has no header {path.stem}.h beside it, and does not begin with one of its folder")
    if path.parent == pathlib.Path("pare/checkpoint/families"):
        if not (ROOT / "tests/conformance/families" / f"{path.stem}.py").exists():
            report(path, 0, f"family {path.stem} has no tests/conformance/families/{path.stem}.py")
    if path.parent == pathlib.Path("pare/passes") and "// Theorem" in (ROOT / path).read_text():
        for needed in (f"tests/passes/{path.stem}.cpp", f"docs/theorems/{path.stem}.md"):
            if not (ROOT / needed).exists():
                report(path, 0, f"pass {path.stem} has no {needed}")


def check_papers(path, text):
    """Every theorem's page links the bibliography, and every pass names a paper that is in it."""
    papers = (ROOT / "docs/papers.md").read_text()
    if path.parent == pathlib.Path("docs/theorems") and "](../papers.md)" not in text:
        report(path, 0, "links no paper: cite docs/papers.md")
    if path.parent != pathlib.Path("pare/passes") or path.suffix != ".cpp" or path.stem == "order":
        return
    if f'.id = "{path.stem}"' not in text:
        report(path, 0, f'its .id is not "{path.stem}", the name of its file')
    reference = re.search(r'\.reference = "([^"]*)"', text)
    if not reference:
        report(path, 0, "has no .reference")
    else:
        known = re.findall(r"^\| (?:\d \| )?([^|]* \d{4}) \|", papers, re.M)
        if not any(name in reference.group(1) for name in known):
            report(path, 0, f"its reference names none of docs/papers.md: {reference.group(1)}")


def check_citations(path, lines):
    for number, line in enumerate(lines, 1):
        if ABSENT.search(line) and path != pathlib.Path("tools/lint.py"):
            report(path, number, f"cites {ABSENT.search(line).group(0)}, which is not in the repository")
        for target in PAGES.findall(line):
            if not PLACEHOLDER.search(target) and not (ROOT / target).exists():
                report(path, number, f"cites {target}, which does not exist")
        if path.suffix == ".md":
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", line):
                if "://" not in target and not (ROOT / path.parent / target).exists():
                    report(path, number, f"links to {target}, which does not exist")
            cited = " ".join(re.findall(r"`([^`]+)`", line))
        else:
            comment = re.search(r"//(.*)|^\s*#(?!include)(.*)", line)
            cited = comment.group(0) if comment else ""
        for target in CITED.findall(cited):
            if not PLACEHOLDER.search(target) and not (ROOT / target).exists():
                report(path, number, f"cites {target}, which does not exist")


def check_type_names(headers):
    """Two types of one name in one namespace are no error to a compiler that never sees both, and a crash to a linker."""
    places = {}
    for path in headers:
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            found = re.match(r"(?:struct|class|enum class) (\w+)\s*(?:[:{]|$)", line)
            if found:
                first = places.setdefault(found.group(1), f"{path}:{number}")
                if first != f"{path}:{number}":
                    report(path, number, f"{found.group(1)} is a type of {first} already")


def check_format(sources):
    tool = shutil.which("clang-format")
    if not tool:
        print("lint: clang-format is not installed: the format is not checked")
        return
    version = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout
    if f"version {CLANG_FORMAT}." not in version:  # each version formats a little differently
        print(f"lint: this is {version.strip()}, not version {CLANG_FORMAT}: the format is not checked")
        return
    run = subprocess.run([tool, "--dry-run", "-Werror", *map(str, sources)], cwd=ROOT, capture_output=True, text=True)
    first = {}
    for path, line in re.findall(r"^(\S+?):(\d+):\d+: error:", run.stderr, re.M):
        first.setdefault(path, line)
    for path, line in first.items():
        report(path, line, "not formatted, here first: make format")
    if run.returncode and "error:" not in run.stderr:
        report("clang-format", 0, run.stderr.strip() or "failed")


def main():
    sources = []
    for path in sorted(project_files()):
        try:
            lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            report(path, 0, "is not UTF-8")
            continue
        check_text(path, lines)
        check_citations(path, lines)
        check_papers(path, "\n".join(lines))
        if path.suffix in (".h", ".cpp"):
            sources.append(path)
            check_sizes(path, lines)
            if path.parts[0] == "pare":
                check_layers(path, lines)
                check_printing(path, lines)
                check_neighbours(path)
    check_type_names(path for path in sources if path.suffix == ".h" and path.parts[0] == "pare")
    check_comments(path for path in sources if path.parts[0] == "pare")
    check_format(sources)
    for finding in findings:
        print(finding)
    print(f"lint: {len(findings)} findings" if findings else "lint: clean")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
