#!/usr/bin/env python3
"""Habits of a terminal: its width, help in every spelling, and completion by the shells themselves."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "error")]
from report import PARE, Report, expect, pare
from wrong_use import ARCHITECTURE

NORMED = json.loads(json.dumps(ARCHITECTURE))
NORMED["blocks"][0]["attention"] = {"heads": 2, "head_width": 4, "norm": {"kind": "rms"}}
NORMED["blocks"][0]["mlp"]["norm"] = {"kind": "rms"}  # else absorb_skip asks the weights


def widest(text):
    return max(text.splitlines(), key=len, default="")


def check_width(report, work):
    pages = [["--help"], ["rewrite", "--help"], ["passes"], ["audit", "gpt2"], ["audit", "skipless-pythia-6.9b"], ["audit", "model", "--conditions"]]
    for arguments in pages:
        plain = pare(*arguments, cwd=work).stdout
        for columns in (40, 60, 100):
            result = pare(*arguments, cwd=work, env={**os.environ, "COLUMNS": str(columns)})
            line = widest(result.stdout)
            lost = [word for word in plain.split() if word.isalpha() and word not in result.stdout]
            wrong = f"{len(line)} columns: {line}" if len(line) > columns else f"lost {lost}" if lost else ""
            report.check(f"{arguments} in {columns} columns", wrong or expect(result.returncode, 0))
    said = {columns: pare("audit", "gpt2", env={**os.environ, "COLUMNS": columns}).stdout for columns in ("5", "40", "many")}
    report.check("under 40 is 40", expect(said["5"], said["40"]))
    report.check("a width that is none", expect(said["many"], pare("audit", "gpt2").stdout))
    # A terminal of its own, 50 wide.
    script = f"stty cols 50; {PARE} audit gpt2"
    if shutil.which("script"):
        environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        result = subprocess.run(["script", "-qec", script, "/dev/null"], capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
        line = widest(result.stdout.replace("\r", ""))
        report.check("a terminal of 50 columns", "" if result.returncode == 0 and 40 < len(line) <= 50 else f"{len(line)}: {line}")
    else:
        report.skip("a terminal of 50 columns", "script is not installed")


def check_messages(report, work):
    """What goes to stderr fits a terminal too, and stays whole in a log."""
    for name, arguments, words in (
        ("a refusal", ["rewrite", "model", "-o", "never", "--passes", "eliminate_projection"], "what would help"),
        ("an error", ["rewrite", "model", "-o", "never", "--passes", "fold_norm_gai"], "did you mean"),
    ):
        plain = pare(*arguments, cwd=work)
        report.check(f"{name} in a log is whole", "" if len(widest(plain.stderr)) > 80 else plain.stderr)
        for columns in (40, 80):
            result = pare(*arguments, cwd=work, env={**os.environ, "COLUMNS": str(columns)})
            line = widest(result.stderr)
            said = " ".join(result.stderr.split())
            wrong = f"{len(line)} columns: {line}" if len(line) > columns else "" if words in said else result.stderr
            report.check(f"{name} in {columns} columns", wrong or expect(result.returncode, plain.returncode))
            if columns == 80:
                report.check(f"{name}: no word is lost", expect(said, " ".join(plain.stderr.split())))


def check_help(report):
    report.check("pare help", expect(pare("help").stdout, pare("--help").stdout))
    names = [line.split()[0] for line in pare("--help").stdout.split("Commands:\n")[1].split("\n\n")[0].splitlines()]
    report.check("commands", "" if {"audit", "help", "completion"} <= set(names) else f"{names}")
    for name in names:
        report.check(f"pare help {name}", expect(pare("help", name).stdout, pare(name, "--help").stdout))
        report.check(f"help of {name} ends with an example", "" if "Example: " in pare("help", name).stdout else "none")
    report.check("help with a flag before", expect(pare("--quiet", "help", "audit").stdout, pare("audit", "--help").stdout))
    wrong = pare("help", "adit")
    report.check("help of what is not there", expect((wrong.returncode, "did you mean audit" in wrong.stderr), (1, True)))
    report.check("-V", expect(pare("-V").stdout, pare("--version").stdout))


# The line up to the cursor, some of what must be offered, and what must not.
LINES = [
    ("pare au", {"audit"}, {"rewrite"}),
    ("pare ", {"audit", "rewrite", "init", "run", "verify", "train", "compare", "passes", "reproduce", "demo", "help", "completion"}, set()),
    ("pare --qu", {"--quiet"}, set()),
    ("pare audit gpt2-", {"gpt2-medium", "gpt2-large", "gpt2-xl"}, {"mistral-7b"}),
    ("pare audit --con", {"--conditions"}, set()),
    ("pare init llama", {"llama-3.1-8b"}, set()),
    ("pare init gpt2 --dtype b", {"bfloat16"}, {"float32"}),
    ("pare rewrite model --form ", {"strict", "compat"}, {"audit"}),
    ("pare rewrite model --no", {"--no-verify"}, {"--taps"}),
    ("pare rewrite model --ex", {"--explain"}, set()),
    ("pare rewrite model --passes drop", {"drop_key_bias"}, {"fold_norm_gain"}),
    ("pare rewrite model --passes drop_key_bias,fold_n", {"drop_key_bias,fold_norm_gain"}, set()),
    ("pare audit --device ", {"cpu", "cuda"}, {"gpt2"}),
    ("pare passes merge", {"merge_skipless"}, set()),
    ("pare completion ", {"bash", "zsh", "fish"}, {"model"}),
    ("pare help ver", {"verify"}, set()),
    ("pare --seed 3 ini", {"init"}, set()),
    ("pare audit mod", {"model"}, set()),
    ("pare run model --tokens id", {"ids.json"}, set()),
]

BASH = r"""
source "$1" || exit 1
COMP_LINE=$2 COMP_POINT=${#2}
read -ra COMP_WORDS <<< "$2"
[[ $2 == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
COMPREPLY=()
_pare pare "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""
# zsh outside its line editor: compadd and its kin are replaced by what they would add.
ZSH = r"""
prefix=''
compset() { if [[ $1 == -P ]]; then local found=${(M)word##${~2}}; prefix=$found; fi }
compadd() { while [[ $1 != -- ]]; do shift; done; shift; local w
  for w in "$@"; do [[ $prefix$w == ${words[CURRENT]}* ]] && print -r -- $prefix$w; done; return 0 }
_files() { local w; for w in ${words[CURRENT]}*(N); do print -r -- $w; done }
source "$1" || exit 1
words=(${=2}); [[ $2 == *' ' ]] && words+=('')
CURRENT=${#words}
_pare
"""
FISH = 'source $argv[1]; complete -C "$argv[2]" | string split -f 1 \\t'
SHELLS = {"bash": ["bash", "--norc", "-c", BASH, "bash"], "zsh": ["zsh", "-f", "-c", ZSH, "zsh"], "fish": ["fish", "-N", "-c", FISH]}


def check_completion(report, work):
    for shell, command in SHELLS.items():
        result = pare("completion", shell)
        report.check(f"completion {shell}", expect(result.returncode, 0))
        if not shutil.which(shell):
            report.skip(f"completion in {shell}", f"{shell} is not installed")
            continue
        path = work / f"completion.{shell}"
        path.write_text(result.stdout)
        # What a script calls must be found, though it is not run here.
        environment = {**os.environ, "PATH": f"{PARE.parent}:{os.environ['PATH']}", "HOME": str(work)}
        for line, offered, other in LINES:
            run = subprocess.run([*command, str(path), line], capture_output=True, text=True, cwd=work, env=environment)
            found = {word.rstrip("/ ") for word in run.stdout.splitlines()}
            wrong = offered - found or other & found or run.stderr
            report.check(f"{shell}: {line!r}", f"offers {sorted(found)}, expected {sorted(offered)} and not {sorted(other)} {run.stderr}" if wrong else "")
    report.check("a shell that is none", expect(pare("completion", "tcsh").returncode, 1))


def check_conditions(report, work):
    """Every pass that needs condition numbers is refused by the norms: they are shown when asked for."""
    usual, asked = pare("audit", "model", cwd=work), pare("audit", "model", "--conditions", cwd=work)
    report.check("no table of conditions", expect([usual.returncode, "block 0 " in usual.stdout], [0, False]))
    report.check("--conditions shows it", expect([asked.returncode, "block 0 " in asked.stdout], [0, True]))
    for flags, expected in (([], False), (["--conditions"], True)):
        passes = json.loads(pare("audit", "model", "--json", *flags, cwd=work).stdout)["passes"]
        found = any(entry["condition_numbers"] for entry in passes)
        report.check(f"condition numbers in JSON {flags}", expect(found, expected))
    # Not measured at all: weights that cannot be read are not missed.
    data = (work / "model" / "model.safetensors").read_bytes()
    shutil.copytree(work / "model", work / "broken")
    nan = b"\x00\x00\xc0\x7f" * (len(data) // 4)
    length = 8 + int.from_bytes(data[:8], "little")
    (work / "broken" / "model.safetensors").write_bytes(data[:length] + nan[: len(data) - length])
    report.check("no weight is read", expect(pare("audit", "broken", cwd=work).returncode, 0))
    report.check("unless asked for", expect(pare("audit", "broken", "--conditions", cwd=work).returncode, 1))


def check_interrupt(report, work):
    """Ctrl-C ends what goes on about an architecture alone, whose audit reads and computes nothing; it may be done before."""
    (work / "deep.json").write_text(json.dumps({**NORMED, "blocks": [{**NORMED["blocks"][0], "repeat": 2000}]}))
    process = subprocess.Popen([str(PARE), "audit", "deep.json"], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
    if process.returncode == 0:
        report.skip("Ctrl-C during a long audit", "it had ended by then")
        return
    lines = ["pare: stopping; press Ctrl-C again to stop at once", "pare: interrupted"]
    report.check("Ctrl-C during a long audit", expect([process.returncode, said.splitlines()], [130, lines]))


def main():
    report = Report("terminal")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "model.json").write_text(json.dumps(NORMED))
        (work / "ids.json").write_text("[[1, 2, 3]]")
        report.check("init", expect(pare("init", "model.json", "-o", "model", cwd=work).returncode, 0))
        check_help(report)
        check_conditions(report, work)
        check_completion(report, work)
        check_width(report, work)
        check_messages(report, work)
        check_interrupt(report, work)
    report.finish()


if __name__ == "__main__":
    main()
