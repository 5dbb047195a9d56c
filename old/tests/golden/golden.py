#!/usr/bin/env python3
"""What people see, word for word. `golden.py --update` writes the files again: read the difference before you commit."""

import difflib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import Report, pare

FOLDER = pathlib.Path(__file__).resolve().parent
COMMANDS = {
    "help": ["--help"],
    "audit-gpt2": ["audit", "gpt2"],
    "audit-albert-base": ["audit", "albert-base"],
    "audit-skipless-mistral-7b": ["audit", "skipless-mistral-7b"],
    "audit-skipless-pythia-6.9b": ["audit", "skipless-pythia-6.9b"],
    "audit-gpt2-json": ["audit", "gpt2", "--json"],
}


def main():
    report = Report("golden")
    for name, arguments in COMMANDS.items():
        path = FOLDER / f"{name}.txt"
        found = pare(*arguments).stdout
        if "--update" in sys.argv:
            path.write_text(found)
        expected = path.read_text() if path.exists() else ""
        difference = "\n".join(difflib.unified_diff(expected.splitlines(), found.splitlines(), "expected", "found", lineterm=""))
        report.check(" ".join(arguments), difference)
    report.finish()


if __name__ == "__main__":
    main()
